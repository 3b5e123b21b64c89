# SPDX-License-Identifier: Apache-2.0
"""Streams: created and wrapped, waited for, their callbacks, and every kind of end."""

import asyncio
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import weakref

import numpy
import pytest
from arenas import ByDlpack
from conftest import PATIENCE_S, Held, in_thread, in_threads, is_asleep, n_live, refuses, run_async, until_it_waits, wait_until

import caid

LEGACY, PER_THREAD = 1, 2


# --- created --------------------------------------------------------------------------------


def test_a_stream_is_created_and_destroyed(client, soft):
    before = n_live("streams")
    s = client.stream()
    assert n_live("streams") == int(before) + 1
    assert s.handle == s.ptr > PER_THREAD and s.device == 0 and not s.closed
    assert s.__cuda_stream__() == (0, s.handle)
    assert repr(s) == f"<caid.Stream {s.ptr:#x} device=0>"
    assert s.query() is s.is_done is True
    s.synchronize()
    s.check()
    s.close()
    s.close()
    assert s.closed and n_live("streams") == before
    assert repr(s).endswith(" closed>")


def test_a_closed_stream_is_not_used(client):
    with client.stream() as s, client.empty(4, "|u1") as a:
        pass
    for use in (
        lambda: s.handle,
        lambda: s.ptr,
        lambda: s.__cuda_stream__(),
        s.synchronize,
        s.query,
        s.check,
        lambda: s.add_callback(print),
        lambda: a.close(s),
    ):
        with refuses(caid.ClosedError, match="the stream is closed"):
            use()


def test_non_blocking_streams_are_apart_from_the_default_one(client, stream):
    """`stream` is a blocking one: the legacy default stream waits for it."""
    stream.hold_up()
    with client.stream() as s, client.stream(non_blocking=True) as apart:
        legacy = caid.Stream.from_handle(LEGACY, client)
        legacy.add_callback(lambda *_: None)
        s.add_callback(lambda *_: None)
        apart.add_callback(lambda *_: None)
        apart.synchronize()
        assert not s.query() and not legacy.query()
        stream.gate.set()
        s.synchronize()


def test_priorities(client, stream):
    least, greatest, found = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    stream.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    for asked, given in [(0, 0), (-1, -1), (-(10**6), greatest.value), (3, least.value)]:
        with client.stream(priority=asked) as s:
            stream.call("cuStreamGetPriority", ctypes.c_void_p(s.ptr), ctypes.byref(found))
            assert found.value == given


def test_devices(client):
    uuid = client.devices[0].uuid
    with client.stream(uuid) as s:
        assert s.device == 0
    for wrong in (len(client.devices), -1, 2**40, "GPU-none"):
        with pytest.raises(caid.DeviceError):
            client.stream(wrong)


# --- wrapped --------------------------------------------------------------------------------


class ByProtocol:
    def __init__(self, handle):
        self.handle_ = handle

    def __cuda_stream__(self):
        return (0, self.handle_)


def with_attribute(name, of=int):
    return lambda handle: type("Foreign", (), {name: of(handle)})()


