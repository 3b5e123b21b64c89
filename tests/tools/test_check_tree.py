# SPDX-License-Identifier: Apache-2.0
"""Each rule of check_tree.py finds its breach, and only that."""
import pathlib

import pytest
from check_tree import check

PICTURE = """
 a proto/base
 b mem            i
 c proto          # .
 d driver         i . .
 e daemon/core    . i # .
 f daemon         . . . i i
 g client/include . . . . . .
 h client/session . . i . . . i
 i client/memory  . . . . . . . #
 j client/arena   . i . . . . . . i
 k client         . . . . . . . . . i
 l python         . . . . . . i c . . .
"""
DRAWN = "docs/ARCHITECTURE.md: the folders are not as in the picture, but\n"
SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"


@pytest.fixture
def tree(tmp_path):
    """A tree that keeps every rule: write(path, text) adds to it."""

    def write(name, text, spdx=SPDX):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(spdx + text)

    write("docs/ARCHITECTURE.md", PICTURE, spdx="")
    write("proto/base/list.h", "static inline void\nlist_init(void)\n{\n}\n")
    write("proto/msg.h", '#include "base/list.h"\n#include <msgpack.h>\n')
    write("proto/msg.c", "void\nmsg_take(void)\n{\n    list_init();\n}\n")
    write("driver/drv.h", '#include "base/list.h"\n')
    write("mem/space.h", '#include "base/list.h"\n')
    write("daemon/core/core.h", '#include "msg.h"\n#include "space.h"\n')
    write("daemon/core/core.c", "static void\nown(void)\n{\n    msg_take(); /* array_new() */\n}\n")
    write("daemon/core/array.c", "void\narray_open(void)\n{\n    own();\n}\n")
    write("daemon/core/state.h", "/*\n * Who may call whom:\n *\n *   array pool_* │ core+done │\n *   work\n */\n")
    for name in ("pool_a", "done", "work"):
        write(f"daemon/core/{name}.c", f"int\n{name}_new(void)\n{{\n}}\n")
    write("daemon/server.h", '#include "core.h"\n#include "drv.h"\n#include <uv.h>\n')
    write("client/include/caid/caid.h", "#include <stdint.h>\nint caid_ping(void);\n")
    write("client/session/client.h", '#include "caid/caid.h"\n#include "msg.h"\n')
    write("client/session/call.c", "int\ncaid_ping(void)\n{\n    own();\n}\n\nint\ncall_run(void)\n{\n}\n")
    write("client/memory/array.h", '#include "session/client.h"\n')
    write("client/memory/array.c", "void\narray_new(void)\n{\n    call_run();\n}\n")
    write("client/arena/arena.h", '#include "memory/array.h"\n#include "space.h"\n')
    write("client/features.c", '#include "arena/arena.h"\n')
    write("python/_caid.c", "#include <Python.h>\n#include <caid/caid.h>\nint\nf(void)\n{\n    caid_ping();\n}\n")
    write("tests/test_core.c", '#include "core.h"\n')
    write.root = tmp_path
    return write


def broken(tree):
    """What is told, but for the picture as it should be."""
    found = (f"{path}: {what}" for path, what in check(pathlib.Path(tree.root)))
    return [what for what in found if not what.startswith(DRAWN)]


def test_a_good_tree_passes(tree):
    assert broken(tree) == []


@pytest.mark.parametrize(
    ("path", "include", "what"),
    [
        ("proto/base/log.c", '"msg.h"', "proto/base/ does not include proto/msg.h"),
        ("driver/drv.c", '"space.h"', "driver/ does not include mem/space.h"),
        ("mem/space.c", '"base/clock.h"', "mem/ does not include base/clock.h"),
        ("client/features.c", '"../daemon/server.h"', "client/ does not include daemon/server.h"),
        ("client/session/ping.c", '"memory/array.h"', "client/session/ does not include client/memory/array.h"),
        ("client/memory/names.c", '"core.h"', "client/memory/ does not include daemon/core/core.h"),
        ("python/array.c", "<msg.h>", "python/ does not include proto/msg.h"),
        ("daemon/core/pool.c", "<uv.h>", "daemon/core/ does not include uv.h"),
    ],
)
def test_layers(tree, path, include, what):
    tree(path, f"#include {include}\n")
    assert f"{path}: {what}" in broken(tree)


