# SPDX-License-Identifier: Apache-2.0
"""The tree's own rules, for `./dev lint`: licence lines, layers, words left behind.

usage: check_tree.py ROOT

Which folder may include from which, and calls which, is the picture in docs/ARCHITECTURE.md: it is read, and has
to be what the files say. So is the order of the core's objects in daemon/core/state.h.
"""
import fnmatch
import pathlib
import posixpath
import re
import sys

SKIPPED = {"build", "dist", "__pycache__"}  # and hidden folders, but .ci
SOURCES = {".c", ".h", ".def", ".syms", ".cmake", ".py", ".pyi", ".sh", ".toml", ".conf", ".scd", ".in", ".fish", ".zsh", ".bash"}
SOURCE_NAMES = {"CMakeLists.txt", "dev", "run", "rules", "caid.postinst", "caid.postrm"}

# Headers that a folder must do without: what is pure has no loop, no driver and no clock.
IMPURE = {"uv.h", "cuda.h", "time.h", "sys/time.h", "base/clock.h"}
FORBIDDEN = {"daemon/core": IMPURE, "mem": IMPURE}
WIDTH = 100  # columns of a line of C that can be broken: clang-format leaves comments as they are
# The folders that #include searches, in the build's order.
INCLUDE_DIRS = ("proto", "driver", "mem", "daemon/core", "daemon", "client/include", "client", "python", "tests")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
# A function's definition, as clang-format lays it out, with the line before; and what may be a call.
FUNCTION = re.compile(r"^(.*)\n([a-z_]\w*)\(", re.M)
CALL = re.compile(r"(?<![.>])\b([a-z_]\w*)\(")
NAME = re.compile(r"(?<![.>])\b[a-z_]\w*\b")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
PICTURE = pathlib.PurePosixPath("docs/ARCHITECTURE.md")
ORDER = pathlib.PurePosixPath("daemon/core/state.h")
ORDER_ROWS = re.compile(r"Who may call whom.*?\n \*\n((?: \*   [^\n]*\n)+)", re.S)
HOW = {"i": {"i"}, "c": {"c"}, "#": {"i", "c"}}
MARKS = {frozenset(how): mark for mark, how in HOW.items()} | {frozenset(): "."}
LEFT_BEHIND = re.compile(
    r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|not " r"implemented|place" r"holder|(?<![\w./])/(home|root|Users)/\w",
    re.I,
)


def read_picture(text):
    """Of the picture in ARCHITECTURE.md: each folder's marks, by the folder that it knows.

    A row is a letter, a folder, and a mark below the letter of each folder before it: i includes from it,
    c calls it, # both, . neither."""
    rows = re.findall(r"^ ([a-z]) ([a-z/_]+) *([ic#. ]*)$", text, re.M)
    folders = [folder for _, folder, _ in rows]
    return {folder: dict(zip(folders, marks.split())) for _, folder, marks in rows}


def draw_picture(arrows, folders):
    letters = "abcdefghijklmnopqrstuvwxyz"
    width = max(map(len, folders)) + 4
    lines = [" " * width + " ".join(letters[: len(folders) - 1])]
    for i, folder in enumerate(folders):
        marks = (MARKS[frozenset(arrows[folder].get(other, ()))] for other in folders[:i])
        lines.append(f" {letters[i]} {folder}".ljust(width) + " ".join(marks))
    return "\n".join(line.rstrip() for line in lines)


def resolve(root, path, name):
    """The file of the tree that an #include in `path` names, or None for one from outside."""
    for folder in (path.parent, *map(pathlib.PurePosixPath, INCLUDE_DIRS)):
        if (root / folder / name).is_file():
            return pathlib.PurePosixPath(posixpath.normpath(folder / name))
    return None


