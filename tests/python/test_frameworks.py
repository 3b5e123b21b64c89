# SPDX-License-Identifier: Apache-2.0
"""caid.torch and caid.cupy, with stand-ins for the two libraries, which do not run without a GPU
(tests/gpu/test_frameworks.py). PyTorch's C functions alone are in test_frameworks_functions.py."""

import ctypes
import gc
import importlib
import os
import sys
import threading
import weakref

import frameworks
import pytest
from arenas import seen_behind
from conftest import NON_BLOCKING, PATIENCE_S, Stream, refuses, wait_until

import caid
from caid import _caid

KIB, MIB = 1 << 10, 1 << 20
SMALL = f'[pool "small"]\nowner = {os.getuid()}\nmode = 0600\nquota = 64M\n'

@pytest.fixture(autouse=True)
def no_error_left():
    yield
    assert _caid.torch_error() is None


# --- CuPy -----------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch, soft):
    stand_in = frameworks.install(monkeypatch, frameworks.cupy())
    importlib.import_module("caid.cupy")
    yield stand_in
    del sys.modules["caid.cupy"], caid.cupy


@pytest.fixture
def allocator(cupy, client):
    made = caid.cupy.Allocator(client)
    yield made
    check_empty(client, made._arenas.values())


def check_empty(client, arenas):
    """All that was allocated is gone, with the names under which it was published."""
    for entry in client.list():
        client.unlink(entry.name)
    gc.collect()
    for arena in arenas:
        wait_until(lambda arena=arena: arena.info.allocations == 0 and arena.info.published == 0)
        arena.trim()
        assert arena.info.blocks == 0


def test_cupy_memory_is_freed_with_its_last_pointer(cupy, allocator):
    p = allocator.malloc(KIB)
    assert (p.device_id, p.mem.size) == (0, KIB)
    info = allocator.arena().info
    assert (info.allocations, info.allocated) == (1, KIB)
    view = cupy.cuda.MemoryPointer(p.mem, 512)
    del p
    assert allocator.arena().info.allocations == 1
    del view
    assert allocator.arena().info.allocations == 0


def test_cupy_no_bytes(allocator):
    p = allocator.malloc(0)
    assert (p.ptr, p.mem.size, p.device_id) == (0, 0, 0)


def test_cupy_a_device_that_the_daemon_has_not_got(cupy, allocator):
    cupy.ordinal = 5
    with pytest.raises(caid.DeviceError):
        allocator.malloc(KIB)
    with pytest.raises(caid.DeviceError):
        allocator.arena()
    cupy.ordinal = 0
    assert allocator.arena() is allocator.arena(0)


@pytest.mark.parametrize("error, options", [
    (caid.NotFoundError, {"pool": "no such"}),
    (caid.InvalidError, {"memory": "no such"}),
])
def test_cupy_what_cannot_be_is_refused_at_once(cupy, client, error, options):
    with pytest.raises(error, match="no such"):
        caid.cupy.Allocator(client, **options)


def test_cupy_out_of_memory_is_its_own_error(cupy):
    """So that a pool of CuPy's on top gives back what it has, and asks again."""
    with caid.LocalDaemon(config=SMALL) as d, d.connect() as c:
        allocator = caid.cupy.Allocator(c, pool="small")
        held = allocator.malloc(40 * MIB)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as e:
            allocator.malloc(40 * MIB)
        assert e.value.status == 2 and type(e.value.__cause__) is caid.QuotaError
        pool = cupy.cuda.MemoryPool(allocator.malloc)
        pool.keep(held)
        del held
        assert pool.malloc(50 * MIB).mem.size == 50 * MIB
        del pool
        c.close()
        with pytest.raises(caid.ClosedError):
            allocator.malloc(KIB)


def array_of(cupy, allocator, shape, dtype, strides=None):
    nbytes = frameworks.numpy.dtype(dtype).itemsize * int(frameworks.numpy.prod(shape)) * 4
    return cupy.ndarray(shape, dtype, allocator.malloc(nbytes), strides)


@pytest.mark.parametrize("shape, dtype, strides", [
    ((4, 6), "<f4", None),
    ((4, 0), "<f4", None),
    ((4, 3), "<i8", (96, 16)),
    ((5,), [("x", "<f4"), ("y", "<i4")], None),
    ((), "<c8", None),
])
def test_cupy_publishes_with_no_copy(cupy, allocator, other, shape, dtype, strides):
    x = array_of(cupy, allocator, shape, dtype, strides)
    if x.size:
        ctypes.memset(x.data.ptr, 3, 8)
    generation = allocator.publish("x", x, metadata={"step": 7})
    with other.open("x") as a:
        assert a.generation == generation
        assert (a.shape, a.dtype, a.metadata) == (shape, x.dtype, {"step": 7})
        if x.size:
            assert a.strides == (strides or frameworks.numpy.empty(shape, dtype).strides)
        assert a.copy_to_host().tobytes()[:8] == bytes([3]) * (8 if x.size else 0)


