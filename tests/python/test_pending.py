# SPDX-License-Identifier: Apache-2.0
"""Work that caid knows of: the stream of the CUDA Array Interface, and who waits for what."""

import gc
import os
import signal
import weakref

import numpy as np
import pytest
from conftest import PATIENCE_S, after_gate, forked, in_a_thread, in_thread, in_threads, is_asleep, n_leases, softcuda, wait_until

import caid
from caid._handoff import _pending

N = 1000


def exported(array):
    return array.__cuda_array_interface__["stream"]


class Owner:
    """Another library's stream object."""

    def __init__(self, stream):
        self.ptr = stream.number


@pytest.fixture
def zeros(client):
    with client.create("zeros", N, "<i4") as a:
        a.copy_from_host(np.zeros(N, "<i4"))
        yield a


@pytest.fixture
def sevens(client):
    data = caid.pinned_array(N, "<i4", client=client)
    data[:] = 7
    return data


# --- which stream ---------------------------------------------------------------------------


def test_nothing_is_pending_at_first(client, zeros):
    assert exported(zeros) is None
    assert exported(zeros[::2]) is None
    zeros.synchronize()


@pytest.mark.parametrize("kind", ["an object", "a number", "caid's", 1, 2])
def test_one_of_our_own_waits(client, zeros, sevens, stream, kind):
    """Nobody else ends it, and nobody else's work is on it."""
    with client.stream() as s:
        number = {"an object": stream.number, "a number": stream.number, "caid's": s.handle}.get(kind, kind)
        given = {"an object": Owner(stream), "caid's": s}.get(kind, number)
        stream.hold_up()
        event = client.event()
        event.record(stream.number)
        event.wait(given)
        zeros.copy_from_host(sevens, stream=given)
        own = exported(zeros)
        assert own not in (None, 0, 1, 2, number)
        assert exported(zeros) == exported(zeros[5:]) == own
        s.close()  # what is on it goes on
        assert after_gate(stream.gate, lambda: client._stream_synchronize(own, 0) or "done") == "done"
        assert exported(zeros) is None
        assert (zeros.copy_to_host() == 7).all()
        event.close()


def test_a_stream_that_was_told_lives_as_long_as_the_array(client, sevens, stream):
    with client.empty(N, "<i4") as a:
        stream.hold_up()
        a.copy_from_host(sevens, stream=stream.number)
        assert exported(a[3:]) is not None
        kept = weakref.ref(a._memory.pending.exported)
        stream.gate.set()
        a.synchronize()
        gc.collect()
        assert kept() is not None and not kept().closed
    del a
    gc.collect()
    assert kept() is None


def test_of_two_streams_one_of_our_own_waits(client, zeros, sevens, streams):
    owners = [Owner(s) for s in streams]
    for s, owner, half in zip(streams, owners, (slice(0, 500), slice(500, N))):
        s.hold_up()
        zeros[half].copy_from_host(sevens[half], stream=owner)
    own = exported(zeros)
    thread, done = in_a_thread(lambda: client._stream_synchronize(own, 0) or "done")
    streams[1].gate.set()
    streams[1].synchronize()
    thread.join(0.05)
    assert done == [] and exported(zeros) == own
    streams[0].gate.set()
    thread.join()
    assert done == ["done"]
    assert (zeros.copy_to_host() == 7).all()


def test_arrays_share_the_stream_of_our_own(client, zeros, sevens, stream):
    with client.empty(N, "<i4") as b:
        stream.hold_up()
        zeros.copy_from_host(sevens, stream=stream.number)
        b.copy_from_host(sevens, stream=stream.number)
        own = exported(zeros)
        assert own == exported(b)
        stream.gate.set()
        b.synchronize()
    assert exported(zeros) is None
    assert zeros._memory.pending.exported is b._memory.pending.exported


def test_views_of_foreign_memory_share_what_is_pending(client, zeros, sevens, stream):
    with caid.as_array(zeros.__cuda_array_interface__) as b:
        v = b[10:]
        stream.hold_up()
        b.copy_from_host(sevens, stream=Owner(stream))
        assert exported(v) is not None
        assert exported(zeros) is None  # it knows of nothing
        stream.gate.set()
        v.synchronize()
        assert exported(b) is None
        v.close()


def test_the_environment_and_version_2(client, zeros, sevens, stream, monkeypatch):
    stream.hold_up()
    zeros.copy_from_host(sevens, stream=Owner(stream))
    monkeypatch.setenv("CAID_CAI_SYNC", "0")
    assert exported(zeros) is None
    assert (np.asarray(zeros) == 0).all()
    monkeypatch.delenv("CAID_CAI_SYNC")
    monkeypatch.setenv("CAID_CAI_EXPORT_VERSION", "2")
    assert "stream" not in after_gate(stream.gate, lambda: zeros.__cuda_array_interface__)
    assert exported_nothing(zeros)


