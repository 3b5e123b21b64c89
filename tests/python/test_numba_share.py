# SPDX-License-Identifier: Apache-2.0
"""caid.numba: handles of Numba's arrays for other processes, and publishing them."""

import pickle
import time

import pytest
from arenas import seen_behind
from conftest import PATIENCE_S, in_thread, wait_until
from numba_here import *  # noqa: F401, F403 (the fixtures)
from numba_here import NVIDIAS, array_of, close, cuda, driver, equal, memory_of_cudas, np, program

import caid

# --- handles for other processes ------------------------------------------------------------

OPENS = """
import pickle
import numpy as np
from numba import cuda
handles = pickle.loads(bytes.fromhex(sys.argv[1]))
print(type(cuda.current_context().memory_manager).__name__, flush=True)
own = cuda.to_device(np.arange(1000))
for handle in handles:
    with handle as a:
        print(*a.copy_to_host(), flush=True)
        a.copy_to_device(a.copy_to_host() + 1)
assert (own.copy_to_host() == np.arange(1000)).all()
"""


@pytest.fixture
def legacy(use, daemon, monkeypatch):
    """The plugin with memory that has handles of CUDA's."""
    monkeypatch.setenv("CAID_NUMBA_MEMORY", "legacy")
    return use(caid.numba.MemoryManager, daemon)


@pytest.fixture(params=["device", "legacy"])
def either(request, use, daemon, monkeypatch):
    monkeypatch.setenv("CAID_NUMBA_MEMORY", request.param)
    return use(caid.numba.MemoryManager, daemon)


def handles_of(*arrays):
    return pickle.dumps([a.get_ipc_handle() for a in arrays]).hex()


@pytest.mark.parametrize("their_manager", ["default", "caid.numba"])
def test_ipc_handles(either, child, their_manager):
    whole, other = cuda.to_device(array_of(6)), cuda.to_device(array_of(4, 50))
    view = whole[2:5]
    assert view.get_ipc_handle()._ipc_handle.size == 24
    assert view.get_ipc_handle()._ipc_handle.base is not None
    assert view.get_ipc_handle()._ipc_handle.source_info == cuda.current_context().device.get_device_identity()
    handles = handles_of(whole, view, other)
    c = child(program(OPENS), handles, NUMBA_CUDA_MEMORY_MANAGER=their_manager, PYTHONWARNINGS="ignore")
    c.expect("NumbaCUDAMemoryManager" if their_manager == "default" else "MemoryManager")
    c.expect("0 1 2 3 4 5")
    c.expect("3 4 5")  # what it has written is seen, by another handle and here
    c.expect("50 51 52 53")
    assert c.finish() == (0, "")
    equal(whole, [1, 2, 4, 5, 6, 6])
    equal(other, array_of(4, 51))


def test_a_handle_keeps_the_memory(either):
    a = cuda.to_device(array_of(10))
    handle = a[3:].get_ipc_handle()
    del a
    assert len(either.deallocations) == 0
    del handle
    wait_until(lambda: len(either.deallocations) == 1)


def test_handles_of_what_is_not_the_arenas(legacy, child):
    cuda.to_device(array_of(1))
    pointer = memory_of_cudas(4096)
    context = cuda.current_context()
    memory = driver.MemoryPointer(context, pointer, 4096)
    a = cuda.cudadrv.devicearray.DeviceNDArray((4,), (8,), np.dtype("i8"), gpu_data=memory.view(64, 96))
    a.copy_to_device(array_of(4, 7))
    assert a.get_ipc_handle()._ipc_handle.offset == 64
    c = child(program(OPENS), handles_of(a), PYTHONWARNINGS="ignore")
    c.expect("NumbaCUDAMemoryManager")
    c.expect("7 8 9 10")
    assert c.finish() == (0, "")
    driver.driver.cuMemFree(pointer)
    with pytest.raises(driver.CudaAPIError):  # Numba's own says the same
        cuda.managed_array(10).get_ipc_handle()


def test_the_class_goes_before_the_environment(use, daemon, client, monkeypatch):
    class OnDevice(caid.numba.MemoryManager):
        memory = "device"

    monkeypatch.setenv("CAID_NUMBA_MEMORY", "legacy")
    use(OnDevice, daemon)
    a = cuda.to_device(array_of(10))
    assert client.unnamed()[0].entry.memory == "device"
    assert isinstance(a.get_ipc_handle()._ipc_handle, caid.numba.IpcHandle)


HOLDS = """
import pickle
import numpy as np
from numba import cuda
handle = pickle.loads(bytes.fromhex(sys.argv[1]))
a = handle.open()
step("open")
print(*a.copy_to_host(), flush=True)
handle.close()
step("closed")
"""