KINDS = {
    "a number": int,
    "__cuda_stream__()": ByProtocol,
    "CuPy": with_attribute("ptr"),
    "Numba": with_attribute("handle", ctypes.c_void_p),
    "PyTorch": with_attribute("cuda_stream"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_streams_of_all_libraries_are_wrapped(client, kind):
    with client.stream() as s, Held(s):
        foreign = caid.Stream.from_handle(kind(s.ptr), client)
        assert foreign == s and hash(foreign) == hash(s) and foreign.handle == s.ptr
        assert not foreign.query() and repr(foreign).endswith(" wrapped>")
        foreign.close()
        assert foreign.closed and foreign != s and foreign == foreign
        assert not s.closed and not s.query(), "it was not destroyed"


def test_what_was_wrapped_is_kept(client):
    with client.stream() as s:
        foreign = ByProtocol(s.ptr)
        kept = weakref.ref(foreign)
        wrapped = caid.Stream.from_handle(foreign, client)
        again = caid.Stream.from_handle(wrapped)
        del foreign, wrapped
        gc.collect()
        assert kept() is not None and again == s
        del again
        gc.collect()
        assert kept() is None


def test_equality(client):
    with client.stream() as s, client.stream() as t:
        assert s != t and s != s.handle and len({s, t, caid.Stream.from_handle(s)}) == 2


@pytest.mark.parametrize("number, name", [(LEGACY, "legacy"), (PER_THREAD, "per-thread")])
def test_default_streams(client, number, name):
    for s in (caid.Stream.from_handle(number), caid.Stream.from_handle(number, client, 0)):
        assert (s.handle, s.__cuda_stream__()) == (number, (0, number))
        assert repr(s) == f"<caid.Stream {name} device=0 wrapped>"
        s.synchronize()
        called = []
        s.add_callback(lambda *args: called.append(args), "x")
        s.synchronize()
        assert called == [(s, 0, "x")] and s.query()
        s.check()


OF_BINDINGS = type("CUstream", (int,), {"__module__": "cuda.bindings.driver"})(0)


@pytest.mark.parametrize(
    "module, attribute, variable, zero",
    [
        ("torch.cuda.streams", "cuda_stream", None, 0),
        ("cupy.cuda.stream", "ptr", "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", 0),
        ("numba.cuda.cudadrv.driver", "handle", "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM", 0),
        ("numba.cuda.cudadrv.driver", "handle", "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", OF_BINDINGS),
        ("numba_cuda_mlir.x", "handle", "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", OF_BINDINGS),
    ],
)
def test_default_streams_of_libraries(monkeypatch, module, attribute, variable, zero):
    default = type("Stream", (), {"__module__": module, attribute: zero})()
    if variable:
        monkeypatch.delenv(variable, raising=False)
    assert caid.Stream.from_handle(default).handle == LEGACY
    if variable:
        monkeypatch.setenv(variable, "1")
        assert caid.Stream.from_handle(default).handle == PER_THREAD


def test_what_is_no_stream():
    for ambiguous in (0, False, ByProtocol(0), with_attribute("handle", ctypes.c_void_p)(0)):
        with pytest.raises(ValueError, match="stream 0 is ambiguous"):
            caid.Stream.from_handle(ambiguous)
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="no CUstream"):
            caid.Stream.from_handle(wrong)
    for wrong in (None, "1", 1.0, object()):
        with pytest.raises(TypeError, match="a stream object is needed"):
            caid.Stream.from_handle(wrong)
    with pytest.raises(caid.DeviceError):
        caid.Stream.from_handle(1, None, 2**40)


def publish_in_an_arena(client, stream):
    with client.arena() as arena:
        arena.publish("a", arena.allocate(4), stream=stream)


TAKE_STREAMS = {
    "close": lambda c, a, s: a.close(s),
    "publish": lambda c, a, s: a.publish("a", stream=s),
    "publish in an arena": lambda c, a, s: publish_in_an_arena(c, s),
    "read": lambda c, a, s: a.read(s).begin(),
    "copy_to_host": lambda c, a, s: a.copy_to_host(bytearray(4), s),
    "copy_from_host": lambda c, a, s: a.copy_from_host(b"efgh", s),
    "copy_to_device": lambda c, a, s: a.copy_to_device(b"efgh", s),
    "copy_from": lambda c, a, s: a[1:].copy_from(a[:-1], s),
    "copy_to": lambda c, a, s: a[1:].copy_to(a[:-1], s),
    "__dlpack__": lambda c, a, s: a.__dlpack__(stream=s),
    "from_dlpack": lambda c, a, s: caid.from_dlpack(ByDlpack(a), stream=s),
    "Event.record": lambda c, a, s: c.event().record(s),
    "Event.wait": lambda c, a, s: c.event().wait(s),
    "Timeline.signal": lambda c, a, s: c.timeline("t").signal(s, 1),
    "Timeline.wait": lambda c, a, s: c.timeline("t").wait(s, 1, 0),
    "device_array": lambda c, a, s: caid.device_array(4, stream=s, client=c),
    "mapped_array": lambda c, a, s: caid.mapped_array(4, stream=s, client=c),
    "managed_array": lambda c, a, s: caid.managed_array(4, stream=s, client=c),
    "to_device": lambda c, a, s: caid.to_device([1], s, client=c),
    "bind": lambda c, a, s: a.bind(s),
    "ravel": lambda c, a, s: a.ravel(stream=s),
    "mapped": lambda c, a, s: caid.mapped(numpy.zeros(4), stream=s, client=c).__enter__(),
}
AS_NUMBA = ("bind", "copy", "device_array", "managed_array", "mapped", "ravel", "to_device", "Event")
# 0 is the default one


@pytest.mark.filterwarnings("ignore:un:ResourceWarning")
@pytest.mark.parametrize("name", TAKE_STREAMS)
def test_what_takes_streams_refuses_what_is_none(client, name):
    with client.empty(4, "|u1") as a:
        a.copy_from_host(b"abcd")
        for wrong in (-2, 2**64) if name.startswith(AS_NUMBA) else (0, -2, 2**64):
            with pytest.raises(ValueError, match="stream"):
                TAKE_STREAMS[name](client, a, wrong)
        for wrong in ("1", object()):
            with pytest.raises(TypeError, match="stream"):
                TAKE_STREAMS[name](client, a, wrong)
        assert not a.closed and bytes(a.copy_to_host()) == b"abcd"
    assert client.list() == []
    gc.collect()


def test_one_that_the_driver_does_not_know(client, soft):
    with client.stream() as s:
        gone = caid.Stream.from_handle(s.ptr, client)
    for use in (gone.synchronize, gone.query, gone.check, lambda: gone.add_callback(print)):
        with pytest.raises(caid.DriverError) as caught:
            use()
        assert caught.value.cuda_result == 400  # CUDA_ERROR_INVALID_HANDLE


# --- waiting --------------------------------------------------------------------------------


def test_synchronize_waits(client):
    with client.stream() as s, Held(s) as held:
        thread, ended = in_thread(s.synchronize)
        until_it_waits(thread)
        assert not ended and not s.is_done
        held.gate.set()
        thread.join(PATIENCE_S)
        assert ended == [None] and s.is_done


def test_auto_synchronize(client, slow):
    called = []
    with client.stream() as s:
        with s.auto_synchronize() as same:
            assert same is s
            with Held(s):
                s.add_callback(lambda *_: called.append(1))
                assert not called
        assert called == [1]
        with pytest.raises(KeyError, match="the block's"), s.auto_synchronize():
            s.add_callback(lambda *_: called.append(2))
            raise KeyError("the block's")
        assert called == [1, 2]


def test_auto_synchronize_hides_no_exception(client):
    s = client.stream()
    with pytest.raises(KeyError, match="the block's"), s.auto_synchronize():
        s.close()
        raise KeyError("the block's")
    with pytest.raises(caid.ClosedError), client.stream().auto_synchronize() as s:
        s.close()


def test_close_lets_what_is_on_it_finish(client, slow):
    called = threading.Event()
    with client.stream() as s:
        s.add_callback(lambda *_: called.set())
    assert called.wait(PATIENCE_S)


def test_close_while_others_wait(client):
    """The last of them ends the stream."""
    s = client.stream()
    with Held(s) as held:
        waiters = [in_thread(s.synchronize) for _ in range(4)]
        for thread, _ in waiters:
            until_it_waits(thread)
        s.close()
        assert s.closed
        with pytest.raises(caid.ClosedError):
            s.query()
        held.gate.set()
        for thread, _ in waiters:
            thread.join(PATIENCE_S)
    assert [ended for _, ended in waiters] == [[None]] * 4


# --- callbacks ------------------------------------------------------------------------------


def test_callbacks_are_called_in_order(client, slow):
    called = []
    with client.stream() as s:
        with Held(s):
            for i in range(10):
                s.add_callback(lambda *args: called.append(args), i)
            assert not called
        s.synchronize()
        assert called == [(s, 0, i) for i in range(10)]
        assert called[0][0] is s
        s.add_callback(lambda *args: called.append(args))
        s.synchronize()
        assert called[-1] == (s, 0, None)


def test_a_callback_is_kept_until_it_was_called_and_no_longer(client):
    class Arg:
        pass

    called = []
    arg = Arg()
    kept = weakref.ref(arg)
    with client.stream() as s:
        with Held(s):
            s.add_callback(lambda _stream, _status, arg: called.append(type(arg)), arg)
            del arg
            gc.collect()
            assert kept() is not None and not called
        s.synchronize()
        wait_until(lambda: kept() is None)  # its thread may be just behind the call
    assert called == [Arg]


def test_a_stream_is_kept_by_its_callback(client, soft):
    """The last reference may be the callback's, whose thread must not destroy a stream: the next
    one to be added does."""
    client.stream().close()
    before = n_live("streams")
    gate, called = threading.Event(), threading.Event()
    s = client.stream()
    s.add_callback(lambda *_: gate.wait(PATIENCE_S))
    s.add_callback(lambda *_: called.set())
    del s
    gc.collect()
    gate.set()
    assert called.wait(PATIENCE_S) and n_live("streams") == before + 1
    deadline = time.monotonic() + PATIENCE_S
    with client.stream() as other, pytest.warns(ResourceWarning, match="unclosed <caid.Stream") as told:
        while not told and time.monotonic() < deadline:
            other.add_callback(lambda *_: None)
    told.clear()  # which has the stream
    wait_until(lambda: n_live("streams") == before)


def test_what_a_callback_was_given_ends_where_cuda_may_be_called(client):
    """Not in the driver's thread: the next call on any stream lets go of it."""
    ended_in = []

    class Ends:
        def __call__(self, *_):
            called.set()

        def __del__(self):
            ended_in.append(threading.current_thread())

    called = threading.Event()
    with client.stream() as s, client.stream() as t:
        with Held(s):
            s.add_callback(Ends(), Ends())
        assert called.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while len(ended_in) < 2 and time.monotonic() < deadline:
            t.query()
    assert ended_in == [threading.main_thread()] * 2


def test_what_a_callback_raises_is_reported(client, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def callback(stream, status, arg):
        raise KeyError(arg)

    after = []
    with client.stream() as s:
        s.add_callback(callback, "told")
        s.add_callback(lambda *_: after.append(1))
        s.add_callback(lambda: None)  # takes no arguments
        s.synchronize()
        wait_until(lambda: len(reported) == 2)
    assert [r.exc_type for r in reported] == [KeyError, TypeError]
    assert reported[0].object is callback and after == [1]


def test_what_is_no_callback(client):
    with client.stream() as s:
        for wrong in (None, 1, "print"):
            with pytest.raises(TypeError, match="a callable is needed"):
                s.add_callback(wrong)


def test_callbacks_of_many_streams_and_threads(client):
    called = []

    def work(i):
        with client.stream() as s:
            for j in range(100):
                s.add_callback(lambda _stream, _status, arg: called.append(arg), (i, j))
            s.synchronize()

    in_threads(4, work)
    for i in range(4):
        assert [arg for arg in called if arg[0] == i] == [(i, j) for j in range(100)]


# --- asyncio --------------------------------------------------------------------------------


def test_async_done(client, slow):
    async def main():
        called = []
        with client.stream() as s:
            with Held(s):
                s.add_callback(lambda *_: called.append(1))
                future = s.async_done()
                assert isinstance(future, asyncio.Future) and not future.done() and not called
            assert await future is None and called == [1]
            s.synchronize()  # the callback's thread may be on its way back still
            assert s.query()

    run_async(main())


def test_the_loop_goes_on_meanwhile(client):
    async def main():
        with client.stream() as s, client.stream() as t:
            with Held(s):
                slow_one = s.async_done()
                await t.async_done()
                assert not slow_one.done()
            await slow_one
            await asyncio.gather(*(each.async_done() for each in (s, t) for _ in range(20)))

    run_async(main())


def test_a_future_that_is_cancelled(client):
    async def main():
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda *args: reported.append(args))
        with client.stream() as s:
            with Held(s):
                future = s.async_done()
                future.cancel()
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(s.async_done(), 0.01)
            await s.async_done()
            assert future.cancelled() and not reported

    run_async(main())


def test_a_loop_that_is_closed_meanwhile(client, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with client.stream() as s:
        with Held(s):

            async def main():
                return s.async_done()

            future = run_async(main())
        s.synchronize()
        done = threading.Event()
        s.add_callback(lambda *_: done.set())
        assert done.wait(PATIENCE_S)
    assert not future.done() and not reported


def test_a_stream_that_is_closed_meanwhile(client):
    async def main():
        s = client.stream()
        with Held(s):
            future = s.async_done()
            s.close()
        assert await future is None

    run_async(main())


def test_async_done_needs_a_loop(client):
    with client.stream() as s, pytest.raises(RuntimeError, match="no running event loop"):
        s.async_done()


def test_a_stream_that_failed_is_told_of(child):
    """A device that faults fails its streams; their callbacks are called all the same."""
    c = child(
        """
        import asyncio, threading
        from conftest import softcuda

        async def main(s):
            called, gate, held = [], threading.Event(), threading.Event()
            s.add_callback(lambda *_: (held.set(), gate.wait(60)))
            held.wait()
            s.add_callback(lambda stream, status, arg: called.append(status))
            future = s.async_done()
            softcuda("fault 0 700")
            gate.set()
            for call in (lambda: future, s.synchronize):
                try:
                    await call()
                except caid.DriverError as e:
                    assert e.cuda_result == 700 and "700" in str(e)
                else:
                    sys.exit("no error")
            assert called == [700], called

        with caid.connect() as c, c.stream() as s:
            s.synchronize()
            asyncio.run(main(s))
        """
    )
    assert c.finish() == (0, "")


# --- exit --------------------------------------------------------------------------


CONNECTS = "import threading, time\nc = caid.connect()\n"
EXITS = {
    "streams are left open": "keep = c.stream()",
    "a callback is pending": "s = c.stream(); s.add_callback(print)",
    "a callback without end is pending": """
s, held = c.stream(), threading.Event()
s.add_callback(lambda *_: (held.set(), time.sleep(0.2)))
held.wait()
for _ in range(100):
    s.add_callback(print)
""",
    "futures are pending": """
import asyncio
async def main(): return [c.stream().async_done() for _ in range(10)]
keep = asyncio.run(main())
""",
    "a cycle": "l = [c.stream()]; l[0].add_callback(lambda *_: l); l.append(l)",
}


@pytest.mark.parametrize("what", EXITS.values(), ids=EXITS.keys())
def test_the_interpreter_exits_cleanly(child, client, soft, what):
    """With callbacks that come before, while and after it does."""
    for delay_us in (0, 1000, 30000, 300000):
        c = child(CONNECTS + what, CAID_SOFTCUDA_DELAY_US=str(delay_us), PYTHONWARNINGS="ignore")
        assert c.finish() == (0, ""), delay_us
    wait_until(lambda: client.status().connections == 1)


def test_a_callback_that_runs_at_exit_is_waited_for(child, client, soft):
    code = """
s, held = c.stream(), threading.Event()
s.add_callback(lambda *_: (held.set(), time.sleep(0.3), print("whole", flush=True)))
s.add_callback(lambda *_: print("never", flush=True))
held.wait()
"""
    c = child(CONNECTS + code, PYTHONWARNINGS="ignore")
    c.expect("whole")
    assert c.process.stdout.read() == "" and c.finish() == (0, "")


def test_ctrl_c_ends_the_wait_for_a_callback_at_exit(child):
    c = child(
        """
        import atexit, os, signal, threading, time

        c = caid.connect()
        s, held = c.stream(), threading.Event()
        s.add_callback(lambda *_: (held.set(), time.sleep(3600)))
        held.wait()
        print("up", flush=True)
        """
    )
    c.expect("up")
    wait_until(lambda: is_asleep(str(c.pid)))
    os.kill(c.pid, signal.SIGINT)
    _, errors = c.finish()
    assert "KeyboardInterrupt" in errors
