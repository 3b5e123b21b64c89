# SPDX-License-Identifier: Apache-2.0
"""Each rule of check_tree.py finds its breach, and only that."""
import pathlib

import pytest
from check_tree import check

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"


@pytest.fixture
def tree(tmp_path):
    """A tree that keeps every rule: write(path, text) adds to it."""

    def write(name, text, spdx=SPDX):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(spdx + text)

    write("proto/base/list.h", "")
    write("proto/msg.h", '#include "base/list.h"\n#include <msgpack.h>\n')
    write("driver/drv.h", '#include "base/list.h"\n')
    write("mem/space.h", '#include "base/list.h"\n')
    write("daemon/core/core.h", '#include "msg.h"\n#include "space.h"\n')
    write("daemon/server.h", '#include "core.h"\n#include "drv.h"\n#include <uv.h>\n')
    write("client/include/caid/caid.h", "#include <stdint.h>\n")
    write("client/session/client.h", '#include "caid/caid.h"\n#include "msg.h"\n')
    write("client/memory/array.h", '#include "session/client.h"\n')
    write("client/handoff/lane.h", '#include "memory/array.h"\n')
    write("client/arena/arena.h", '#include "memory/array.h"\n#include "space.h"\n')
    write("client/features.c", '#include "arena/arena.h"\n#include "handoff/lane.h"\n')
    write("python/_caid.c", "#include <Python.h>\n#include <caid/caid.h>\n")
    write("tests/test_core.c", '#include "core.h"\n')
    write.root = tmp_path
    return write


def broken(tree):
    return [f"{path}: {what}" for path, what in check(pathlib.Path(tree.root))]


def test_a_good_tree_passes(tree):
    assert broken(tree) == []


@pytest.mark.parametrize(
    ("path", "include", "what"),
    [
        ("proto/msg.c", '"server.h"', "proto/ does not include daemon/server.h"),
        ("proto/base/log.c", '"msg.h"', "proto/base/ does not include proto/msg.h"),
        ("driver/drv.c", '"msg.h"', "driver/ does not include proto/msg.h"),
        ("driver/drv.c", '"space.h"', "driver/ does not include mem/space.h"),
        ("mem/space.c", '"msg.h"', "mem/ does not include proto/msg.h"),
        ("mem/space.c", '"drv.h"', "mem/ does not include driver/drv.h"),
        ("mem/space.c", '"core.h"', "mem/ does not include daemon/core/core.h"),
        ("mem/space.c", '"base/clock.h"', "mem/ does not include base/clock.h"),
        ("client/features.c", '"../daemon/server.h"', "client/ does not include daemon/server.h"),
        ("client/session/call.c", '"memory/array.h"', "client/session/ does not include client/memory/array.h"),
        ("client/memory/copy.c", '"handoff/lane.h"', "client/memory/ does not include client/handoff/lane.h"),
        ("client/memory/names.c", '"core.h"', "client/memory/ does not include daemon/core/core.h"),
        ("client/handoff/page.c", '"arena/arena.h"', "client/handoff/ does not include client/arena/arena.h"),
        ("client/arena/batch.c", '"handoff/lane.h"', "client/arena/ does not include client/handoff/lane.h"),
        ("client/tools/table.c", '"memory/array.h"', "client/tools/ does not include client/memory/array.h"),
        ("python/array.c", '"msg.h"', "python/ does not include proto/msg.h"),
        ("python/array.c", "<msg.h>", "python/ does not include proto/msg.h"),
        ("daemon/core/pool.c", '"drv.h"', "daemon/core/ does not include driver/drv.h"),
        ("daemon/core/pool.c", "<uv.h>", "daemon/core/ does not include uv.h"),
        ("daemon/core/pool.c", '"server.h"', "daemon/core/ does not include daemon/server.h"),
    ],
)
def test_layers(tree, path, include, what):
    tree(path, f"#include {include}\n")
    assert broken(tree) == [f"{path}: {what}"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("/* TO" "DO later */\n", "line 2: 'TO" "DO' is left behind"),
        ("/* place" "holder */\n", "line 2: 'place" "holder' is left behind"),
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
