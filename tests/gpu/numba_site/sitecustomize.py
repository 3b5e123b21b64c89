# SPDX-License-Identifier: Apache-2.0
"""What numba-cuda's own tests import and the machine may lack, for numba_own.py: first in PYTHONPATH, it is
run as each interpreter starts, those too that the tests start themselves."""
import importlib.util
import sys
import types

import numpy

if not hasattr(numpy, "row_stack"):  # numba-cuda 0.30 wants it; NumPy 2.5 has dropped it
    numpy.row_stack = numpy.vstack


def stand_in_for_filecheck():
    """For the import alone: tests that use it fail, and with any memory manager."""
    for name, what in (("matcher", "Matcher"), ("options", "Options"), ("parser", "Parser"),
                       ("finput", "FInput")):
        module = types.ModuleType(f"filecheck.{name}")
        setattr(module, what, None)
        sys.modules[module.__name__] = module
    sys.modules["filecheck.parser"].pattern_for_opts = None
    sys.modules["filecheck"] = types.ModuleType("filecheck")


if importlib.util.find_spec("filecheck") is None:
    stand_in_for_filecheck()