def test_a_ticket_lasts_as_long_as_the_memory_here(manager, client, child):
    """Each opener has the memory until he closes it, whatever becomes of it here."""
    a = cuda.to_device(array_of(6))
    handle = a[2:].get_ipc_handle()
    assert isinstance(handle._ipc_handle, driver.IpcHandle)
    sent = handle_text(handle)
    assert handle_text(a[2:].get_ipc_handle()) == sent and len(client.tickets()) == 1
    del handle  # the array keeps it
    openers = [child(program(HOLDS), sent, PYTHONWARNINGS="ignore") for _ in range(2)]
    for opener in openers:
        opener.expect("open")
    del a
    wait_until(lambda: client.tickets() == [])
    assert len(manager.deallocations) == 0
    for opener in openers:
        opener.go()
        opener.expect("2 3 4 5")
        opener.expect("closed")
    wait_until(lambda: len(manager.deallocations) == 1)
    for opener in openers:
        opener.go()
        assert opener.finish() == (0, "")
    with pytest.raises(caid.NotFoundError):
        pickle.loads(bytes.fromhex(sent)).open()
    caid.default_client().close()  # by which it was looked for


def test_a_ticket_of_another_daemon(manager, monkeypatch):
    a = cuda.to_device(array_of(6))
    made = a.get_ipc_handle()._ipc_handle
    with caid.LocalDaemon(driver="soft") as d:
        monkeypatch.setenv("CAID_SOCKET", d.address)
        with pytest.raises(caid.NotFoundError, match=r"another daemon's: \$CAID_SOCKET has to name"):
            pickle.loads(pickle.dumps(made)).open(cuda.current_context())
        caid.default_client().close()


def handle_text(handle):
    return pickle.dumps(handle).hex()


def test_opening_a_ticket(manager):
    a = cuda.to_device(array_of(6))
    made = a[1:].get_ipc_handle()._ipc_handle
    with pytest.raises(ValueError, match="original process"):
        made.open(cuda.current_context())
    arrived = pickle.loads(pickle.dumps(made))
    b = arrived.open_array(cuda.current_context(), 5, np.dtype(np.int64))
    equal(b, array_of(6)[1:])
    with pytest.raises(ValueError, match="already opened"):
        arrived.open(cuda.current_context())
    arrived.close()
    with pytest.raises(ValueError, match="not opened"):
        arrived.close()
    equal(arrived.open_array(cuda.current_context(), 5, np.dtype(np.int64)), array_of(6)[1:])
    arrived.close()
    arrived.size = 1 << 20
    with pytest.raises(caid.InvalidError, match="the allocation has 48"):
        arrived.open(cuda.current_context())
    with cuda.gpus[1]:  # where the memory is copied to
        staged = pickle.loads(pickle.dumps(made))
        copy = staged.open_staged(cuda.current_context())
        host = np.zeros(5, np.int64)
        driver.device_to_host(host, copy, 40)
        assert (host == array_of(6)[1:]).all()
        staged.close()
        del copy
    caid.default_client().close()


def test_a_ticket_waits_for_the_work(manager, streams):
    """The first handle of an allocation, and all later ones."""
    a = cuda.to_device(array_of(10))
    for _ in range(2):
        written_on, _other = streams
        written_on.hold_up()
        thread, ended = in_thread(a.get_ipc_handle)
        time.sleep(0.05)
        assert ended == []
        written_on.gate.set()
        thread.join(PATIENCE_S)
        assert len(ended) == 1
        written_on.gate.clear()


def test_memory_managers_are_numbas():
    assert issubclass(caid.numba.MemoryManager, cuda.BaseCUDAMemoryManager)


# --- publishing -----------------------------------------------------------------------------


def test_publish(manager, client, child):
    a = cuda.to_device(array_of(12).reshape(3, 4))
    caid.numba.publish("weights", a, metadata={"epoch": 1})
    caid.numba.publish("row", a[1])
    assert manager.arena.info.published == 2
    c = child(
        program("""
        import numpy as np
        from numba import cuda
        with caid.connect() as c, c.open("weights") as a, c.open("row") as b:
            assert a.metadata == {"epoch": 1}
            n = cuda.as_cuda_array(a)
            assert n.shape == (3, 4) and n.dtype == np.int64
            assert (n.copy_to_host() == np.arange(12).reshape(3, 4)).all()
            assert (cuda.as_cuda_array(b).copy_to_host() == np.arange(4, 8)).all()
            step("seen")
            assert (n.copy_to_host() == np.arange(12).reshape(3, 4)).all()
            step("still seen")
        step("closed")
        """),
        PYTHONWARNINGS="ignore",
    )
    c.expect("seen")
    del a  # both parts keep it
    assert len(manager.deallocations) == 0
    for _ in range(20):
        cuda.to_device(array_of(12, 100))
    c.go()
    c.expect("still seen")
    client.unlink("weights")
    client.unlink("row")
    time.sleep(0.05)
    assert manager.arena.info.published == 2
    c.go()
    c.expect("closed")
    wait_until(lambda: manager.arena.info.published == 0)
    wait_until(lambda: manager.arena.info.allocations == 0)
    c.go()
    assert c.finish() == (0, "")


