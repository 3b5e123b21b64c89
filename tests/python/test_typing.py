# SPDX-License-Identifier: Apache-2.0
"""The package as type checkers and help() see it: README's Python, that of docs/SHARING.md, and examples/ pass
`mypy --strict`, where that is installed here or ./dev has fetched it, and `pyright`, where that is installed. The
blocks run, too."""

import importlib.util
import inspect
import json
import os
import pathlib
import pydoc
import re
import shutil
import subprocess
import sys
import textwrap

import numpy
import pytest
from numba_suite import PYTHON, fetched

import caid
import caid.storage

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = str(pathlib.Path(caid.__file__).parents[1])

# What README's blocks use and do not say.
GIVEN = """
import multiprocessing
from typing import Any
import caid, caid.weights, numpy, torch, cupy

def load_weights() -> Any: ...
def serve(w: caid.Array, step: int) -> None: ...
def fetch() -> Any: ...
"""
PARAMETERS = "c: caid.Client, w: caid.Array, s: caid.Stream, queue: Any, image: Any, shape: Any, step_7: Any, weights: Any, model: Any"

# What a checker tells: an error in each line that is marked, and in no other.
TOLD = """
from typing import Any
import caid
from caid import Array, NotFoundError, TimeoutError

def use(c: caid.Client, s: caid.Stream) -> int:
    a = c.create("x", (2, 3), memory="pinned")
    c.create("x", 1, memory="no such")  # type: ignore[arg-type]
    c.open("x", "w")  # type: ignore[arg-type]
    c.arena(memory="pinned")  # type: ignore[arg-type]
    with a.write(s) as w, c.bracket(s, read=[a], write=[w]) as (r, *_):
        made: Array = w
        made = r
        w.no_such  # type: ignore[attr-defined]
    try:
        c.open("y")
    except (NotFoundError, TimeoutError) as e:
        return e.code
    except caid.QuotaError as e:
        e.no_such  # type: ignore[attr-defined]
        caid.Nonsense  # type: ignore[attr-defined]
    with c.arena().allocate(10) as x:
        return x.ptr

def annotated(b: caid.Bracket) -> "caid.Bracket[caid.Array]":
    return b
"""


def python_with_mypy():
    if importlib.util.find_spec("mypy"):
        return sys.executable
    fetched("mypy", "mypy")
    return PYTHON


def columns(block):
    """A block as programs: two of one that has two columns."""
    lines = block.split("\n")
    column = re.match(r"# .*? {3,}(?=#)", lines[0])
    if column is None:
        return [block]
    return ["\n".join(line[: column.end()].rstrip() for line in lines), "\n".join(line[column.end() :] for line in lines)]


def blocks(*pages):
    for page in pages:
        for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S):
            yield from columns(block)


@pytest.fixture
def programs(tmp_path):
    """Those of the pages, the examples, and what is to be told, in a folder."""
    programs = [*blocks("README.md", "docs/SHARING.md", "docs/CHANNELS.md")]
    assert len(programs) > 12
    text = GIVEN
    for i, program in enumerate(programs):
        if program.startswith('"""'):
            (tmp_path / f"program_{i}.py").write_text(program)
        else:
            text += f"\ndef block_{i}({PARAMETERS}) -> None:\n" + textwrap.indent(program, "    ")
    (tmp_path / "readme.py").write_text(text)
    (tmp_path / "told.py").write_text(TOLD)
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    return tmp_path


