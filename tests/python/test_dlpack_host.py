# SPDX-License-Identifier: Apache-2.0
"""DLPack for consumers on the host: without a GPU, and of page-locked memory anywhere, arrays are on kDLCPU.
NumPy, and PyTorch and JAX where they are installed; ./dev fetches JAX, for another Python."""

import gc
import importlib.util
import pathlib
import subprocess

import numpy as np
import pytest
from conftest import after_gate, n_leases
from numba_suite import PYTHON, fetched
from test_dlpack import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, READ_ONLY, Consumer

import caid

KINDS = ["device", "legacy", "pinned", "mapped", "managed"]
CUDAS = {"pinned": CUDA_HOST, "mapped": CUDA_HOST, "managed": CUDA_MANAGED}
FOUR = np.arange(4, dtype="<f4")


def with_numpy():
    can_write = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
    return np.from_dlpack, lambda x: x, np.add if can_write else None


def with_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return torch.from_dlpack, lambda x: x.numpy(), lambda a, b, out: torch.add(a, b, out=out)


def with_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    return jax.dlpack.from_dlpack, np.asarray, None  # it writes to no array


@pytest.fixture(params=[with_numpy, with_torch, with_jax], ids=["numpy", "torch", "jax"])
def library(request):
    return request.param()


@pytest.fixture(params=KINDS)
def array(client, soft, request):
    with client.empty(4, "<f4", memory=request.param) as a:
        a.copy_from_host(FOUR)
        yield a


def test_it_sees_the_same_bytes(library, array):
    take, seen, add = library
    x = take(array)
    np.testing.assert_array_equal(seen(x), FOUR)
    if add is not None:
        add(x, 1, out=x)
        np.testing.assert_array_equal(array.copy_to_host(), FOUR + 1)
    array.copy_from_host(FOUR * 2)
    np.testing.assert_array_equal(seen(x), FOUR * 2)


def test_views_are_seen_as_they_lie(library, client, soft):
    take, seen, _ = library
    twin = np.arange(24, dtype="<i4").reshape(4, 6)
    with client.empty((4, 6), "<i4") as a:
        a.copy_from_host(twin)
        for key in np.s_[:], np.s_[1:], np.s_[2, 3], np.s_[0:0]:
            np.testing.assert_array_equal(seen(take(a[key])), twin[key])
        np.testing.assert_array_equal(seen(take(a.T)), twin.T)


def test_it_keeps_the_memory(library, client, soft):
    take, seen, _ = library
    a = client.empty(4, "<f4")
    a.copy_from_host(FOUR)
    x = take(a)
    a.close()
    np.testing.assert_array_equal(seen(x), FOUR)
    assert n_leases(client) == 1
    del x
    gc.collect()
    assert n_leases(client) == 0


def test_the_host_waits_for_what_is_pending(library, client, streams):
    take, seen, _ = library
    s, _ = streams
    with client.empty(1000, "<i4") as a:
        s.hold_up_copy(a, 7)
        assert (after_gate(s.gate, lambda: np.array(seen(take(a)))) == 7).all()


WAITS = """
import numpy
from conftest import Held
c = caid.connect()
a, source, other = c.empty(1000, "<i4"), c.full(1000, 7, "<i4"), c.full(1000, 8, "<i4")
s = c.stream()
with Held(s):
    a.copy_from(source, stream=s)
    assert not s.query()  # the copy is under way: the driver takes its time
assert (numpy.from_dlpack(a) == 7).all() and s.query()
with Held(s):
    a.copy_from(other, stream=s)
    a.__dlpack__(stream=-1)
    assert not s.query()
s.synchronize()
step("waited")
"""