def test_cupy_what_is_published_is_kept(cupy, allocator, client, other):
    x = array_of(cupy, allocator, (1000,), "<i4")
    x.__class__ = type("ndarray", (frameworks.CupyArray,), {})
    kept = weakref.ref(x)
    caid.cupy.publish("x", x)
    with other.open("x"):
        del x
        client.unlink("x")
        client.flush()
        gc.collect()
        assert kept() is not None and allocator.arena().info.allocations == 1
    wait_until(lambda: kept() is None)
    assert allocator.arena().info.allocations == 0


def test_cupy_waits_for_the_current_stream(cupy, allocator, client, unconcerned):
    s = Stream(NON_BLOCKING)
    x = array_of(cupy, allocator, (MIB,), "|u1")
    s.hold_up()
    s.fill(Filled(x.data.ptr, MIB), 7)
    cupy.stream = frameworks.CupyStream(s.number)
    unconcerned.hold_up()
    assert (seen_behind(client, s, lambda: allocator.publish("x", x)) == 7).all()
    s.close()


@pytest.fixture
def unconcerned(soft):
    """A stream that is held up until the end."""
    s = Stream(NON_BLOCKING)
    yield s
    s.close()


class Filled:
    """For Stream.fill()."""

    def __init__(self, ptr, nbytes):
        self.ptr, self.nbytes = ptr, nbytes


def test_cupy_refuses_what_it_has_not_allocated(cupy, allocator, client):
    with pytest.raises(TypeError, match="list"):
        allocator.publish("x", [1, 2])
    with client.empty(100) as a:
        elsewhere = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(a.ptr, 800, a, 0), 0)
        with pytest.raises(ValueError, match="set_allocator"):
            allocator.publish("x", cupy.ndarray((100,), "<f8", elsewhere))
        of_another = array_of(cupy, caid.cupy.Allocator(client), (100,), "<f8")
        with pytest.raises(ValueError, match="set_allocator"):
            allocator.publish("x", of_another)
        of_another = None
    with pytest.raises(caid.InvalidError):
        allocator.publish("x", array_of(cupy, allocator, (100,), "<f8", (-8,)))
    with pytest.raises(caid.InvalidNameError):
        allocator.publish("", array_of(cupy, allocator, (100,), "<f8"))


def test_cupy_finds_the_allocator_of_an_array(cupy, allocator, client, other):
    closed = caid.cupy.Allocator(client)
    lost = array_of(cupy, closed, (10,), "<i4")
    closed.arena().close()
    unused = caid.cupy.Allocator(client)
    x = array_of(cupy, allocator, (10,), "<i4")
    for of in (x, cupy.ndarray((0,), "<i4", allocator.malloc(0))):
        generation = caid.cupy.publish("x", of, metadata=[1])
        with other.open("x") as a:
            assert (a.generation, a.shape, a.metadata) == (generation, of.shape, [1])
    with client.empty(100) as a:
        elsewhere = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(a.ptr, 800, a, 0), 0)
        with pytest.raises(ValueError, match="Allocator that can be asked.*set_allocator"):
            caid.cupy.publish("x", cupy.ndarray((100,), "<f8", elsewhere))
    with pytest.raises(ValueError, match="Allocator") as e:
        caid.cupy.publish("x", lost)
    assert type(e.value.__cause__) is caid.ClosedError
    with pytest.raises(TypeError, match="list"):
        caid.cupy.publish("x", [1])
    assert len(caid.cupy._allocators) == 3
    e = unused = None  # noqa: F841
    assert len(caid.cupy._allocators) == 2  # they are found, not kept


def test_cupy_defers(cupy, allocator):
    with allocator.defer_cleanup():
        for _ in range(30):
            allocator.malloc(KIB)
        assert allocator.arena().info.pending == 30
    allocator.malloc(KIB)
    assert allocator.arena().info.pending == 0


def test_cupy_may_capture_a_graph(cupy, allocator, unconcerned):
    """What is freed meanwhile waits, in whichever way it is freed, and goes with what comes next."""
    pool = cupy.cuda.MemoryPool(allocator.malloc)
    allocator.malloc(KIB)
    cupy.stream = frameworks.CupyStream(unconcerned.number)
    with unconcerned.captures():
        for _ in range(30):
            allocator.malloc(KIB)
        pool.keep(pool.malloc(40 * MIB))
        del pool
        allocator.arena().flush()
        allocator.arena().trim()
        assert allocator.arena().info.pending == 32
    allocator.malloc(KIB)
    assert allocator.arena().info.pending == 0
    cupy.stream = None  # CuPy's modules may end before its arrays
    kept = [allocator.malloc(KIB) for _ in range(12)]
    del kept
    assert allocator.arena().info.pending < 12


