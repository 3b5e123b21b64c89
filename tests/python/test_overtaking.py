# SPDX-License-Identifier: Apache-2.0
"""The order of work on the stream of a CUDA Array Interface: the producer's later work comes after the
consumer's, and caid's next use after what a consumer enqueued there.

Source: CUDA Array Interface, version 3, "Interface Requirements".
"""

import contextlib
import ctypes
import sys
import threading
import types

import numpy as np
import pytest
from conftest import in_thread

import caid

N = 1000


class Producer:
    """Another library's array, whose work is on a stream that its dict names."""

    def __init__(self, array, stream):
        self.array = array
        self.stream = stream

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, "stream": self.stream}

    def __dlpack__(self, **wanted):
        return self.array.__dlpack__(dl_device=self.__dlpack_device__(), **wanted)

    def __dlpack_device__(self):
        return 2, self.array.mapped_ordinal


@pytest.fixture
def memory(client, soft):
    """(array of ones, page-locked ones, page-locked twos)"""
    ones, twos = (caid.pinned_array(N, "<i4", client=client) for _ in range(2))
    ones[:], twos[:] = 1, 2
    with client.create("m", N, "<i4") as a:
        a.copy_from_host(ones)
        yield a, ones, twos


def open_soon(gate):
    """Opens a gate when what may overtake has."""
    threading.Timer(0.1, gate.gate.set).start()


# --- the producer does not overtake ---------------------------------------------------------


def copy_from(client, x, there, s):
    there.copy_from(x, stream=s)


def copy_to(client, x, there, s):
    there.copy_to(x, stream=s)


def to_device(client, x, there, s):
    caid.to_device(there, stream=s, to=x)


def through_as_array(client, x, there, s):
    there.copy_from(client.as_array(x), stream=s)


def through_a_view(client, x, there, s):
    client.as_array(x)[::-1].copy_to(there, stream=s)


class Tensor(Producer):
    """Its dict names no stream: the work is on the library's current one."""

    device = "cuda:0"

    @property
    def __cuda_array_interface__(self):
        return {**super().__cuda_array_interface__, "version": 2, "stream": None}


def by_pytorch(read):
    def reading(client, x, there, s):
        current = type("Stream", (), {"cuda_stream": x.stream, "__module__": "torch.cuda"})()
        cuda = types.SimpleNamespace(current_stream={"cuda:0": current}.__getitem__)
        with pytest.MonkeyPatch.context() as patch:
            torch = types.SimpleNamespace(Tensor=Tensor, cuda=cuda)
            patch.setitem(sys.modules, "torch", torch)
            read(client, Tensor(x.array, x.stream), there, s)

    return reading


def through_from_dlpack(client, x, there, s):
    there.copy_from(client.from_dlpack(x), stream=s)


def through_dlpack(client, x, there, s):
    stream = x.stream if x.stream <= 2 else type("Owner", (), {"ptr": x.stream})()
    there.copy_from(client.from_dlpack(x, stream=stream), stream=s)


READS = [copy_from, through_as_array, through_a_view, through_dlpack]
READS += map(by_pytorch, [copy_from, through_as_array, through_a_view, through_from_dlpack])


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("streams_of", ["a stream", "the legacy stream", "this thread's"])
def test_what_is_read_is_not_overwritten(client, memory, streams, read, streams_of):
    a, _, twos = memory
    _, s = streams
    p = {"a stream": streams[0].number, "the legacy stream": 1, "this thread's": 2}[streams_of]
    with client.empty(N, "<i4") as there:
        s.hold_up()
        read(client, Producer(a, p), there, s.number)
        a.copy_from_host(twos, stream=p)
        open_soon(s)
        s.synchronize()
        assert (there.copy_to_host() == 1).all()
    a.synchronize()


@pytest.mark.parametrize("write", [copy_to, to_device, by_pytorch(copy_to), by_pytorch(to_device)])
def test_what_is_written_is_not_read_before(client, memory, streams, write):
    a, _, twos = memory
    p, s = streams
    seen = caid.pinned_array(N, "<i4", client=client)
    with client.empty(N, "<i4") as there:
        there.copy_from_host(twos)
        s.hold_up()
        write(client, Producer(a, p.number), there, s.number)
        a.copy_to_host(seen, stream=p.number)
        open_soon(s)
        p.synchronize()
        assert (seen == 2).all()
        s.synchronize()


def test_the_per_thread_stream_of_another_thread(client, memory, streams):
    """No thread can make another's stream wait: the copy has happened when the call returns."""
    a, _, twos = memory
    s = streams[0]
    thread, made = in_thread(lambda: client.as_array(Producer(a, 2)))
    thread.join()
    with client.empty(N, "<i4") as there, made.pop() as b:
        there.copy_from_host(twos)
        seen = np.asarray(there)
        s.hold_up()
        open_soon(s)
        there.copy_from(b, stream=s.number)
        assert (seen == 1).all()
        assert b.__cuda_array_interface__["stream"] is None  # it has no name here


def test_on_the_producers_own_stream_nobody_waits(client, memory, streams):
    a, _, twos = memory
    p, _ = streams
    with client.empty(N, "<i4") as there:
        p.hold_up()
        there.copy_from(Producer(a, p.number), stream=p.number)
        a.copy_from_host(twos, stream=p.number)
        p.gate.set()
        p.synchronize()
        assert (np.asarray(there) == 1).all()


