# SPDX-License-Identifier: Apache-2.0
"""NumPy's, CuPy's and PyTorch's own tests of DLPack with caid's arrays, and CuPy's and PyTorch's own of
CUDA graphs with caid's allocators, each beside a run with their own.

usage: frameworks_own.py FOLDER..., with the sources of CuPy and PyTorch, whose packages have no tests
"""

import importlib.util
import pathlib
import re
import sys
import tempfile
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "driver" / "soft" / "consumers"))
import outcomes  # noqa: E402

SECONDS = 300


class Suite(NamedTuple):
    """Tests of a file, and what is different of them with caid."""

    file: str  # in the package, or in the sources
    changes: str  # what is added at the end, or in place of "import numpy as np"
    at_least: int  # tests that pass with caid
    others: dict  # tests that do not, and why not; a name ends before the first "[" or "_cuda_"
    select: str = ""
    own: str = ""  # what is added without caid

    @property
    def library(self):
        return self.file.partition("/")[0].partition("_")[0]


SUITES = {
    "numpy-dlpack": Suite(
        "numpy/_core/tests/test_dlpack.py",
        "import in_caid; np = in_caid.NumPy()",
        73,
        {
            "test_dunder_dlpack_refcount": "the tensor keeps caid's memory, and not NumPy's array",
            "test_from_dlpack_refcount": "the same",
            "test_dunder_dlpack_stream": "page-locked memory has streams; NumPy's has none",
            "test_roundtrip": "types that are made known to NumPy alone",
            "test_register_conflict": "the same",
            "test_buffererror_bad_dtype": "the same",
        },
    ),
    "cupy-dlpack": Suite(
        "cupy_tests/core_tests/test_dlpack.py",
        "import in_caid; _gen_array = in_caid.of_cupy(_gen_array)",
        12,
        {
            "test_from_dlpack_and_conv_errors": "caid copies on a device; CuPy 14 does not",
            "test_stream_zero_legacy_compat": "the specification disallows stream 0; CuPy warns",
        },
        "TestNewDLPackConversion and not managed",
    ),
    "cupy-graph": Suite(
        "cupy_tests/cuda_tests/test_graph.py", "import in_caid; in_caid.serve_cupy()", 20, {}
    ),
    "torch-dlpack": Suite(
        "torch/test_dlpack.py",
        "import in_caid; make_tensor = in_caid.of_torch(make_tensor)",
        80,
        {},
        "cuda",
    ),
    "torch-graph": Suite(
        "torch/test_cuda.py",
        "import in_caid; in_caid.serve_graphs_of_torch()",
        40,
        {},
        "graph",
        "import in_caid; in_caid.serve_graphs_of_torch(None)",  # its pools, as users make them
    ),
}


def find(suite, sources):
    """Where the file lies; None where it, or the library, is not here."""
    if importlib.util.find_spec(suite.library) is None:
        return None
    places = [pathlib.Path(place) for place in sources]
    if suite.library == "numpy":
        places = [pathlib.Path(importlib.util.find_spec("numpy").origin).parents[1]]
    found = [place / suite.file for place in places if (place / suite.file).is_file()]
    return found[0] if found else None


def changed(text, changes):
    if "np =" in changes:
        return re.sub(r"^import numpy as np$", changes, text, flags=re.M)
    return f"{text}\n\n{changes}\n"


def run(suite, file, env, *, python=sys.executable):
    """(with its own, with caid's, how often caid was asked)"""
    with tempfile.TemporaryDirectory() as at:
        figures, results = pathlib.Path(at, "figures"), []
        env = {**env, "CAID_TEST_FIGURES": str(figures)}
        for way, changes in ("own", suite.own), ("caid", suite.changes):
            path = pathlib.Path(at, way, file.name)
            path.parent.mkdir()
            path.write_text(changed(file.read_text("utf-8"), changes), "utf-8")
            options = [f"--rootdir={path.parent}", *(["-k", suite.select] if suite.select else [])]
            results.append(outcomes.run([path], *options, python=python, env=env, path=[HERE], seconds=SECONDS))
        return *results, int(figures.read_text() or 0) if figures.exists() else 0


def wrong(suite, own, ours, n_asked):
    """What is not as the suite has it, in words."""
    for result in own, ours:
        if result.trouble:
            yield result.trouble
    worse = outcomes.worse(own, ours)
    for name, (outcome, text) in worse.items():
        if base(name) not in suite.others:
            yield f"{name}: {outcome}\n{text}"
    for name in ours.outcomes.keys() - own.outcomes.keys():
        yield f"{name}\n{ours.texts[name]}"
    for name in suite.others.keys() & ({*map(base, own.outcomes)} - {*map(base, worse)}):
        yield f"{name}: passes"
    n_passed = list(ours.outcomes.values()).count("passed")
    if min(n_passed, n_asked) < suite.at_least:
        yield f"{n_passed} passed, and caid was asked {n_asked} times"


def base(name):
    return re.split(r"\[|_cuda_|_cuda$", name.rpartition("::")[2])[0]


def main(*sources):
    import caid

    bad = False
    with caid.LocalDaemon() as daemon:
        for name, suite in SUITES.items():
            file = find(suite, sources)
            if file is None:
                print(f"{name}: not here")
                continue
            own, ours, n_asked = run(suite, file, daemon.env)
            counts = [[*result.outcomes.values()].count("passed") for result in (own, ours)]
            print(f"{name}: {counts[0]} pass with its own, {counts[1]} with caid's, asked {n_asked} times")
            for text in wrong(suite, own, ours, n_asked):
                bad = True
                print(f"WRONG {text}")
    sys.exit(bad)


if __name__ == "__main__":
    main(*sys.argv[1:])