class Layers:
    """What the folders of the picture include and call."""

    def __init__(self, root, picture):
        self.root = root
        self.picture = picture
        self.texts = {}  # of .c and .h, by path
        self.public = set()  # functions that others can call: (folder, name)

    def folder_of(self, path):
        """The deepest folder of the picture that a file is in, or None."""
        return next((f.as_posix() for f in path.parents if f.as_posix() in self.picture), None)

    def add(self, path, text):
        folder = self.folder_of(path)
        if folder is None or path.suffix not in (".c", ".h"):
            return
        self.texts[path] = text
        for before, name in FUNCTION.findall(text):
            if not before.startswith("static") or path.suffix == ".h":
                self.public.add((folder, name))

    def included(self, path):
        """What a file includes: the name, the file of the tree or None, its folder in the picture or None."""
        for _, name in INCLUDE.findall(self.texts[path]):
            target = resolve(self.root, path, name)
            yield name, target, target and self.folder_of(target)

    def arrows(self):
        """For each folder the others that it knows, and how: {"i", "c"}. What it calls is declared in a header that it
        includes; libcaid's public functions, caid_*, are declared in one folder and defined in others."""
        found = {folder: {} for folder in self.picture}
        for path in self.texts:
            for *_, folder in self.included(path):
                if folder not in (None, self.folder_of(path)):
                    found[self.folder_of(path)].setdefault(folder, set()).add("i")
        called = {folder: set() for folder in self.picture}
        for path in (path for path in self.texts if path.suffix == ".c"):
            text = COMMENT.sub("", self.texts[path])
            own = {name for _, name in FUNCTION.findall(text)}
            called[self.folder_of(path)] |= set(CALL.findall(text)) - own
        for other, name in self.public:
            for folder, names in called.items():
                known = other in found[folder] or (name.startswith("caid_") and folder != other)
                if name in names and known and (folder, name) not in self.public:
                    found[folder].setdefault(other, set()).add("c")
        return found

    def check(self):
        for path in self.texts:
            own = self.folder_of(path)
            for name, target, folder in self.included(path):
                if name in FORBIDDEN.get(own, ()):
                    yield path, f"{own}/ does not include {name}"
                if folder not in (None, own) and self.picture[own].get(folder, ".") not in "i#":
                    yield path, f"{own}/ does not include {target}"
        arrows, folders = self.arrows(), list(self.picture)
        for i, folder in enumerate(folders):
            for other in set(folders[i:]) & set(arrows[folder]):
                yield PICTURE, f"{folder}/ knows {other}/, which comes after it"
        if arrows != {f: {o: HOW[m] for o, m in marks.items() if m != "."} for f, marks in self.picture.items()}:
            yield PICTURE, "the folders are not as in the picture, but\n" + draw_picture(arrows, folders)


class Order:
    """The order in which the core's objects, a .c file each, may call each other: state.h says it."""

    def __init__(self, text):
        rows = ORDER_ROWS.search(text)
        steps = re.sub(r"^ \*", "", rows[1], flags=re.M).split("│") if rows else []
        # By name or pattern: the number of its step, and those that it is in a circle with, if any.
        self.places = {
            name: (step, group) for step, names in enumerate(steps) for group in names.split() for name in group.split("+")
        }

    def place_of(self, name):
        return self.places.get(name) or next((p for n, p in self.places.items() if fnmatch.fnmatchcase(name, n)), None)

    def check(self, texts):
        """texts: of the folder's files, by path. A function belongs to the .c file that defines it; what is inline in
        a header belongs to the structs there, which everybody may know."""
        texts = {path: COMMENT.sub("", text) for path, text in texts.items() if path.parent == ORDER.parent}
        objects = {path.stem for path in texts if path.suffix == ".c"}
        for name in objects:
            if not self.place_of(name):
                yield ORDER, f"{name} has no place in the order"
        for name in self.places:
            if not fnmatch.filter(objects, name):
                yield ORDER, f"{name} is in the order, and no object"
        owner = {
            name: path.stem
            for path, text in texts.items()
            if path.suffix == ".c"
            for before, name in FUNCTION.findall(text)
            if not before.startswith("static")
        }
        for path, text in texts.items():
            own = self.place_of(path.stem)
            known = {name for _, name in FUNCTION.findall(text)}
            if path.suffix != ".c" or not own:
                continue
            for name in sorted((set(NAME.findall(text)) & owner.keys()) - known):
                step, group = self.place_of(owner[name]) or own
                if owner[name] != path.stem and step >= own[0] and group != own[1]:
                    yield path, f"{path.stem} knows {name}() of {owner[name]}, which is not to its left ({ORDER})"


def check_text(path, text):
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.split("\n")[:4]):
        yield "no SPDX line"
    for number, line in enumerate(text.split("\n"), 1):
        if found := LEFT_BEHIND.search(line):
            yield f"line {number}: {found.group()!r} is left behind"
        if len(line) > WIDTH and path.suffix in (".c", ".h", ".def") and not re.match(r'\s*("|#define)', line):
            yield f"line {number}: more than {WIDTH} columns"


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
    layers = Layers(root, read_picture((root / PICTURE).read_text("utf-8")))
    for path in files(root):
        if " " in str(path):
            yield path, "space in a file's name"
        if not is_source(path):
            continue
        text = (root / path).read_text("utf-8")
        layers.add(path, text)
        for what in check_text(path, text):
            yield path, what
    yield from layers.check()
    yield from Order(layers.texts.get(ORDER, "")).check(layers.texts)


def main():
    broken = list(check(pathlib.Path(sys.argv[1])))
    for path, what in broken:
        print(f"{path}: {what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
