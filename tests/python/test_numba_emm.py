# SPDX-License-Identifier: Apache-2.0
"""caid.numba, Numba's memory manager: its life, errors and limits. Sharing what it has allocated is
in test_numba_share.py, Numba's own tests are in test_numba_own.py."""

import gc

import pytest
from conftest import in_threads, wait_until
from numba_here import *  # noqa: F401, F403 (the fixtures)
from numba_here import MIB, NVIDIAS, array_of, close, config, cuda, driver, equal, kill, np, program

import caid

# --- life -----------------------------------------------------------------------------------


def test_nothing_is_asked_of_the_daemon_before_the_first_allocation(manager, client):
    for _ in range(3):
        manager.initialize()
    assert manager.interface_version == 1
    assert client.status().connections == 1
    a = cuda.to_device(array_of(10))
    assert client.status().connections == 2
    assert manager.arena.info.allocations == 1
    source = manager.source
    for _ in range(3):
        manager.initialize()
    assert manager.source is source and len(manager.deallocations) == 0
    equal(a, array_of(10))


def test_reset_before_initialize():
    for _ in range(2):
        made = caid.numba.MemoryManager(context=None)
        made.reset()
        made.reset()
        assert len(made.deallocations) == 0 and made.deallocations._size == 0
        made.deallocations.clear()
        with made.defer_cleanup():
            made.reset()
    with pytest.raises(RuntimeError, match="requires a context"):
        caid.numba.MemoryManager()


def test_what_is_numbas_own(manager):
    ours, host = type(manager), cuda.HostOnlyCUDAMemoryManager
    assert issubclass(ours, host) and issubclass(host, cuda.BaseCUDAMemoryManager)
    assert isinstance(manager.memalloc(1), cuda.MemoryPointer)
    for name in ("memhostalloc", "mempin", "memallocmanaged"):
        assert getattr(ours, name) is getattr(host, name)


def test_a_context_keeps_its_manager(manager):
    class Other(caid.numba.MemoryManager):
        pass

    cuda.set_memory_manager(Other)
    a = cuda.to_device(array_of(10))
    assert cuda.current_context().memory_manager is manager
    assert manager.arena.info.allocations == 1
    del a
    close()
    assert isinstance(cuda.current_context().memory_manager, Other)


def test_close_and_use_again(manager, client):
    a, b = cuda.to_device(array_of(10)), cuda.to_device(array_of(MIB))
    view = a[3:]
    del b
    close()
    wait_until(lambda: client.status().connections == 1)
    c = cuda.to_device(array_of(10, 5))
    again = cuda.current_context().memory_manager
    assert again is not manager and again.arena.info.allocations == 1
    del a, view  # of a context that has gone
    gc.collect()
    assert again.arena.info.allocations == 1 and len(again.deallocations) == 0
    equal(c, array_of(10, 5))


def test_reset_and_use_again(manager, client):
    a = cuda.to_device(array_of(10))
    mapped = cuda.mapped_array(10)
    cuda.current_context().reset()
    wait_until(lambda: client.status().connections == 1)
    assert len(manager.deallocations) == 0 and not manager.allocations
    del a, mapped
    b = cuda.to_device(array_of(10))
    equal(b, array_of(10))
    assert cuda.current_context().memory_manager is manager
    assert manager.arena.info.allocations == 1


def test_reset_while_cleanup_is_deferred(manager):
    a = cuda.to_device(array_of(10))
    with cuda.defer_cleanup():
        del a
        cuda.current_context().reset()
        assert len(manager.deallocations) == 0
        b = cuda.to_device(array_of(10))
        del b
        manager.deallocations.clear()
        assert len(manager.deallocations) == 1
    manager.deallocations.clear()
    assert len(manager.deallocations) == 0


def test_each_context_has_a_manager_of_its_own(manager, client):
    a = cuda.to_device(array_of(10))
    with cuda.gpus[1]:
        b = cuda.to_device(array_of(10, 1))
        other = cuda.current_context().memory_manager
        assert other is not manager and other.source is not manager.source
        equal(b, array_of(10, 1))
    assert (manager.source.device, other.source.device) == (0, 1)
    assert client.memory_info(0).used > 0 and client.memory_info(1).used > 0
    with cuda.gpus[1], cuda.defer_cleanup():
        del b
        other.deallocations.clear()
        assert (len(other.deallocations), len(manager.deallocations)) == (1, 0)
        del a
        manager.deallocations.clear()
        assert (len(other.deallocations), len(manager.deallocations)) == (1, 0)


