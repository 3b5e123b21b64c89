# SPDX-License-Identifier: Apache-2.0
"""Numba, unchanged, on the software driver: consumer and producer of the same memory."""

import importlib.util
import os
import subprocess
import sys

import pytest

import caid

CODE = """
import os
import sys
import threading
import numpy as np
from numba import cuda
import caid
import caid.storage as cs
from conftest import NON_BLOCKING, Stream

twin = np.arange(24, dtype="<f4").reshape(4, 6)
with caid.connect(sys.argv[1]) as c, c.create("weights", (4, 6), "<f4") as a:
    a.copy_from_host(twin)

    # Numba takes ours: the same address, shape and strides.
    n = cuda.as_cuda_array(a)
    assert n.device_ctypes_pointer.value == a.ptr
    np.testing.assert_array_equal(n.copy_to_host(), twin)
    np.testing.assert_array_equal(cuda.as_cuda_array(a[1]).copy_to_host(), twin[1])
    v = cuda.as_cuda_array(a[::2, 1:4])
    assert (v.shape, v.strides) == ((2, 3), (48, 4))
    n.copy_to_device(twin * 2)
    np.testing.assert_array_equal(a.copy_to_host(), twin * 2)
    assert cuda.as_cuda_array(a[2:2]).size == 0

    # We take Numba's: cuMemAlloc memory, on a stream of its own.
    s = cuda.stream()
    theirs = cuda.to_device(twin, stream=s)
    with caid.as_array(theirs) as b, c.as_array(theirs[1:3]) as rows, c.empty_like(theirs) as e:
        np.testing.assert_array_equal(b.copy_to_host(), twin)
        np.testing.assert_array_equal(rows.copy_to_host(), twin[1:3])
        e.copy_from(theirs)
        np.testing.assert_array_equal(e.copy_to_host(), twin)
        rows.copy_from(a[:2])
    np.testing.assert_array_equal(theirs.copy_to_host()[1:3], twin[:2] * 2)

    record = np.dtype([("x", "<f4"), ("y", "<i8")], align=True)
    with c.empty(3, record) as r:
        r.copy_from(cuda.to_device(np.zeros(3, record)))
        assert r.copy_to_host().dtype.names == ("x", "y")

    # Ours with work that is pending, of a copy and of a bracket: Numba waits for the stream that is
    # named, and sees old data where none is.
    seven = caid.pinned_array(1000, "<i4")
    seven[:] = 7
    for bracket in (False, True):
        s = Stream(NON_BLOCKING)
        with c.create("pending", 1000, "<i4") as a:
            c.unlink("pending")
            a.copy_from_host(np.zeros(1000, "<i4"))
            s.hold_up()
            if bracket:
                with a.write(s.number) as v:
                    s.fill(v, 7)
                    inside = v
            else:
                a.copy_from_host(seven, stream=s.number)
            expected = 0x07070707 if bracket else 7
            os.environ["CAID_CAI_SYNC"] = "0"
            assert (cuda.as_cuda_array(a).copy_to_host() == 0).all()
            del os.environ["CAID_CAI_SYNC"]
            threading.Timer(0.05, s.gate.set).start()
            assert (cuda.as_cuda_array(a).copy_to_host() == expected).all()
            if bracket:
                assert (cuda.as_cuda_array(inside).copy_to_host() == expected).all()
                inside.close()
        s.close()

    # So it is with what a storage tells of itself.
    for managed in (None, "gt4py", "cuda"):
        s, g = Stream(NON_BLOCKING), cs.zeros(1000, "<i4", device="gpu", managed=managed, client=c)
        g.synchronize()
        s.hold_up()
        with cs.fields(write=[g], device="gpu", stream=s.number) as (v,):
            s.fill(v, 7)
        threading.Timer(0.05, s.gate.set).start()
        n = cuda.from_cuda_array_interface(g.__gt_data_interface__["gpu"], g)
        assert (n.copy_to_host() == 0x07070707).all(), managed
        s.close()
        del g, n, v
print("right")
"""


def test_numba_on_the_software_driver(client, daemon, soft):
    if importlib.util.find_spec("numba") is None:
        pytest.skip("Numba is not installed")
    environment = {
        **os.environ,
        "NUMBA_CUDA_DRIVER": caid.softcuda_path(),
        "NUMBA_CUDA_ARRAY_INTERFACE_SYNC": "1",
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]),
    }
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, daemon.address],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (out.stdout, out.returncode) == ("right\n", 0), out.stderr
