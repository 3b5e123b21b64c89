# SPDX-License-Identifier: Apache-2.0
"""Every library in a process of its own, on one named array that a kernel in another process wrote.

Needs an NVIDIA GPU; a library that is not installed is skipped by name.
"""

import importlib.util
import os
import shutil
import tempfile
import time

import numpy
import pytest
from conftest import needs, run, start

import caid

N = 1 << 20
SOMEBODY = 61234

# What the producer's kernel writes at i, and so what the sum of all elements is.
KERNEL = 'extern "C" __global__ void fill(float *x) {' \
         ' int i = blockIdx.x * blockDim.x + threadIdx.x; x[i] = (i % 1000) * 0.5f; }'
EXPECTED = sum((i % 1000) * 0.5 for i in range(N))

PRODUCER = f"""
    import cupy
    with caid.connect() as c, c.open("shared", mode="rw") as a:
        x = cupy.asarray(a)
        assert x.data.ptr == a.ptr
        cupy.RawKernel('''{KERNEL}''', "fill")(({N} // 256,), (256,), (x,))
        cupy.cuda.runtime.deviceSynchronize()
"""

CONSUMERS = {
    "cupy": """
        import cupy
        with caid.connect() as c, c.open("shared") as a:
            x = cupy.asarray(a)
            assert x.data.ptr == a.ptr
            print(float(x.sum(dtype="f8")))
    """,
    # torch.as_tensor refuses read-only arrays of any library, and copies without device=.
    "torch": """
        import torch
        with caid.connect() as c, c.open("shared") as r, c.open("shared", mode="rw") as a:
            try:
                torch.as_tensor(r, device="cuda")
            except TypeError:
                pass
            else:
                raise SystemExit("torch takes read-only arrays now: say so in the README")
            x = torch.as_tensor(a, device="cuda")
            assert x.data_ptr() == a.ptr
            print(x.double().sum().item())
    """,
    "jax": """
        import jax
        jax.config.update("jax_enable_x64", True)
        import jax.numpy as jnp
        with caid.connect() as c, c.open("shared") as a:
            x = jnp.asarray(a)
            assert x.unsafe_buffer_pointer() == a.ptr
            print(float(jnp.sum(x.astype("float64")).block_until_ready()))
    """,
    # numba-cuda 0.30 wants a function that NumPy 2.5 has dropped.
    "numba": """
        import numpy
        if not hasattr(numpy, "row_stack"):
            numpy.row_stack = numpy.vstack
        from numba import cuda

        @cuda.jit
        def total(x, out):
            partial = 0.0
            for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
                partial += x[i]
            cuda.atomic.add(out, 0, partial)

        with caid.connect() as c, c.open("shared") as a:
            x = cuda.as_cuda_array(a)
            assert x.device_ctypes_pointer.value == a.ptr
            out = cuda.to_device(numpy.zeros(1))
            total[32, 256](x, out)
            print(out.copy_to_host()[0])
    """,
}


@pytest.fixture(scope="module")
def shared(daemon):
    """The named array, held by nobody, as a kernel of another process left it."""
    needs("cupy")
    with daemon.connect() as c:
        c.create("shared", (N,), "<f4").close()
        run(daemon.env, PRODUCER)
        yield c
        c.unlink("shared")
        deadline = time.monotonic() + 30
        while c.memory_info().used:  # the driver takes it back in its own time
            c.flush()
            assert time.monotonic() < deadline


@pytest.mark.parametrize("library", CONSUMERS)
def test_reads_what_a_kernel_of_another_process_wrote(daemon, shared, library):
    needs(library)
    assert float(run(daemon.env, CONSUMERS[library])) == pytest.approx(EXPECTED)


def test_all_at_once(daemon, shared):
    needs("numba")  # and CuPy, without which nothing is shared
    libraries = [name for name in CONSUMERS if importlib.util.find_spec(name)]
    processes = {name: start(daemon.env, CONSUMERS[name]) for name in libraries}
    for name, process in processes.items():
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, f"{name}: {err}"
        assert float(out) == pytest.approx(EXPECTED), name
    assert {"cupy", "numba"} <= processes.keys()


def test_read_only_is_refused_a_write(daemon, shared):
    """By the copy functions before any driver call; a kernel's store by the page tables, which
    ends that process's context and nobody else's."""
    run(daemon.env, """
        import numpy
        with caid.connect() as c, c.open("shared") as a:
            try:
                a.copy_from_host(numpy.zeros(a.shape, "f4"))
            except caid.ReadOnlyError:
                pass
            else:
                raise SystemExit("written")
    """)
    out = run(daemon.env, f"""
        import cupy
        with caid.connect() as c, c.open("shared") as a:
            x = cupy.asarray(a)
            cupy.RawKernel('''{KERNEL.replace("0.5f", "9.0f")}''', "fill")((16,), (256,), (x,))
            try:
                cupy.cuda.runtime.deviceSynchronize()
            except cupy.cuda.runtime.CUDARuntimeError as e:
                print(e.status)
        import os
        os._exit(0)  # the context is gone: nothing can be cleaned up
    """)
    assert int(out) == 700  # cudaErrorIllegalAddress
    assert float(run(daemon.env, CONSUMERS["cupy"])) == pytest.approx(EXPECTED)


def test_numpy_gets_no_pointer_to_device_memory(daemon, shared):
    run(daemon.env, """
        with caid.connect() as c, c.open("shared") as a:
            assert not hasattr(a, "__array_interface__")
            assert a.copy_to_host()[999] == 499.5
    """)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_two_uids():
    """A uid's own pool is 0600: another uid is told the same as for a name that is not there.
    A configured pool that lets it read gives it the same memory."""
    config = (f'[pool "models"]\nowner = 0\ngroup = {SOMEBODY}\nmode = 0640\n'
              '[pool "private"]\nowner = 0\nmode = 0600\n')
    with caid.LocalDaemon(config=config) as d, tempfile.TemporaryDirectory() as t:
        # The daemon's directory is closed to others on purpose; this one lets them through.
        os.chmod(t, 0o755)
        os.chmod(os.path.dirname(d.address), 0o711)
        with d.connect() as c:
            for pool in (None, "models", "private"):
                with c.create("weights", (N,), "<f4", pool=pool) as a:
                    a.copy_from_host(numpy.arange(N, dtype="f4"))
            # Nor may others enter the tree that is tested.
            shutil.copytree(os.path.dirname(caid.__file__), os.path.join(t, "caid"))
            out = run({**d.env, "HOME": t, "PYTHONPATH": t}, """
                import numpy

                def refused(call, *args, **options):
                    try:
                        call(*args, **options)
                    except caid.Error as e:
                        return type(e).__name__
                    raise SystemExit("not refused")

                with caid.connect() as c:
                    print(refused(c.open, "weights"))
                    print(refused(c.open, "weights", pool="uid:0"))
                    print(refused(c.open, "weights", pool="private"))
                    print(refused(c.open, "absent", pool="private"))
                    print(refused(c.unlink, "weights", pool="uid:0"))
                    print(refused(c.open, "weights", "rw", pool="models"))
                    with c.open("weights", pool="models") as a:
                        print((a.copy_to_host() == numpy.arange(a.size)).all())
                    with c.create("weights", (4,), "<f4") as mine:
                        print(mine.pool)
                    c.unlink("weights")
            """, user=SOMEBODY, group=SOMEBODY, extra_groups=[])
            assert out.split() == ["NotFoundError"] * 5 + ["AccessError", "True", f"uid:{SOMEBODY}"]
            for pool in (None, "models", "private"):
                c.unlink("weights", pool=pool)