def test_the_stream_goes_with_the_array(client, memory, streams):
    """Who gets another library's array from caid is told its stream, and what is pending on it."""
    a, ones, _ = memory
    p, s = streams
    with client.as_array(Producer(a, p.number)) as b, client.as_array(b[1:]) as c:
        s.hold_up()
        b.copy_from_host(ones, stream=s.number)
        assert b.__cuda_array_interface__["stream"] == p.number
        assert c.__cuda_array_interface__["stream"] == p.number
        p.fill(a, 0x11)  # later than all that
        open_soon(s)
        assert (b.copy_to_host() == 0x11111111).all()


def test_without_synchronization_nobody_waits(client, memory, streams, monkeypatch):
    a, ones, twos = memory
    p, s = streams
    seen = caid.pinned_array(N, "<i4", client=client)
    with client.as_array(Producer(a, p.number), sync=False) as b, contextlib.ExitStack() as stack:
        assert b.__cuda_array_interface__["stream"] is None
        s.hold_up()
        stack.callback(s.gate.set)
        b.copy_from_host(twos, stream=s.number)
        a.copy_to_host(seen, stream=p.number)
        p.synchronize()
        assert (seen == 1).all()
        monkeypatch.setenv("CAID_CAI_SYNC", "0")
        there = stack.enter_context(client.empty(N, "<i4"))
        there.copy_from(Producer(a, p.number), stream=s.number)
        a.copy_to_host(seen, stream=p.number)
        p.synchronize()
    a.synchronize()


def test_a_bracket_is_not_overtaken_on_its_stream(client, memory, streams):
    a, _, twos = memory
    p, s = streams
    with client.empty(N, "<i4") as there, a.write(p.number) as v:
        s.hold_up()
        there.copy_from(v, stream=s.number)
        v.copy_from_host(twos, stream=p.number)
        open_soon(s)
        p.synchronize()
        s.synchronize()
        assert (np.asarray(there) == 1).all()
        there.synchronize()
    v.close()


# --- caid does not overtake -----------------------------------------------------------------


class Consumer:
    """Another library: it enqueues by the stream that an array's dict names."""

    def __init__(self, client, array, number=None):
        desc = array.__cuda_array_interface__
        self.number, self.address = number or desc["stream"], desc["data"][0]
        self.seen = caid.pinned_array(N, "<i4", client=client)

    def read(self, gate):
        """A copy that a closed gate holds up."""
        gate.hold_up()
        event, stream = ctypes.c_void_p(), ctypes.c_void_p(self.number)
        out, n = ctypes.c_void_p(self.seen.ctypes.data), ctypes.c_size_t(4 * N)
        gate.call("cuEventCreate", ctypes.byref(event), 2)
        gate.call("cuEventRecord", event, gate.handle)
        gate.call("cuStreamWaitEvent", stream, event, 0)
        gate.call("cuEventDestroy_v2", event)
        gate.call("cuMemcpyDtoHAsync_v2", out, ctypes.c_uint64(self.address), n, stream)


def overwrite(a, twos, s):
    a.copy_from_host(twos)


def overwrite_in_a_bracket(a, twos, s):
    with a.write(s) as v:
        v.copy_from_host(twos, stream=s)
    v.close()
    a.synchronize()


def overwrite_when_synchronized(a, twos, s):
    a.synchronize()
    np.asarray(a)[:] = 2


USES = [overwrite, overwrite_in_a_bracket, overwrite_when_synchronized]


@contextlib.contextmanager
def told(client, array, data, gate):
    """A consumer that was told a stream, on which nothing is left."""
    gate.hold_up()
    array.copy_from_host(data, stream=gate.number)
    consumer = Consumer(client, array)
    gate.gate.set()
    client._stream_synchronize(consumer.number, 0)
    yield consumer
    client._stream_synchronize(consumer.number, 0)


@pytest.mark.parametrize("use", USES)
def test_a_consumer_is_not_overtaken(client, memory, streams, use):
    a, ones, twos = memory
    gate, other = streams
    with told(client, a, ones, other) as consumer:
        for _ in range(2):  # and not only once
            consumer.read(gate)
            open_soon(gate)
            use(a, twos, other.number)
            other.synchronize()
            client._stream_synchronize(consumer.number, 0)
            assert (consumer.seen == 1).all()
            a.copy_from_host(ones)


def test_closing_on_a_stream_waits_for_consumers(client, memory, streams):
    _, ones, _ = memory
    gate, other = streams
    with client.empty(N, "<i4") as mine, told(client, mine, ones, other) as consumer:
        consumer.read(gate)
        mine.close(stream=other.number)
        after = client.event()
        after.record(other.number)
        assert not after.query()
        gate.gate.set()
        after.synchronize()
        assert (consumer.seen == 1).all()
        after.close()


def test_the_work_of_others_on_a_stream_is_not_waited_for(client, memory, streams):
    """What was told is a stream of caid's own: the one that the copy was on may wait for this thread."""
    a, ones, _ = memory
    _, other = streams
    with told(client, a, ones, other):
        other.hold_up()
        a.copy_from_host(ones)
        assert (a.copy_to_host() == 1).all()
        other.gate.set()


def test_a_client_that_is_closed_is_not_asked(daemon, client, memory, streams):
    a, ones, _ = memory
    with daemon.connect() as c:
        b = c.as_array(Producer(a, None))
        streams[0].hold_up()
        b.copy_from_host(ones, stream=streams[0].number)
        assert b.__cuda_array_interface__["stream"] is not None
        streams[0].gate.set()
        streams[0].synchronize()
    b.close(stream=streams[1].number)
    assert b.closed
