# SPDX-License-Identifier: Apache-2.0
"""Lets PyPI's PyTorch be imported where NVIDIA's libraries are not installed, to compute on the CPU: makes empty ones, in
its own folder, of the names and with the symbols that it is linked with. None is called.

Symbols of the driver (cuInit and its like) are left out: a library that has them would come before caid's.
"""

import collections
import importlib.util
import pathlib
import re
import subprocess

PRESENT = re.compile(r"lib(dl|c|m|rt|pthread|gcc_s|stdc\+\+|gomp)\.so|ld-linux")
DRIVER = re.compile("cu(?!File)[A-Z]")
LOOSE = "libcudart.so.13"  # has what no version says where it is


def readelf(what, library):
    return subprocess.run(["readelf", what, "-W", library], capture_output=True, text=True, check=True).stdout


def symbols(library):
    """(name, version or "", whether it is defined) of each dynamic symbol."""
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0][:-1].isdigit() and fields[4] in ("GLOBAL", "WEAK"):
            name, _, version = fields[7].partition("@")
            yield name, version.lstrip("@"), fields[6] != "UND"


def homes(library):
    """The library in which each version of a symbol is."""
    here, found = None, {}
    for line in readelf("--version-info", library).splitlines():
        if match := re.search(r"\bFile: (\S+)", line):
            here = match[1]
        elif here and (match := re.search(r"Name: (\S+) +Flags", line)):
            found[match[1]] = here
    return found


def missing(folder):
    """{library: {version: symbols}} that PyTorch's libraries want, and nothing has."""
    libraries = sorted(folder.glob("*.so"))
    have = {path.name for path in folder.glob("*.so*")}
    wanted = collections.defaultdict(lambda: collections.defaultdict(set))
    defined, loose = set(), set()
    for library in libraries:
        for name in re.findall(r"NEEDED.*\[(.*?)\]", readelf("--dynamic", library)):
            if name not in have and not PRESENT.match(name):
                wanted[name][""]
        at = homes(library)
        for name, version, is_defined in symbols(library):
            if is_defined:
                defined.add(name)
            elif at.get(version) in wanted:
                wanted[at[version]][version].add(name)
            elif not version and re.match("_?(cu|nccl|nv)", name):
                loose.add(name)
    if wanted:
        wanted[LOOSE][""] = loose - defined
    return wanted


def make(path, versions):
    names = {name for some in versions.values() for name in some if not DRIVER.match(name)}
    code = [".text", *(f".globl {n}\n.type {n},@function\n{n}: xorl %eax,%eax\nret" for n in sorted(names))]
    code.append('.section .note.GNU-stack,"",@progbits\n')
    source, script = path.with_name("empty.s"), path.with_name("empty.map")
    source.write_text("\n".join(code))
    command = ["cc", "-shared", "-nostdlib", "-o", path, source, f"-Wl,-soname,{path.name}"]
    told = [f"{v} {{ global: {'; '.join(sorted(some))}; }};" for v, some in versions.items() if v and some]
    if told:
        script.write_text("\n".join(told))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)
    for left in source, script:
        left.unlink(missing_ok=True)


def main():
    folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib"
    for name, versions in missing(folder).items():
        make(folder / name, versions)


if __name__ == "__main__":
    main()
