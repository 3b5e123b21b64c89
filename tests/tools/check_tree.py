# SPDX-License-Identifier: Apache-2.0
"""The tree's own rules, for `./dev lint`: licence lines, layers, words left behind.

usage: check_tree.py ROOT
"""
import pathlib
import posixpath
import re
import sys

SKIPPED = {"build", "dist", "__pycache__"}  # and hidden folders, but .ci
SOURCES = {".c", ".h", ".def", ".syms", ".cmake", ".py", ".pyi", ".sh", ".toml", ".conf", ".scd", ".in"}
SOURCE_NAMES = {"CMakeLists.txt", "dev", "run"}

# What all folders of the client library stand on.
OF_CLIENT = ("client/include", "driver", "proto", "proto/base")
# Which folders a folder's files may include from, besides their own.
LAYERS = {
    "proto/base": (),
    "proto": ("proto/base",),
    "mem": ("proto/base",),
    "driver": ("proto/base",),
    "driver/soft": ("driver", "proto/base"),
    "client": ("client/arena", "client/handoff", "client/include", "client/memory", "client/session"),
    "client/arena": (*OF_CLIENT, "client/memory", "client/session", "mem"),
    "client/cuda": (*OF_CLIENT, "client/session"),
    "client/handoff": (*OF_CLIENT, "client/memory", "client/session"),
    "client/include": (),
    "client/memory": (*OF_CLIENT, "client/session"),
    "client/session": OF_CLIENT,
    "client/tools": (*OF_CLIENT, "client/session"),
    "daemon/core": ("mem", "proto", "proto/base"),
    "daemon": ("daemon/core", "driver", "mem", "proto", "proto/base"),
    "python": ("client/cuda", "client/include"),
}
# Headers that a folder must do without: what is pure has no loop, no driver and no clock.
IMPURE = {"uv.h", "cuda.h", "time.h", "sys/time.h", "base/clock.h"}
FORBIDDEN = {"daemon/core": IMPURE, "mem": IMPURE}
# The folders that #include searches, in the build's order.
INCLUDE_DIRS = ("proto", "driver", "mem", "daemon/core", "daemon", "client/include", "client", "tests")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
LEFT_BEHIND = re.compile(
    r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|not " r"implemented|place" r"holder|(?<![\w./])/(home|root|Users)/\w",
    re.I,
)


def folder_of(path):
    """The layer that a file belongs to: its deepest folder with a rule, or None."""
    for parent in path.parents:
        if parent.as_posix() in LAYERS:
            return parent.as_posix()
    return None


def resolve(root, path, name):
    """The file of the tree that an #include in `path` names, or None for one from outside."""
    for folder in (path.parent, *map(pathlib.PurePosixPath, INCLUDE_DIRS)):
        if (root / folder / name).is_file():
            return pathlib.PurePosixPath(posixpath.normpath(folder / name))
    return None


def check_includes(root, path, text):
    layer = folder_of(path)
    if layer is None:
        return
    allowed = (layer, *LAYERS[layer])
    for _, name in INCLUDE.findall(text):
        if name in FORBIDDEN.get(layer, ()):
            yield f"{layer}/ does not include {name}"
        target = resolve(root, path, name)
        if target is not None and folder_of(target) not in allowed:
            yield f"{layer}/ does not include {target}"


def check_text(path, text):
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:4]):
        yield "no SPDX line"
    for number, line in enumerate(text.split("\n"), 1):
        if found := LEFT_BEHIND.search(line):
            yield f"line {number}: {found.group()!r} is left behind"


def is_source(path):
    return path.suffix in SOURCES or path.name in SOURCE_NAMES


def is_skipped(folder):
    return folder in SKIPPED or (folder.startswith(".") and folder != ".ci")


def files(root):
    for path in sorted(root.rglob("*")):
        path = path.relative_to(root)
        if not any(map(is_skipped, path.parts[:-1])) and (root / path).is_file():
            yield path


def check(root):
    """Every broken rule under `root`, as (path, what)."""
    for path in files(root):
        if " " in str(path):
            yield path, "space in a file's name"
        if not is_source(path):
            continue
        text = (root / path).read_text("utf-8")
        for what in (*check_text(path, text), *check_includes(root, path, text)):
            yield path, what


def main():
    broken = list(check(pathlib.Path(sys.argv[1])))
    for path, what in broken:
        print(f"{path}: {what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
