# SPDX-License-Identifier: Apache-2.0
"""bfloat16 and float8 through other libraries and back, bit for bit."""

import pytest
from conftest import needs, run

SCRIPT = """
    import sys
    import ml_dtypes, numpy
    dtype = numpy.dtype(getattr(ml_dtypes, sys.argv[1]))
    values = numpy.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)

    def seen(array):
        assert array.dtype == dtype, array.dtype
        return array.copy_to_host().tobytes()

    with caid.connect() as c:
        c.create("typed", values.shape, dtype).copy_from_host(values)
        with c.open("typed", mode="rw") as a:
            assert seen(a) == values.tobytes()
            x = take(a)
            back = caid.from_dlpack(x)
            assert back.ptr == a.ptr and seen(back) == values.tobytes()
            assert bits(x) == values.tobytes()
            fresh = made(values)
            assert seen(caid.from_dlpack(fresh)) == values.tobytes()
        c.unlink("typed")
"""

LIBRARIES = {
    "torch": """
    import torch
    take = torch.from_dlpack
    bits = lambda x: x.view(torch.uint8).cpu().numpy().tobytes()
    def made(values):
        return torch.tensor(values.view("u1"), device="cuda").view(getattr(torch, sys.argv[1]))
    """,
    "jax": """
    import jax.dlpack, jax.numpy
    take = jax.dlpack.from_dlpack
    bits = lambda x: numpy.asarray(x).tobytes()
    made = jax.numpy.asarray
    """,
    "cupy": """
    import cupy
    take = cupy.from_dlpack
    bits = lambda x: cupy.asnumpy(x).tobytes()
    made = cupy.asarray
    """,
}


# CuPy 14 has no float8.
@pytest.mark.parametrize("library, dtype", [
    ("torch", "bfloat16"), ("torch", "float8_e4m3fn"), ("torch", "float8_e5m2"),
    ("jax", "bfloat16"), ("jax", "float8_e4m3fn"), ("jax", "float8_e5m2"),
    ("cupy", "bfloat16"),
])
def test_there_and_back(daemon, library, dtype):
    needs(library, "ml_dtypes")
    run(daemon.env, LIBRARIES[library] + SCRIPT, [dtype])


def test_jax_sees_page_locked_memory(daemon):
    needs("jax")
    out = run(daemon.env, """
        import jax.dlpack, numpy
        with caid.connect() as c, c.empty(4, "<f4", memory="pinned") as a:
            a.copy_from_host(numpy.arange(4, dtype="<f4"))
            x = jax.dlpack.from_dlpack(a)
            print({device.platform for device in x.devices()}, numpy.asarray(x))
            del x
    """)
    assert out == "{'cpu'} [0. 1. 2. 3.]\n"
