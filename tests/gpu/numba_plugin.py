# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for numba_own.py: with CAID_TEST_INJECT=1, caid's memory manager set by a call."""
import importlib
import os

if os.environ.get("CAID_TEST_INJECT") == "1":
    import caid.numba

    importlib.import_module(os.environ["CAID_TEST_NUMBA"] + ".cuda").set_memory_manager(caid.numba.MemoryManager)