def test_readme_and_examples_pass_mypy(programs):
    python = python_with_mypy()
    options = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", f"--cache-dir={programs / 'cache'}"]
    env = {**os.environ, "MYPYPATH": PACKAGES}
    out = subprocess.run([python, "-m", "mypy", *options, programs], env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


@pytest.mark.skipif(not shutil.which("pyright"), reason="pyright is not installed")
def test_readme_and_examples_pass_pyright(programs):
    settings = {"extraPaths": [PACKAGES], "reportMissingImports": False, "reportMissingModuleSource": False}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    out = subprocess.run(["pyright", "-p", programs], capture_output=True, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


# --- they run ---------------------------------------------------------------------------------

# What a block finds. Both columns of one are in one process, which the second does not know.
FOUND = """
import collections, multiprocessing, sys, types
import numpy as np, numpy, caid
blocks = [open(name).read() for name in sys.argv[1:]]
c = caid.connect()
found = dict(c=c, w=c.ones((4, 3), "f4"), s=c.stream(), weights={"wq": c.ones(2), "wk": c.ones(2)}, numpy=numpy, caid=caid)
found |= dict(image=np.full((480, 640), 7, "f4"), queue=multiprocessing.get_context("spawn").Queue())
found |= dict(client=c, address=0, x=np.ones(4), t=np.ones(4), a=c.ones((4, 3)), S=c.zeros(3, [("x", "<f4"), ("y", "<f4")]))
found |= dict(grid=1, block=1, kernel=collections.defaultdict(lambda: print), use=print, plot=print)
found |= dict(cs=caid.storage, v=caid.storage.zeros((128, 128, 80), halo=(3, 3, 0), defaults="gt:gpu"))
found |= dict(model=types.SimpleNamespace(state_dict=lambda **_: {"a": np.ones(4)}), train=print, batches=range(3))
if "weights.open" in blocks[0]:
    c.publish_many("llama/", {"model.norm.weight": np.ones(4)})
if "open_many" in blocks[0]:
    c.publish_many("llama/", {str(i): c.empty(8, "|u1") for i in range(10_000)})
kept = [dict(found) for _ in blocks]
for block, names in zip(blocks, kept):
    exec(block, names)
"""
FOREIGN = re.compile(r"import (torch|cupy)|\b(torch|cupy)\.|\.torch\(\)")  # tests/gpu has these libraries


def runs(folder, daemon, *programs):
    env = {**os.environ, **daemon.env}
    for name, program in zip("ab", programs):
        (folder / f"{name}.py").write_text(program)
    paths = [folder / f"{name}.py" for name, _ in zip("ab", programs)]
    command = paths if programs[0].startswith(("import caid, ", '"""')) else ["-c", FOUND, *paths]
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{programs[0]}\n{done.stderr}"
    return done.stdout


def test_what_the_pages_show_runs(tmp_path):
    n = 0
    for page in ("README.md", "docs/SHARING.md", "docs/CHANNELS.md", "docs/CONSUMERS.md", "docs/STORAGE.md", "docs/WEIGHTS.md", "docs/MODELS.md"):
        for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S):
            if FOREIGN.search(block):
                continue
            n += 1
            with caid.LocalDaemon(driver="soft") as daemon:
                runs(tmp_path, daemon, *columns(block))
    assert n > 13


def test_readmes_programs_run_as_they_stand_and_again(tmp_path, daemon):
    first, swap = (block for block in blocks("README.md") if "import caid," in block or block.startswith('"""'))
    for _ in range(2):
        assert "786432.0" in runs(tmp_path, daemon, first)
        assert runs(tmp_path, daemon, swap).endswith("step 3 mean 3.0\n")
    runs(tmp_path, daemon, first + first)  # a cell that is run again


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 220


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_readmes_c_compiles(tmp_path):
    (block,) = re.findall(r"^```c\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    program = tmp_path / "program.c"
    head = "#include <caid/caid.h>\n#include <err.h>\nvoid launch_my_kernel(uint64_t at);\nint main(void)\n{\n"
    program.write_text(head + block + "return 0;\n}\n")
    includes = [f"-I{ROOT}/client/include", f"-I{os.environ['CAID_BUILD_DIR']}/include"]
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-Wall", "-Werror", *includes, program], check=True)


def functions():
    """(name, function) of all that is public."""
    for module in (caid, caid.storage):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                yield name, thing
            for base in inspect.isclass(thing) and thing.__mro__ or ():
                for member, value in vars(base).items() if base.__module__.startswith("caid") else ():
                    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                    if inspect.isfunction(value) and not member.startswith("_"):
                        yield f"{name}.{member}", value


def test_what_is_public_is_annotated():
    names = []
    for name, function in functions():
        signature = inspect.signature(function)
        told = [p.annotation for p in signature.parameters.values() if p.name not in ("self", "cls")]
        assert inspect.Signature.empty not in (*told, signature.return_annotation), name
        names.append(name)
    assert {"connect", "Array.write", "Client.open"} <= {*names}


@pytest.mark.parametrize("thing", [getattr(caid, name) for name in caid.__all__], ids=caid.__all__)
def test_help_names_nothing_private(thing):
    text = pydoc.plain(pydoc.render_doc(thing))
    private = re.findall(r".*\b(?:caid\._|_[a-z]+\.[A-Z]).*", text)
    assert [line for line in private if "__annotations__" not in line] == []


def test_what_is_no_stream_is_told_where_it_belongs(client):
    data = [numpy.ones(3), [1, 2, 3], b"abc"]
    with client.empty(3) as a, client.empty(3) as b:
        for x in (*data, b):
            with pytest.raises(TypeError, match=r"copy_from\(\)"):
                a.write(x)
            with pytest.raises(TypeError, match=r"copy_to\(\)"):
                a.read(x)