def test_the_last_reference_may_go_anywhere(manager):
    """With no current context, and on a thread that never had one."""
    a, b = cuda.to_device(array_of(10)), [cuda.to_device(array_of(10))]
    while driver.driver.pop_active_context() is not None:
        pass
    del a
    assert len(manager.deallocations) == 1
    in_threads(1, lambda _: b.clear())
    assert len(manager.deallocations) == 2
    assert manager.arena.info.allocations == 0


AT_EXIT = """
import numpy as np, threading
from numba import cuda
import caid.numba
arrays = [cuda.to_device(np.arange(100)) for _ in range(20)]
views = [a[3:7] for a in arrays]
pinned, mapped, managed = cuda.pinned_array(10), cuda.mapped_array(10), cuda.managed_array(10)
caid.numba.publish("kept", arrays[0])
class Cycle:
    pass
cycle = Cycle()
cycle.me, cycle.array = cycle, arrays[1]
threading.Thread(target=lambda: None).start()
held = cuda.defer_cleanup()
if sys.argv[1] == "held":
    held.__enter__()
if sys.argv[1] == "closed":
    cuda.close()
print(type(cuda.current_context().memory_manager).__module__)
"""


@pytest.mark.parametrize("how", ["alive", "held", "closed"])
def test_interpreter_exit(client, child, how):
    """By the environment, as somebody would who runs a program that knows nothing of caid."""
    if how == "closed" and NVIDIAS:
        pytest.skip("cuda.core does not outlive the end of the contexts")
    c = child(program(AT_EXIT), how, NUMBA_CUDA_MEMORY_MANAGER="caid.numba", PYTHONWARNINGS="ignore")
    c.expect("caid.numba")
    assert c.finish() == (0, "")
    with client.open("kept") as a:
        equal(a, np.arange(100))


# --- what is freed, and when ----------------------------------------------------------------


@pytest.fixture
def limits(monkeypatch):
    def set_limits(count=None, ratio=None):
        if count is not None:
            monkeypatch.setattr(config, "CUDA_DEALLOCS_COUNT", count)
        if ratio is not None:
            monkeypatch.setattr(config, "CUDA_DEALLOCS_RATIO", ratio)

    return set_limits


@pytest.mark.parametrize("count", [-1, 0, 1, 10, 25])
@pytest.mark.parametrize("after_reset", [False, True])
def test_the_limit_of_entries(manager, limits, count, after_reset):
    limits(count=count)
    if after_reset:
        cuda.to_device(array_of(1))
        cuda.current_context().reset()
    count = max(count, 0)
    seen = []
    for _ in range(count + 2):
        cuda.to_device(array_of(1))
        seen.append(len(manager.deallocations))
    assert seen == [*range(1, count + 1), 0, min(count, 1)]