# --- PyTorch --------------------------------------------------------------------------------


@pytest.fixture
def torch(monkeypatch, soft):
    """Each test has a module of its own, and so a set-up."""
    stand_in = frameworks.install(monkeypatch, frameworks.torch())
    importlib.import_module("caid.torch")
    yield stand_in
    setup = caid.torch._setup
    if setup and not setup.client.closed:
        check_empty(setup.client, setup.arenas.values())
    del sys.modules["caid.torch"], caid.torch


@pytest.fixture
def pool(torch, client):
    return caid.torch.MemPool(client, no_split=True)


def tensor_of(torch, pool, shape, dtype="float32", **options):
    dtype = getattr(torch, dtype)
    nbytes = dtype.itemsize * int(frameworks.numpy.prod(shape)) * 4
    return torch.Tensor(pool.storage(nbytes), shape, dtype, **options)


def test_torch_memory_is_freed_with_its_storage(torch, pool):
    assert isinstance(pool, torch.cuda.MemPool) and pool.no_split
    storage = pool.storage(KIB)
    arena = caid.torch.arena()
    assert arena is caid.torch.arena(0) and arena.find(storage.ptr)[0] == storage.ptr
    del storage
    info = arena.info
    assert (info.allocations, info.pending) == (0, 0)
    with pytest.raises(caid.DeviceError, match="device 3"):
        caid.torch.arena(3)


def test_torch_has_one_set_up(torch, client, other):
    first = caid.torch.allocator(client, block_size=4 * MIB)
    for args in ({}, {"block_size": 4 * MIB}, {"memory": "device"}, {"max_pending_count": 0}):
        assert caid.torch.allocator(**args) is caid.torch.allocator(client, **args) is first
    for args in ({"block_size": 8 * MIB}, {"memory": "legacy"}, {"pool": "x"}, {"max_pending_age": 1}):
        with pytest.raises(RuntimeError, match="set up with.*4194304.*not with") as e:
            caid.torch.allocator(client, **args)
        assert str(e.value).endswith(f"not with {args}")
    caid.torch.MemPool()
    with pytest.raises(RuntimeError, match="already"):
        caid.torch.MemPool(other)


def test_torch_is_set_up_anew_when_its_client_is_closed(torch, client, daemon):
    with daemon.connect() as gone:
        old_pool = caid.torch.MemPool(gone)
        old = old_pool.storage(KIB)
        assert caid.torch.arena().info.allocations == 1
        del old
        caid.torch.arena().trim()
    with refuses(caid.ClosedError):
        caid.torch.arena().info  # noqa: B018
    pool = caid.torch.MemPool(client, memory="legacy")
    gc.collect()
    storages = pool.storage(KIB), old_pool.storage(KIB)  # which has its allocator still
    assert caid.torch.arena().info.allocations == 2
    del storages


AT_EXIT = """
import os
import frameworks
stand_in = frameworks.torch()
for name, module in {"torch": stand_in, **frameworks.submodules(stand_in)}.items():
    sys.modules[name] = module
apart = {"write": os.write}  # keeps nothing of this program
exec("def ends(self): write(1, b'the pool ends\\\\n')", apart)
exec("def freed(self): write(1, b'the allocator is freed\\\\n')", apart)
frameworks.MemPool.__del__ = apart["ends"]
frameworks.PluggableAllocator.__del__ = apart["freed"]
import caid.torch
pool = caid.torch.MemPool()
if sys.argv[1] == "cycle":
    class Cycle: pass
    cycle = Cycle()
    cycle.me, cycle.pool = cycle, pool
    del pool
if sys.argv[1] == "module":
    stand_in.kept, pool = pool, None
"""


@pytest.mark.parametrize("how", ["plain", "cycle", "module"])
def test_torch_has_its_allocator_to_the_end(child, soft, how):
    """A pool has a plain pointer into it, and may go after all modules."""
    c = child(AT_EXIT, how)
    said, errors = c.process.communicate(timeout=PATIENCE_S)
    assert (c.process.returncode, errors) == (0, "")
    assert said in ("", "the pool ends\n")


@pytest.mark.parametrize("error, options", [
    (caid.NotFoundError, {"pool": "no such"}),
    (caid.InvalidError, {"memory": "no such"}),
])
def test_torch_what_cannot_be_is_refused_at_once(torch, client, error, options):
    with pytest.raises(error, match="no such"):
        caid.torch.MemPool(client, **options)
    caid.torch.MemPool(client)


def test_torch_devices_that_the_daemon_has_not_got(torch, client):
    torch.n_devices = 3
    pool = caid.torch.MemPool(client)
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        pool.storage(KIB, device=2)
    error = caid.torch.last_error()
    assert type(error) is caid.DeviceError and "device 2" in str(error)


