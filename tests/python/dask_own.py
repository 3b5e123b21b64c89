# SPDX-License-Identifier: Apache-2.0
"""Dask's own tests of NumPy's and CuPy's arrays, with caid's in their place: a plugin for pytest, for test_numpy.py
and test_cupy.py of distributed/protocol/tests. The caller sets CAID_SOCKET."""

import sys
import types

import caid
import caid.dask
import numpy
import pytest
from distributed.protocol import deserialize, serialize

N_SENT = [0]


def to_caid(x):
    """An object array stays what it is."""
    if not isinstance(x, numpy.ndarray) or x.dtype.hasobject:
        return x
    with caid.default_client().empty(x.shape, x.dtype, order="F" if x.flags.fnc else "C") as a:
        a.copy_from_host(x)
        N_SENT[0] += 1
        return a.view()


def to_numpy(a):
    """In the order of its dimensions: copy_to_host() is always C."""
    if not isinstance(a, caid.Array):
        return a
    return a.T.copy_to_host().T if a.is_f_contiguous() else a.copy_to_host()


def ndarray(shape, dtype, memptr, order):
    return memptr.reshape(shape) if order == "C" else memptr.reshape(shape[::-1]).T


def pytest_configure():
    arange = lambda n, dtype: to_caid(numpy.arange(n, dtype=dtype))  # noqa: E731
    sys.modules["cupy"] = types.SimpleNamespace(arange=arange, ndarray=ndarray)
    caid.dask._device_frame = lambda n: caid.default_client().empty(n, "u1")
    caid.Array.data = property(lambda a: a)
    caid.Array.__eq__ = lambda a, b: to_numpy(a) == to_numpy(b)
    caid.Array.__hash__ = object.__hash__


@pytest.fixture(autouse=True)
def arrays_of_caid(request, monkeypatch):
    if request.module.__name__ == "test_numpy":
        monkeypatch.setattr(request.module, "serialize", lambda x, **o: serialize(to_caid(x), **o))
        monkeypatch.setattr(request.module, "deserialize", lambda *a, **o: to_numpy(deserialize(*a, **o)))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"{N_SENT[0]} arrays were caid's")