def test_the_limit_of_bytes(manager, limits):
    total = cuda.current_context().get_memory_info().total
    limits(count=1000, ratio=MIB / total)
    limit = manager.deallocations._max_pending_bytes
    assert abs(limit - MIB) <= 1
    cuda.device_array(limit // 2, np.int8)
    cuda.device_array(limit - limit // 2, np.int8)
    assert (len(manager.deallocations), manager.deallocations._size) == (2, limit)
    cuda.device_array(1, np.int8)
    assert (len(manager.deallocations), manager.deallocations._size) == (0, 0)
    for ratio in (0.0, -1.0):
        limits(ratio=ratio)
        cuda.device_array(1, np.int8)
        assert len(manager.deallocations) == 0


def test_the_limits_of_numbas_environment(child):
    c = child(
        """
        from numba import cuda
        deallocations = cuda.current_context().memory_manager.deallocations

        def freed(size):
            cuda.device_array(size, "i1")
            return len(deallocations)

        print(*(freed(1) for _ in range(21)), flush=True)
        limit = int(cuda.current_context().get_memory_info().total * 0.01)
        print(freed(limit), freed(1), flush=True)
        """,
        NUMBA_CUDA_MEMORY_MANAGER="caid.numba",
        NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT="20",
        NUMBA_CUDA_MAX_PENDING_DEALLOCS_RATIO="0.01",
        PYTHONWARNINGS="ignore",
    )
    c.expect(" ".join(map(str, [*range(1, 21), 0])))
    c.expect("1 0")
    assert c.finish() == (0, "")


def test_views_keep_the_memory(manager):
    a = cuda.to_device(array_of(100))
    b = a[10:20]
    c = b[2:4]
    del a, b
    assert len(manager.deallocations) == 0
    equal(c, array_of(2, 12))
    taken = cuda.as_cuda_array(c)
    del c
    equal(taken, array_of(2, 12))
    assert len(manager.deallocations) == 0
    del taken
    assert len(manager.deallocations) == 1


def test_free_by_hand(manager):
    memory = cuda.current_context().memalloc(100)
    memory.free()
    assert len(manager.deallocations) == 1
    with pytest.raises(RuntimeError, match="dead memory"):
        memory.free()
    del memory
    assert len(manager.deallocations) == 1


def test_host_and_managed_memory_stay_with_numba(manager):
    cuda.to_device(array_of(1))
    n_allocs = manager.arena.info.n_allocs
    manager.deallocations.clear()
    made = [cuda.pinned_array(10), cuda.mapped_array(10), cuda.managed_array(10)]
    for a in made:
        a[:] = 3
    equal(cuda.to_device(made[0]), made[0])
    assert len(manager.allocations) == 2
    host = array_of(10)
    with cuda.pinned(host), cuda.mapped(array_of(4)) as m:
        equal(m, array_of(4))
    assert manager.arena.info.n_allocs == n_allocs + 1
    manager.deallocations.clear()
    del made[:], a
    assert len(manager.deallocations) == manager.deallocations.n_host == 3
    assert manager.deallocations._size == 160
    cuda.to_device(host)
    assert len(manager.deallocations) == 4
    manager.deallocations.clear()
    assert len(manager.deallocations) == 0 and not manager.allocations


def test_host_memory_alone_needs_no_daemon(use, monkeypatch):
    monkeypatch.setenv("CAID_SOCKET", "/nonexistent/caid.sock")
    close()
    cuda.set_memory_manager(caid.numba.MemoryManager)
    deallocations = cuda.current_context().memory_manager.deallocations
    for _ in range(3):
        cuda.pinned_array(10)
        cuda.mapped_array(10)
    assert len(deallocations) == 6  # the capacity is known: nothing is freed at once
    close()


# --- defer_cleanup --------------------------------------------------------------------------


def deferred(client):
    return sum(user.deferred for user in client.users())


def test_defer_cleanup_holds_all_of_it(manager, client):
    a, pinned = cuda.to_device(array_of(10)), cuda.pinned_array(10)
    assert deferred(client) == 0
    with cuda.defer_cleanup():
        assert deferred(client) == 1
        del a, pinned
        with cuda.defer_cleanup():
            for _ in range(50):
                cuda.to_device(array_of(10))
            manager.deallocations.clear()
            assert len(manager.deallocations) == 52
        assert deferred(client) == 1
        manager.deallocations.clear()
        manager.arena.flush()
        assert len(manager.deallocations) == 52
    assert len(manager.deallocations) == 52 and deferred(client) == 0  # R9
    cuda.to_device(array_of(10))
    assert len(manager.deallocations) == 1 and manager.deallocations.n_host == 1


def test_a_graph_may_be_captured(manager, stream):
    """On blocking streams, as Numba's are: what is freed meanwhile waits."""
    cuda.device_array(10)
    with stream.captures():
        for _ in range(20):
            cuda.device_array(MIB)
        manager.deallocations.clear()
        assert len(manager.deallocations) == 21
    manager.deallocations.clear()
    assert len(manager.deallocations) == 0


def test_defer_cleanup_and_exceptions(manager, client):
    with pytest.raises(ZeroDivisionError):
        with cuda.defer_cleanup(), cuda.defer_cleanup():
            cuda.to_device(array_of(10))
            1 / 0
    assert len(manager.deallocations) == 1 and deferred(client) == 0
    manager.deallocations.clear()
    assert len(manager.deallocations) == 0


def test_defer_cleanup_before_the_first_allocation(manager, client):
    with cuda.defer_cleanup():
        assert client.status().connections == 1
        cuda.to_device(array_of(10))
        assert deferred(client) == 1
        manager.deallocations.clear()
        assert len(manager.deallocations) == 1
    manager.deallocations.clear()
    assert len(manager.deallocations) == 0 and deferred(client) == 0


@pytest.mark.parametrize("when", ["before", "within"])
def test_defer_cleanup_when_the_daemon_is_gone(mortal, when):
    manager, daemon = mortal
    a = cuda.to_device(array_of(10))
    if when == "before":
        kill(daemon)
    with cuda.defer_cleanup():
        if when == "within":
            kill(daemon)
        del a
        manager.deallocations.clear()
        assert len(manager.deallocations) == 1
    manager.deallocations.clear()
    assert len(manager.deallocations) == 0


# --- want of memory -------------------------------------------------------------------------


def test_out_of_memory_and_recovery(manager):
    total = cuda.current_context().get_memory_info().total
    quarter = total // 4
    arrays = [cuda.device_array(quarter, np.int8) for _ in range(3)]
    pinned = cuda.pinned_array(10)
    del pinned
    assert manager.deallocations.n_host == 1
    with pytest.raises(driver.CudaAPIError, match="caid: ") as e:
        cuda.device_array(2 * quarter, np.int8)
    assert e.value.code == 2
    assert isinstance(e.value.__cause__, caid.OutOfMemoryError)
    assert manager.deallocations.n_host == 0  # what waits there may be memory of the device
    del arrays[:]
    again = cuda.device_array(2 * quarter, np.int8)
    assert again.size == 2 * quarter


@pytest.mark.parametrize("error", ["OutOfMemoryError", "QuotaError", "LimitError"])
def test_refusals_are_cudas_out_of_memory(manager, error, monkeypatch):
    cuda.to_device(array_of(1))

    def refuse(size):
        raise getattr(caid, error)(12, f"no {size} bytes")

    monkeypatch.setattr(manager, "_alloc", refuse)
    with pytest.raises(driver.CudaAPIError, match="no 8 bytes") as e:
        cuda.to_device(array_of(1))
    assert e.value.code == 2


def test_sizes_that_make_no_sense(manager):
    context = cuda.current_context()
    assert context.memalloc(0).device_pointer_value
    for size, code in ((-1, 1), (-(1 << 70), 1), (1 << 60, 2), (1 << 63, 2), (1 << 70, 2)):
        with pytest.raises(driver.CudaAPIError, match=f"caid.*{size}") as e:
            context.memalloc(size)
        assert e.value.code == code
    equal(cuda.to_device(array_of(1)), array_of(1))


def test_memory_info(manager, client, monkeypatch):
    context = cuda.current_context()
    free, total = context.get_memory_info()
    assert 0 < free <= total and client.status().connections == 1  # it has not connected
    a = cuda.device_array(64 * MIB, np.int8)
    assert context.get_memory_info().free <= free - 64 * MIB
    del a  # waits, but could be had
    assert context.get_memory_info().free > free - 64 * MIB
    assert context.get_memory_info().total == total
    full = cuda.device_array(total // 2, np.int8)
    seen, free = client.memory_info(0), []
    for reserve in (0, 128 * MIB):  # of empty blocks, which the daemon keeps for a while
        info = seen._replace(reserve=reserve)
        with monkeypatch.context() as m:
            m.setattr(caid.Client, "memory_info", lambda *_, info=info: info)
            free.append(context.get_memory_info().free)
    assert free[1] == free[0] + 128 * MIB
    del full


# --- options --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["pinned", "Device", "legacy "])
def test_a_kind_of_memory_that_is_none(monkeypatch, value):
    monkeypatch.setenv("CAID_NUMBA_MEMORY", value)
    with pytest.raises(caid.InvalidError, match="^memory / CAID_NUMBA_MEMORY is"):
        cuda.set_memory_manager(caid.numba.MemoryManager)

    class Mine(caid.numba.MemoryManager):
        memory = value

    monkeypatch.delenv("CAID_NUMBA_MEMORY")
    with pytest.raises(caid.InvalidError, match="^memory / CAID_NUMBA_MEMORY is"):
        cuda.set_memory_manager(Mine)


@pytest.mark.parametrize(
    "text, size", [("4M", 4 * MIB), ("8388608", 8 * MIB), ("1G", 1 << 30), ("", 0), ("64K", 65536)]
)
def test_block_sizes(monkeypatch, text, size):
    monkeypatch.setenv("CAID_NUMBA_BLOCK_SIZE", text)
    assert caid.numba._read_options(caid.numba.MemoryManager)[2] == size


@pytest.mark.parametrize(
    "text", ["M", "-1", "4 M", "4m", "0x10", "\u0664M", "1025G", "9" * 30 + "G", "1099511627777"]
)
def test_block_sizes_that_are_none(monkeypatch, text):
    monkeypatch.setenv("CAID_NUMBA_BLOCK_SIZE", text)
    with pytest.raises(caid.InvalidError, match="^block_size / CAID_NUMBA_BLOCK_SIZE is .*2\\^40"):
        cuda.set_memory_manager(caid.numba.MemoryManager)


@pytest.mark.parametrize("option, value, match", [
    ("block_size", -1, "is -1: bytes"),
    ("block_size", "64M", "is '64M'"),
    ("block_size", 1.5, "is 1.5"),
    ("block_size", (1 << 40) + 1, "2\\^40"),
    ("pool", 7, "^pool / CAID_NUMBA_POOL is 7"),
])
def test_attributes_that_make_no_sense(option, value, match):
    mine = type("Mine", (caid.numba.MemoryManager,), {option: value})
    with pytest.raises(caid.InvalidError, match=match):
        cuda.set_memory_manager(mine)


def test_the_manager_tells_its_options(manager, use, daemon, monkeypatch):
    assert (manager.memory, manager.pool, manager.block_size) == ("device", None, 0)
    monkeypatch.setenv("CAID_NUMBA_MEMORY", "legacy")
    monkeypatch.setenv("CAID_NUMBA_POOL", "some")
    mine = use(type("Mine", (caid.numba.MemoryManager,), {"block_size": np.int64(MIB)}), daemon)
    assert (mine.memory, mine.pool, mine.block_size) == ("legacy", "some", MIB)


def test_block_size_and_pool_are_used(use, daemon, client):
    class Small(caid.numba.MemoryManager):
        block_size = 4 * MIB
        pool = client.status().pool

    manager = use(Small, daemon)
    cuda.to_device(array_of(1))
    assert (manager.arena.info.blocks, manager.arena.info.bytes) == (1, 4 * MIB)

    class Nowhere(caid.numba.MemoryManager):
        pool = "nowhere"

    use(Nowhere, daemon)
    with pytest.raises(caid.NotFoundError, match="nowhere"):
        cuda.to_device(array_of(1))


# --- the daemon -----------------------------------------------------------------------------


def test_no_daemon(use, daemon, client, monkeypatch):
    use(caid.numba.MemoryManager, daemon)
    monkeypatch.setenv("CAID_SOCKET", "/nonexistent/caid.sock")
    for _ in range(2):
        with pytest.raises(caid.NoDaemonError, match="nonexistent.*start caid"):
            cuda.to_device(array_of(10))
        free, total = cuda.current_context().get_memory_info()  # the driver's word alone
        assert 0 < free <= total
    with cuda.defer_cleanup():
        cuda.current_context().reset()
    monkeypatch.setenv("CAID_SOCKET", daemon.address)  # it is started
    equal(cuda.to_device(array_of(10)), array_of(10))


def test_no_daemon_by_the_environment(child):
    code = "from numba import cuda; print(len(cuda.gpus), flush=True); cuda.device_array(1)"
    c = child(
        program(code),
        NUMBA_CUDA_MEMORY_MANAGER="caid.numba",
        CAID_SOCKET="/nonexistent/caid.sock",
        PYTHONWARNINGS="ignore",
    )
    c.expect("2")
    status, errors = c.finish()
    assert status == 1 and "NoDaemonError" in errors and "start caid" in errors


def test_the_daemon_is_killed(mortal, use):
    manager, daemon = mortal
    kept, gone = cuda.to_device(array_of(1000)), cuda.to_device(array_of(1000))
    view = kept[10:]
    kill(daemon)
    with pytest.raises(caid.DisconnectedError, match="reset the context"):
        cuda.device_array(1 << 30, np.int8)
    equal(kept, array_of(1000))
    kept.copy_to_device(array_of(1000, 5))
    equal(view, array_of(990, 15))
    del gone
    manager.deallocations.clear()
    assert cuda.current_context().get_memory_info().free > 0
    with caid.LocalDaemon() as other:
        use(caid.numba.MemoryManager, other)
        del kept, view
        a = cuda.device_array(1 << 20, np.int8)
        a[:1].copy_to_device(np.ones(1, np.int8))
        with other.connect() as c:
            assert c.status().leases > 0
        close()


# --- threads --------------------------------------------------------------------------------


def test_threads(manager):
    """Arrays of several threads at once never share memory."""
    wrong, n_threads, n_rounds = [], 4, 60

    def work(number):
        kept = []
        for i in range(n_rounds):
            n = 1 + (i * 37 + number) % 5000
            expected = np.full(n, number * n_rounds + i, np.int64)
            kept.append((cuda.to_device(expected), expected))
            if len(kept) > 5:
                a, expected = kept.pop(i % 5)
                if (a.copy_to_host() != expected).any():
                    wrong.append((number, i))
            if i % 20 == 19:
                with cuda.defer_cleanup():
                    kept.pop(0)

    in_threads(n_threads, work)
    assert not wrong
    manager.deallocations.clear()
    info = manager.arena.info
    assert (info.n_allocs, info.allocations) == (n_threads * n_rounds, 0)
    assert len(manager.deallocations) == 0 and not manager.deallocations.is_disabled