def exported_nothing(array):
    return not array._memory.pending.unfinished()


# --- who waits ------------------------------------------------------------------------------


def waits(stream, zeros, sevens, call):
    """What a call gives that has to come after a copy."""
    stream.hold_up()
    zeros.copy_from_host(sevens, stream=stream.number)
    return after_gate(stream.gate, call)


READS = {
    "a copy without a stream": lambda array, _seen: array.copy_to_host(),
    "NumPy": lambda array, _seen: np.asarray(array).copy(),
    "synchronize": lambda array, seen: array.synchronize() or seen.copy(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_who_reads_waits(zeros, sevens, streams, read):
    seen = np.asarray(zeros)
    assert (waits(streams[0], zeros, sevens, lambda: read(zeros, seen)) == 7).all()


def test_publishing_waits(client, zeros, sevens, streams):
    def publish():
        zeros.publish("whole", stream=streams[1].number)
        with client.open("whole") as b:
            return np.asarray(b).copy()

    assert (waits(streams[0], zeros, sevens, publish) == 7).all()


def test_an_array_that_is_closed_on_a_stream_waits_for_the_others(client, sevens, streams):
    s, t = streams
    a = client.empty(N, "<i4")
    s.hold_up()
    a.copy_from_host(sevens, stream=s.number)
    a.close(t.number)
    assert a.closed
    with client.empty(N, "<i4") as b:  # of the same block, if that were free
        b.copy_from_host(np.zeros(N, "<i4"))
        assert client.status().leases == 2
        s.gate.set()
        t.synchronize()
        assert (b.copy_to_host() == 0).all()
    wait_until(lambda: n_leases(client) == 0)


# --- brackets -------------------------------------------------------------------------------


def test_a_brackets_views_name_its_stream(client, zeros):
    with client.stream() as s:
        with zeros.write(s) as v:
            assert exported(v) == exported(v[1:]) == exported(v.T[::2]) == s.handle
            assert exported(zeros) is None
        with zeros.read(None) as v:
            assert exported(v) is None


def test_an_ended_bracket_is_pending(client, zeros, stream):
    owner = Owner(stream)
    stream.hold_up()
    with zeros.write(owner) as v:
        stream.fill(v, 0x11)
    assert exported(zeros) is not None
    stream.gate.set()
    zeros.synchronize()
    assert exported(zeros) is None
    v.close()


def test_the_host_waits_for_a_brackets_stream_where_it_reads(client, zeros, streams):
    s, _ = streams
    for read in (
        lambda v: v.copy_to_host(),
        lambda v: np.asarray(v).copy(),
        lambda v: v.synchronize() or np.asarray(zeros).copy(),
    ):
        zeros.copy_from_host(np.zeros(N, "<i4"))
        s.gate.clear(), s.waiting.clear()
        with zeros.write(s.number) as v:
            s.hold_up()
            s.fill(v, 0x11)
            assert (after_gate(s.gate, lambda: read(v)) == 0x11111111).all()
        v.close()


@pytest.mark.parametrize("by", ["copies through its view", "a tensor of it"])
def test_other_streams_come_after_a_brackets(client, zeros, streams, by):
    s, t = streams
    out = caid.pinned_array(N, "<i4", client=client)
    with zeros.write(s.number) as v:
        s.hold_up()
        s.fill(v, 0x11)
        if by == "a tensor of it":
            v.__dlpack__(stream=t.number)  # given back at once: its stream waits all the same
            t.read(v, out)
        else:
            v.copy_to_host(out, stream=t.number)
        after_gate(s.gate, lambda: client._stream_synchronize(t.number, 0))
    assert (out == 0x11111111).all()
    v.close()


def test_a_bracket_comes_after_copies_and_ends_after_them(client, zeros, sevens, streams):
    """Copies on other streams, before it and in it: who comes next does not have to know them."""
    s, t = streams
    out = caid.pinned_array(N, "<i4", client=client)
    t.hold_up()
    zeros.copy_from_host(sevens, stream=t.number)
    with zeros.read(s.number) as v:
        v.copy_to_host(out, stream=s.number)
        t.gate.set()
        s.synchronize()
        assert (out == 7).all()
    v.close()
    t.gate.clear(), t.waiting.clear()
    t.hold_up()
    out[:] = 8
    with zeros.write(s.number) as v:
        v.copy_from_host(out, stream=t.number)
    v.close()
    assert (after_gate(t.gate, lambda: read_by_another(client, zeros)) == 8).all()


def read_by_another(client, array):
    """What one reads that has no lease of ours, after the bracket."""
    with client.open(array.name) as other, other.read(None) as v:
        return np.asarray(v).copy()


# --- streams that are none of ours ----------------------------------------------------------


def test_a_stream_of_another_context_is_not_waited_for(client, zeros, sevens, elsewhere):
    """Neither by copies nor by a bracket; who comes after them waits all the same."""

    def work():
        zeros.copy_from_host(sevens, stream=elsewhere.number)
        with zeros.write(elsewhere.number) as v:
            v[:10].copy_from_host(sevens[10:20], stream=elsewhere.number)
        v.close()

    elsewhere.hold_up()
    thread, ended = in_thread(work)
    try:
        wait_until(lambda: ended)
        own = exported(zeros)
        thread, done = in_a_thread(lambda: client._stream_synchronize(own, 0) or "done")
        assert ended == [None] and done == []
    finally:
        elsewhere.gate.set()
    thread.join()
    assert done == ["done"] and (zeros.copy_to_host() == 7).all()
    assert exported(zeros) is None


class PerThread:
    """As cupy.cuda.Stream.ptds: one object for another stream in each thread."""

    ptr = 2


def test_a_stream_of_each_thread_waits_for_that_of_another(client, zeros, sevens, streams):
    held, each = streams[0], PerThread()
    held.hold_up()

    def copy():
        event = client.event()
        event.record(held.number)
        event.wait(each)
        zeros.copy_from_host(sevens, stream=each)

    thread, ended = in_thread(copy)
    thread.join(PATIENCE_S)
    assert ended == [None]
    _pending.order(zeros._memory, each)
    here = client.event()
    here.record(each)
    thread, done = in_a_thread(lambda: here.synchronize() or "done")
    was_waiting = done == []
    held.gate.set()
    thread.join()
    assert was_waiting and done == ["done"] and (np.asarray(zeros) == 7).all()


def test_a_stream_does_not_wait_for_itself(client, zeros, sevens, stream):
    owner = Owner(stream)
    stream.hold_up()
    zeros.copy_from_host(sevens, stream=owner)
    softcuda("fail cuStreamWaitEvent=UNKNOWN")
    try:
        _pending.order(zeros._memory, owner)
        with pytest.raises(caid.DriverError):
            _pending.order(zeros._memory, stream.number)
    finally:
        softcuda("clear")
        stream.gate.set()
    zeros.synchronize()


# --- what is kept ---------------------------------------------------------------------------


def test_host_memory_is_kept_until_the_stream_has_passed(client, zeros, stream):
    def start():
        data = caid.pinned_array(N, "<i4", client=client)
        data[:] = 7
        stream.hold_up()
        zeros.copy_from_host(data, stream=stream.number)
        return weakref.ref(data)

    kept = start()
    gc.collect()
    caid.Stream.from_handle(stream.number, client).query()
    assert kept() is not None
    stream.gate.set()
    caid.Stream.from_handle(stream.number, client).synchronize()
    assert kept() is None
    assert (zeros.copy_to_host() == 7).all()


def test_host_memory_is_kept_past_the_end_of_its_array(client, stream):
    a = client.empty(N, "<i4")
    data = caid.pinned_array(N, "<i4", client=client)
    kept = weakref.ref(data)
    stream.hold_up()
    a.copy_to_host(data, stream=stream.number)
    a.close()
    del a, data
    gc.collect()
    assert kept() is not None
    stream.gate.set()
    stream.synchronize()
    with client.empty(1, "<i4") as b:  # a later copy looks
        b.copy_from_host(np.zeros(1, "<i4"), stream=1)
    assert kept() is None
    _pending.release()


def test_buffers_cannot_be_made_smaller_meanwhile(client, stream):
    data = bytearray(4 * N)
    with client.empty(N, "<i4") as a:
        stream.hold_up()
        a.copy_from_host(data, stream=stream.number)
        with pytest.raises(BufferError):
            data.clear()
        stream.gate.set()
        a.synchronize()
        _pending.release()
        data.clear()


def end_a_bracket(client, array, stream):
    with array.read(stream.number):
        stream.synchronize()


def wait_for_an_event(client, _array, stream):
    event = client.event()
    event.record(stream.number)
    event.synchronize()


LOOKS = {
    "Array.synchronize": lambda _client, array, _stream: array.synchronize(),
    "Event.synchronize": wait_for_an_event,
    "Bracket.end": end_a_bracket,
    "a copy without a stream": lambda _client, array, _stream: array.copy_to_host(bytearray(4 * N)),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_who_waits_lets_go_of_memory_of_the_host(client, zeros, stream, look):
    """Also of what another array was copied from."""
    data = caid.pinned_array(N, "<i4", client=client)
    kept = weakref.ref(data)
    with client.empty(N, "<i4") as a:
        stream.hold_up()
        a.copy_from_host(data, stream=stream.number)
    del data
    stream.gate.set()
    stream.synchronize()
    look(client, zeros, stream)
    gc.collect()
    assert kept() is None


def test_what_other_libraries_own_is_kept(client, zeros, sevens, stream):
    class Theirs:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__

    theirs = Theirs(zeros)
    kept = weakref.ref(theirs)
    with client.empty(N, "<i4") as b:
        stream.hold_up()
        b.copy_from(theirs, stream=stream.number)
        del theirs
        gc.collect()
        assert kept() is not None
        stream.gate.set()
        b.synchronize()
        _pending.release()
        assert kept() is None
        assert (b.copy_to_host() == 0).all()


def held_copy(daemon, stream):
    """(a client, an array of its, a reference to memory of the host) of a copy to that on a held stream."""
    c = daemon.connect()
    a = c.empty(N, "<i4")
    data = caid.pinned_array(N, "<i4", client=c)
    stream.hold_up()
    a.copy_to_host(data, stream=stream.number)
    return c, a, weakref.ref(data)


def test_closing_a_client_waits_for_memory_of_the_host(daemon, soft, stream):
    c, _a, kept = held_copy(daemon, stream)
    thread, closed = in_a_thread(lambda: c.close() or "closed")
    assert closed == [] and kept() is not None
    stream.gate.set()
    thread.join()
    assert closed == ["closed"]
    gc.collect()
    assert kept() is None


def test_ctrl_c_ends_the_wait_of_a_close(child, client):
    """For a copy behind a wait that never ends. What the copy uses stays for good."""
    c = child(
        """
        import gc, weakref
        import numpy as np

        with caid.connect() as other, other.timeline("never") as t:
            c = caid.connect()
            s, a = c.stream(), c.empty(1000, "<i4")
            c.open_timeline("never").wait(s, 1, ahead=True)
            data = caid.pinned_array(1000, "<i4", client=c)
            kept = weakref.ref(data)
            a.copy_to_host(data, stream=s)
            del data
            print("up", flush=True)
            try:
                c.close()
            except KeyboardInterrupt:
                assert c.closed and a.closed and s.closed
                gc.collect()
                caid._handoff._pending.release()
                assert kept() is not None and not caid._handoff._pending._kept.list
                step("closed")
        """
    )
    c.expect("up")
    wait_until(lambda: is_asleep(str(c.pid)))
    os.kill(c.pid, signal.SIGINT)
    c.expect("closed")
    c.go()
    assert c.finish() == (0, "")


def test_what_nobody_can_ask_about_is_kept_for_good(daemon, soft, stream):
    """The extension's own close() does not wait, and ends the marks before the copies."""
    c, _a, kept = held_copy(daemon, stream)
    thread, closed = in_a_thread(lambda: caid._caid.Client.close(c) or "closed")
    stream.gate.set()
    thread.join()
    assert closed == ["closed"]
    _pending.release()
    gc.collect()
    assert _pending._kept.list == [] and kept() is not None


def test_marks_do_not_pile_up(client, zeros, sevens, stream):
    """Neither while nothing passes, on one stream, nor afterwards."""
    owner = Owner(stream)
    for _ in range(500):
        zeros.copy_from_host(sevens, stream=owner)
    stream.synchronize()
    zeros.copy_from_host(sevens, stream=owner)
    stream.synchronize()
    zeros.copy_from_host(sevens, stream=owner)
    assert len(zeros._memory.pending.list) <= 2 and len(_pending._kept.list) <= 2
    zeros.synchronize()
    _pending.release()
    assert _pending._kept.list == []


def test_many_threads_copy_on_one_array(client, zeros, sevens, streams):
    def work(i):
        for _ in range(100):
            zeros.copy_from_host(sevens, stream=streams[i % 2].number)
            exported(zeros)

    in_threads(4, work)
    zeros.synchronize()
    assert exported(zeros) is None and (zeros.copy_to_host() == 7).all()


def test_a_fork_has_nothing_under_way(client, zeros, sevens, stream):
    stream.hold_up()
    zeros.copy_from_host(sevens, stream=stream.number)

    def work():
        assert _pending._kept.list == []

    forked(lambda: exported(zeros), work=work)
    stream.gate.set()
    zeros.synchronize()
