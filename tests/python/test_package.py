# SPDX-License-Identifier: Apache-2.0
"""The package itself: what it exports, its stub, its demonstration."""

import ast
import os
import pathlib
import pydoc
import re
import subprocess
import sys

import pytest

import caid
from caid import _caid

PACKAGE = pathlib.Path(caid.__file__).parent
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def test_what_is_exported_is_there_and_has_its_name():
    for name in caid.__all__:
        thing = getattr(caid, name)
        assert thing.__module__ == "caid" and thing.__doc__
    assert {cls.__name__ for cls in caid._base._errors.CLASSES.values()} <= {*caid.__all__}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Access'"):
        _ = caid.Access


def test_dir_names_what_is_there_and_nothing_private():
    names = dir(caid)
    assert {*caid.__all__, "LocalDaemon", "storage", "weights", "__version__"} <= {*names}
    assert [name for name in names if name.startswith("_") and not name.startswith("__")] == []
    for name in names:
        getattr(caid, name)  # as completion does


def test_help_begins_with_what_there_is():
    first = pydoc.plain(pydoc.render_doc(caid)).split("\nPACKAGE CONTENTS")[0]
    assert first.count("\n") < 3 * 24
    for name in ("LocalDaemon", "Client", "Array", "connect()", "caid.weights", "caid.storage", "caid.torch", "caid.ray"):
        assert name in first


MODULES = """
import sys
import caid
assert not {"caid.weights", "caid.storage"} & {*sys.modules}
assert caid.weights is sys.modules["caid.weights"] and caid.storage is sys.modules["caid.storage"]
sys.modules["torch"] = None  # as if there were none
assert not hasattr(caid, "torch")
try:
    caid.torch
except AttributeError as e:
    print(e)
"""


