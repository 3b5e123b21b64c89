# SPDX-License-Identifier: Apache-2.0
"""caid.cuda_core with cuda.core itself: by cuda_core_programs.py, in this Python or in the one for which
./dev has fetched that package."""

import importlib.util
import os
import pathlib
import subprocess
import sys

from numba_suite import PYTHON, fetched, find_driver


def has_cuda_core():
    try:
        return importlib.util.find_spec("cuda.core") is not None
    except ModuleNotFoundError:  # nor "cuda"
        return False


def test_programs(tmp_path):
    python = sys.executable
    if not has_cuda_core():
        fetched("cuda-core", "cuda/core")
        python = PYTHON
    env = dict(os.environ)
    if env["CAID_CUDA_DRIVER"] == "soft":
        env.update(find_driver("LD_LIBRARY_PATH", tmp_path))
    programs = pathlib.Path(__file__).with_name("cuda_core_programs.py")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", programs]
    out = subprocess.run(command, env=env, capture_output=True, text=True)
    assert out.returncode == 0 and " passed" in out.stdout, out.stdout + out.stderr