def test_the_host_waits_for_a_slow_driver(client, child):
    process = child(WAITS, CAID_SOFTCUDA_DELAY_US="100000")
    process.expect("waited")
    process.go()
    assert process.finish()[0] == 0


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_pytorch_sees_types_that_numpy_lacks(client, soft, name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    try:
        torch.from_dlpack(torch.zeros(1).to(getattr(torch, name)))
    except (BufferError, RuntimeError):  # as 2.8
        pytest.skip(f"this PyTorch's DLPack has no {name}, of its own tensors either")
    bits = np.arange(256, dtype="u1")
    with client.empty(256 // getattr(torch, name).itemsize, name) as a:
        a.view("|u1").copy_from_host(bits)
        x = torch.from_dlpack(a)
        assert x.dtype == getattr(torch, name) and not x.is_cuda
        np.testing.assert_array_equal(x.view(torch.uint8).numpy(), bits)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_jax_sees_types_that_numpy_lacks(client, soft, name):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    bits = np.arange(256, dtype="u1")
    with client.empty(256 // jax.numpy.dtype(name).itemsize, name) as a:
        a.view("|u1").copy_from_host(bits)
        x = jax.dlpack.from_dlpack(a)
        assert x.dtype == name and {device.platform for device in x.devices()} == {"cpu"}
        np.testing.assert_array_equal(np.asarray(x).view("u1"), bits)
    client.publish_many("m/", {"x": x, "four": FOUR})  # and they are given back
    with caid.weights.open("m", client=client) as w:
        for key, array in w.jax().items():
            assert np.asarray(array).tobytes() == {"x": x, "four": FOUR}[key].tobytes()
        del array


def test_with_what_is_fetched():
    """By the Python of the foreign programs, which has JAX, and a newer NumPy."""
    if importlib.util.find_spec("jax") is not None:
        pytest.skip("JAX is installed: the other tests have it")
    fetched("jax", "jax")
    run = pathlib.Path(__file__).with_name("run.py")
    ran = subprocess.run(
        [PYTHON, "-X", "dev", run, "-q", "-rs", "-p", "no:cacheprovider", __file__], stdout=subprocess.PIPE, text=True
    )
    assert ran.returncode == 0 and "JAX is not" not in ran.stdout, ran.stdout


def test_pytorchs_as_tensor_takes_page_locked_memory(client):
    """It has no CUDA Array Interface, by which as_tensor() would take it for a GPU's."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with client.array(FOUR, memory="pinned") as a:
        np.testing.assert_array_equal(torch.as_tensor(a).numpy(), FOUR)


def told(a, **wishes):
    c = Consumer(a.__dlpack__(**wishes))
    found = c.tensor.device_type, c.tensor.device_id, c.tensor.data
    c.end()
    return found


def test_what_is_told_of_the_device(array):
    cudas = CUDAS.get(array.memory, CUDA), max(array.mapped_ordinal, 0) if array.memory not in CUDAS else 0
    assert array.__dlpack_device__() == (CPU, 0)
    assert told(array) == told(array, dl_device=(CPU, 0)) == told(array, copy=False) == (CPU, 0, array.host_ptr)
    assert told(array, dl_device=cudas) == (*cudas, array.ptr)
    for other in {(CUDA, 7), (CPU, 1), (CUDA_HOST, 0), (CUDA, 0), (CUDA_MANAGED, 0)} - {cudas}:
        with pytest.raises(BufferError, match="is on DLPack device"):
            array.__dlpack__(dl_device=other)
    copied = told(array, copy=True), told(array, copy=True, dl_device=(CPU, 0)), told(array, copy=True, dl_device=cudas)
    assert [kind for kind, _, _ in copied] == [CPU, CPU, cudas[0]]
    assert array.host_ptr not in [data for _, _, data in copied]


def test_strict_device_memory_is_cudas(array):
    with caid.strict_device():
        kind, _ = array.__dlpack_device__()
        assert kind == {**CUDAS, "pinned": CPU, "mapped": CPU}.get(array.memory, CUDA)
        assert told(array)[0] == kind
        with array._memory.client.empty(0, memory=array.memory) as nothing:
            assert nothing.__dlpack_device__()[0] == kind


def test_read_only_is_told(client, soft):
    with client.create("r", 4, "<f4") as a, client.open("r") as b:
        client.unlink("r")
        for array, flags in (a, 0), (b, READ_ONLY):
            c = Consumer(array.__dlpack__(max_version=(1, 0)))
            assert c.managed.flags == flags
            c.end()
        with pytest.raises(BufferError, match="read-only"):
            b.__dlpack__()