def test_modules_are_imported_when_they_are_named():
    done = subprocess.run([sys.executable, "-c", MODULES], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("caid.torch: ") and "torch" in done.stdout[12:], done.stderr


FIRST = """
import builtins
import sys
real = builtins.compile
def compile(source, filename, mode, *args, **kwargs):
    assert mode == "exec", f"{source!r} is compiled"  # a module's source, where its bytecode is not cached
    return real(source, filename, mode, *args, **kwargs)
builtins.compile = compile
import caid
print(*{"asyncio", "ctypes", "json", "numpy", "socket", "subprocess"} & {*sys.modules})
"""


def test_import_takes_nothing_that_a_first_line_does_not_need():
    """Neither those modules, nor typing's compile() of annotations that are strings."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "\n", done.stdout + done.stderr


EXTRAS = """
import sys
sys.modules[sys.argv[1]] = None  # as if it were not installed
try:
    exec(sys.argv[2])
except ImportError as e:
    print(e)
"""


@pytest.mark.parametrize(
    "lacking, program, extra",
    [
        ("numpy", "import caid.weights", "weights"),
        ("numpy", "import caid.storage", "numpy"),
        ("numpy", "import caid\nwith caid.LocalDaemon(driver='soft') as d, d.connect() as c, c.zeros(3) as a: a.copy_to_host()", "numpy"),
        ("prometheus_client", "import caid.exporter", "exporter"),
    ],
)
def test_what_is_missing_is_told_with_its_extra(lacking, program, extra):
    done = subprocess.run([sys.executable, "-c", EXTRAS, lacking, program], capture_output=True, text=True)
    assert done.stdout.endswith(f"pip install 'caid[{extra}]'" + (" (Debian: python3-prometheus-client)\n" * (extra == "exporter") or "\n"))
    root = pathlib.Path(__file__).resolve().parents[2]
    assert f"\n{extra} = [" in (root / "pyproject.toml").read_text() and f"caid[{extra}]" in (root / "README.md").read_text("utf-8")


def test_the_stub_is_the_extensions():
    tree = ast.parse((PACKAGE / "_caid.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    public = {name for name in vars(_caid) if not name.startswith("_")}
    assert public == {name for name in classes if not name.startswith("_")} | functions
    for name in public & set(classes):
        told = members(classes[name], classes)
        there = {member for member in vars(getattr(_caid, name)) if not member.startswith("__")}
        assert there == {member for member in told if not member.startswith("__")}


def members(node, classes):
    told = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    told |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
    return told.union(*(members(classes[base.id], classes) for base in node.bases))


NO_GPU = "class cuda:\n    is_available = staticmethod(lambda: False)\n"


@pytest.mark.parametrize("library, name", [("torch", "publish_weights_torch"), ("torch", "serve_weights_torch"), ("cupy", "publish_weights_cupy")])
@pytest.mark.parametrize("is_there", [True, False], ids=["no GPU", "no library"])
def test_an_example_stops_with_one_line(tmp_path, library, name, is_there):
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors/torch.py").touch()
    (tmp_path / f"{library}.py").write_text(NO_GPU if is_there else f"raise ImportError('no {library}')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])}
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "needs an NVIDIA GPU" in done.stderr


@pytest.mark.parametrize(
    "name, steps, said",
    [
        ("camera", ["30"], r"(the viewer saw \d+ of \d+ frames, \d+ us old\n|the recorder has \d+ of \d+ frames\n){2}"),
        ("halo_exchange", ["20"], "20 steps on the (host|GPU): the spread went .*\n"),
        ("many_models", ["30", "2"], r"12 models of 2 MiB in the memory of 4: 30 requests to 3 workers\n(.*\n){13}(\d+ of 30 times it was .*\n){1,2}"),
        ("rl_batch", ["12"], r"12 rounds of 8 actors took .* s: the policy is off by 0\.0.*\n.* 4\.8 s\n"),
        ("serve_llm_transformers", [], r"(a worker was ready in .*\n){4}.* MiB a version, memory of 2\..; 0 answers are not .*\n"),
        ("storage_processes", ["20"], "20 steps in two processes: the spread went .*\n"),
        ("train_torch", [], r"loss 0\.0.*, published as version 1\n"),
    ],
)
def test_an_example_runs(daemon, name, steps, said):
    for library in {"torch", "transformers"} & set(re.split("_", name)):
        pytest.importorskip(library, reason=f"{library} is not installed")
    command = [sys.executable, "-X", "dev", EXAMPLES / f"{name}.py", *steps]
    done = subprocess.run(command, env=os.environ | daemon.env, capture_output=True, text=True)
    assert done.returncode == 0 and "ResourceWarning" not in done.stderr, done.stderr
    assert re.fullmatch(said, done.stdout)


def test_the_trainer_is_short():
    assert len((EXAMPLES / "train_torch.py").read_text("utf-8").splitlines()) <= 35


FOLDERS = ["_base", "_handoff", "_memory", "_session", "_interfaces"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_private_folder_knows_those_before_it_alone(folder):
    """docs/ARCHITECTURE.md"""
    known = {"", *FOLDERS[: FOLDERS.index(folder)]}
    for source in (PACKAGE / folder).glob("*.py"):
        imports = [node for node in ast.walk(ast.parse(source.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        others = {(node.module or "").partition(".")[0] for node in imports if node.level == 2}
        assert others <= known | {"_answers", "_caid"}, source


def test_an_arenas_figures_are_in_the_order_of_their_names():
    """The extension makes the tuple by a table of C fields, the package names what is in it."""
    text = (pathlib.Path(__file__).parents[2] / "python/_caid/arena.c").read_text("utf-8")
    (fields,) = re.findall(r"arena_info_fields\[\] = \{(.*?)\}", text, re.DOTALL)
    assert tuple(re.findall(r"F\((\w+)\)", fields)) == caid.ArenaInfo._fields


def test_the_tests_of_the_specifications_are_there():
    """Those that docs/SEEDS.md names."""
    root = pathlib.Path(__file__).parents[2]

    def is_there(file, test):
        path = root / "tests" / (file if "/" in file else f"python/{file}")
        start = rf"^(?:def |\w*(?:TEST|FACT)\w*\((?:\w+, )?){test}\b"
        return re.search(start, path.read_text("utf-8"), re.MULTILINE)

    tables = (root / "docs" / "SEEDS.md").read_text("utf-8")
    named = re.findall(r"`([\w/]+[.](?:py|c))::(\w+)`", tables)
    assert len(named) > 200
    assert [name for name in named if not is_there(*name)] == []


def test_it_is_marked_as_typed():
    assert (PACKAGE / "py.typed").exists()


def test_the_software_driver_is_where_it_says():
    assert os.access(caid.softcuda_path(), os.R_OK)


def test_a_host_view_stays_inside_its_array(client):
    with client.empty(10, "|u1") as a:
        lease = a._memory
        assert len(memoryview(lease.host_view(2, 8, True))) == 8
        for offset, nbytes in [(0, 11), (11, 0), (2, 9), (2**63, 2**63)]:
            try:
                lease.host_view(offset, nbytes, True)
            except ValueError as e:
                assert "exceeds 10 bytes" in str(e)
            else:
                raise AssertionError((offset, nbytes))


def test_the_demonstration():
    out = subprocess.run([sys.executable, "-m", "caid.demo"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert out.stderr == ""
    lines = out.stdout.splitlines()
    assert lines[-1] == "All of it was given back."
    assert sum("bytes are right" in line for line in lines) == 3
    assert sum("read-write" in line for line in lines) == 4
