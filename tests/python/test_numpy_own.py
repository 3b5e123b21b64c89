# SPDX-License-Identifier: Apache-2.0
"""NumPy's own tests of DLPack with caid's arrays, in page-locked memory."""

import pathlib

import frameworks_own
from numba_suite import PYTHON, fetched


def test_dlpack(daemon):
    suite = frameworks_own.SUITES["numpy-dlpack"]
    file = pathlib.Path(fetched("numpy", suite.file))
    own, ours, n_asked = frameworks_own.run(suite, file, daemon.env, python=PYTHON)
    assert list(frameworks_own.wrong(suite, own, ours, n_asked)) == []