def test_torch_sees_no_device(torch, client):
    torch.n_devices = 0
    with pytest.raises(caid.DeviceError, match="none of the 0"):
        caid.torch.MemPool(client)


def test_torch_last_error_tells_of_a_quota(torch):
    with caid.LocalDaemon(config=SMALL) as d, d.connect() as c:
        pool = caid.torch.MemPool(c, pool="small")
        held = pool.storage(40 * MIB)
        with pytest.raises(MemoryError):
            pool.storage(40 * MIB)
        error = caid.torch.last_error()
        assert type(error) is caid.QuotaError and "small" in str(error)
        assert caid.torch.last_error() is None
        del held
        storage = pool.storage(50 * MIB)
        del storage


@pytest.mark.parametrize("dtype, typestr", [
    ("bool", "|b1"), ("uint8", "|u1"), ("int8", "|i1"), ("int16", "<i2"), ("int32", "<i4"), ("int64", "<i8"),
    ("float16", "<f2"), ("float32", "<f4"), ("float64", "<f8"), ("complex64", "<c8"), ("complex128", "<c16"),
    ("uint16", "<u2"),
])
def test_torch_publishes_with_no_copy(torch, pool, other, dtype, typestr):
    x = tensor_of(torch, pool, (4, 6), dtype, requires_grad=True)
    ctypes.memset(x.data_ptr(), 1, 8)
    generation = caid.torch.publish("x", x, metadata={"step": 7})
    with other.open("x") as a:
        assert a.generation == generation
        assert (a.shape, a.typestr, a.metadata) == ((4, 6), typestr, {"step": 7})
        assert bytes(a.copy_to_host().tobytes()[:8]) == bytes([1]) * 8


def test_torch_publishes_views(torch, pool, other):
    x = tensor_of(torch, pool, (6, 4), "int32", strides=(1, 6), offset=8)
    ctypes.memset(x.data_ptr(), 5, 4)
    caid.torch.publish("x", x)
    with other.open("x") as a:
        assert (a.shape, a.strides, a.copy_to_host()[0, 0]) == ((6, 4), (4, 24), 0x05050505)


def test_torch_what_is_published_is_kept(torch, pool, client, other):
    x = tensor_of(torch, pool, (1000,))
    kept = weakref.ref(x.storage)
    caid.torch.publish("x", x)
    with other.open("x"):
        del x
        client.unlink("x")
        client.flush()
        gc.collect()
        assert kept() is not None and caid.torch.arena().info.allocations == 1
    wait_until(lambda: kept() is None)
    assert caid.torch.arena().info.allocations == 0


def test_torch_waits_for_the_current_stream(torch, pool, client, unconcerned):
    s = Stream(NON_BLOCKING)
    x = tensor_of(torch, pool, (MIB,), "uint8")
    s.hold_up()
    s.fill(Filled(x.data_ptr(), MIB), 7)
    torch.stream = frameworks.TorchStream(s.number)
    unconcerned.hold_up()
    assert (seen_behind(client, s, lambda: caid.torch.publish("x", x)) == 7).all()
    s.close()


def test_torch_refuses_what_cannot_be_told(torch, pool, client):
    def refused(error, match, *args, **options):
        with pytest.raises(error, match=match):
            caid.torch.publish("x", tensor_of(torch, pool, *args, **options))

    refused(TypeError, r"view\(torch.uint8\)", (4,), "quint8")
    refused(TypeError, "sparse", (4,), layout="torch.sparse_coo")
    refused(TypeError, "resolve_conj", (4,), "complex64", lazy="conj")
    refused(TypeError, "resolve_neg", (4,), lazy="neg")
    refused(ValueError, "use_mem_pool", (4,), device="cpu")
    with pytest.raises(TypeError, match="list"):
        caid.torch.publish("x", [1, 2])
    with pytest.raises(caid.InvalidNameError):
        caid.torch.publish("", tensor_of(torch, pool, (4,)))


def test_torch_refuses_what_lies_elsewhere(torch, client):
    class Elsewhere:
        def __init__(self, array):
            self.ptr, self.device, self.array = array.ptr, 0, array

    with client.empty(100) as a:
        x = torch.Tensor(Elsewhere(a), (100,), torch.float64)
        with pytest.raises(ValueError, match="use_mem_pool"):
            caid.torch.publish("x", x)
        caid.torch.MemPool(client)
        with pytest.raises(ValueError, match=r"\(100,\) of torch.float64 on cuda:0"):
            caid.torch.publish("x", x)


def test_torch_too_old(monkeypatch, soft):
    stand_in = frameworks.install(monkeypatch, frameworks.torch())
    del stand_in.cuda.MemPool
    with pytest.raises(ImportError, match="2.6"):
        importlib.import_module("caid.torch")
    assert threading.active_count() >= 1 and "caid.torch" not in sys.modules