def drawn(tree):
    """The picture as it should be; None: it is that."""
    found = [f"{path}: {what}" for path, what in check(pathlib.Path(tree.root))]
    return next((what.removeprefix(DRAWN) for what in found if what.startswith(DRAWN)), None)


@pytest.mark.parametrize(
    ("path", "text", "row"),
    [
        ("mem/space.c", "void\nuse(void)\n{\n    list_init();\n}\n", " b mem            #"),
        ("mem/space.h", "", " b mem            ."),
        ("client/arena/part.c", "void\nuse(void)\n{\n    array_new();\n}\n", " j client/arena   . i . . . . . . #"),
        ("daemon/core/core.c", "", " e daemon/core    . i i ."),
        ("python/_caid.c", "#include <caid/caid.h>\n", " l python         . . . . . . i"),
    ],
)
def test_the_picture_is_what_the_files_say(tree, path, text, row):
    assert drawn(tree) is None
    tree(path, text)
    assert any(line.startswith(row) for line in drawn(tree).split("\n")), drawn(tree)


def test_nothing_knows_what_comes_after_it(tree):
    tree("client/session/call.c", '#include "memory/array.h"\nint\ncall_run(void)\n{\n    array_new();\n}\n')
    assert "docs/ARCHITECTURE.md: client/session/ knows client/memory/, which comes after it" in broken(tree)


@pytest.mark.parametrize(
    ("path", "calls", "what"),
    [
        ("done.c", "array_open", None),
        ("work.c", "core_run", None),
        ("done.c", "core_run", None),
        ("pool_a.c", "array_open", "pool_a knows array_open() of array"),
        ("array.c", "done_new", "array knows done_new() of done"),
        ("done.c", "work_new", "done knows work_new() of work"),
    ],
)
def test_an_object_of_the_core_calls_those_to_its_left(tree, path, calls, what):
    tree("daemon/core/core.c", "static void\nown(void)\n{\n    msg_take();\n}\n\nint\ncore_run(void)\n{\n}\n")
    tree(f"daemon/core/{path}", f"static void *table = {{{calls}}}; /* work_new */\n")
    left = f"daemon/core/{path}: {what}, which is not to its left (daemon/core/state.h)"
    assert broken(tree) == ([left] if what else [])


def test_each_object_of_the_core_has_a_place(tree):
    tree("daemon/core/new.c", "")
    (tree.root / "daemon/core/work.c").unlink()
    found = broken(tree)
    assert sorted(found) == [
        "daemon/core/state.h: new has no place in the order",
        "daemon/core/state.h: work is in the order, and no object",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("/* TO" "DO later */\n", "line 2: 'TO" "DO' is left behind"),
        ("/* place" "holder */\n", "line 2: 'place" "holder' is left behind"),
        (f"/* {'long ' * 20}*/\n", "line 2: more than 100 columns"),
        ('"/ho' 'me/someone"\n', "line 2: '/ho" "me/s' is left behind"),
    ],
)
def test_text(tree, text, what):
    tree("driver/drv.c", text)
    assert broken(tree) == [f"driver/drv.c: {what}"]


def test_licence_line(tree):
    tree("driver/CMakeLists.txt", "add_library(x)\n", spdx="")
    assert broken(tree) == ["driver/CMakeLists.txt: no SPDX line"]


def test_built_files_are_left_alone(tree):
    tree("build/dev/gen.c", "int x;\n", spdx="")
    assert broken(tree) == []


def test_file_names(tree):
    tree("docs/a page.md", "")
    assert broken(tree) == ["docs/a page.md: space in a file's name"]