def test_publish_a_record(manager, client):
    record = cuda.to_device(np.zeros(3, np.dtype([("x", "<f4"), ("y", "<i8")], align=True)))
    manager.publish("record", record)
    with client.open("record") as b:
        assert b.dtype.names == ("x", "y")


@pytest.mark.parametrize(
    "which", ["default_stream", "legacy_default_stream", "per_thread_default_stream", "stream"]
)
def test_publish_on_any_stream_of_numbas(manager, client, which):
    stream = getattr(cuda, which)()
    a = cuda.to_device(array_of(10), stream=stream)
    for options in ({}, {"stream": stream}, {"stream": 0}):
        caid.numba.publish("weights", a, **options)
        with client.open("weights") as b:
            equal(b, array_of(10))


def test_numbas_default_stream_is_what_its_environment_says(manager, monkeypatch):
    assert manager._stream_number(0) == 1
    monkeypatch.setenv(f"{'CUDA_PYTHON' if NVIDIAS else 'NUMBA'}_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    assert manager._stream_number(0) == 2
    with pytest.raises(TypeError, match="str"):
        manager._stream_number("0")


@pytest.mark.parametrize("named", [False, True])
def test_publish_waits(manager, client, streams, named):
    """Not for the stream that the array was made on, but for the one that is given, or for all."""
    made_on = cuda.stream()
    a = cuda.to_device(array_of(10), stream=made_on)
    written_on, unconcerned = streams
    written_on.hold_up()
    if named:
        unconcerned.hold_up()
    options = {"stream": written_on.number} if named else {}
    shown = seen_behind(client, written_on, lambda: manager.publish("weights", a, **options), "weights")
    assert (shown == array_of(10)).all()


def test_publish_no_elements_first_of_all(manager, client):
    caid.numba.publish("empty", cuda.device_array(0))
    with client.open("empty") as a:
        assert a.shape == (0,)


def test_arrays_of_a_context_that_was_reset(manager, client):
    a, free = cuda.to_device(array_of(10)), cuda.device_array(0)
    view = a[3:]
    close()
    for again in range(2):
        for lost in (a, view):
            with pytest.raises(caid.InvalidError, match="'x'.*ended with cuda.close"):
                caid.numba.publish("x", lost)
        other = cuda.to_device(array_of(10))
    del free, other


def test_copies_of_what_cannot_be_published(manager, client):
    """As the error says."""
    mapped = cuda.mapped_array(10, np.int64)
    mapped[:] = array_of(10)
    with client.create("theirs", 10, "<i8") as theirs:
        theirs.copy_from_host(array_of(10))
        for x, how, copy in (
            (mapped, "mapped and managed.*numpy.array", np.array),
            (cuda.as_cuda_array(theirs), "another library.*copy_to_host", lambda x: x.copy_to_host()),
        ):
            with pytest.raises(caid.InvalidError, match=rf"'x': .*{how}\("):
                caid.numba.publish("x", x)
            caid.numba.publish("x", cuda.to_device(copy(x)))
            with client.open("x") as a:
                equal(a, array_of(10))


def test_what_cannot_be_published(manager, client):
    with pytest.raises(TypeError, match="list is no device array"):
        caid.numba.publish("x", [1])
    with pytest.raises(TypeError, match="ndarray"):
        caid.numba.publish("x", array_of(1))
    mapped = cuda.mapped_array(10)
    with pytest.raises(caid.InvalidError, match="caid"):  # no allocation has been made
        caid.numba.publish("x", mapped)
    a = cuda.to_device(array_of(10))
    with pytest.raises(caid.Error):
        caid.numba.publish("x", mapped)
    with pytest.raises(caid.InvalidNameError):
        caid.numba.publish("", a)
    with client.create("theirs", 10, "<i8") as theirs, pytest.raises(caid.Error):
        caid.numba.publish("x", cuda.as_cuda_array(theirs))
    assert [entry.name for entry in client.list()] == ["theirs"]
    del a
    assert len(manager.deallocations) == 1


def test_publish_with_numbas_own_manager():
    driver._memory_manager = None
    close()
    a = cuda.to_device(array_of(10))
    with pytest.raises(TypeError, match="NumbaCUDAMemoryManager.*NUMBA_CUDA_MEMORY_MANAGER"):
        caid.numba.publish("x", a)
    del a
    close()
