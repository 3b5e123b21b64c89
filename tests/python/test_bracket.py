# SPDX-License-Identifier: Apache-2.0
"""Brackets: what may be in one, and who comes after whom."""

import asyncio
import gc
import threading
import time
import weakref

import pytest
from brackets import begins, contents, ends, figures, filled
from conftest import PATIENCE_S, run_async, wait_until

import caid


# --- one bracket ----------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["the host", "a stream", "the legacy stream", "a number"])
def test_a_bracket(client, shared, on):
    a, _ = shared
    with client.stream() as s:
        stream = {"the host": None, "a stream": s, "the legacy stream": 1, "a number": s.ptr}[on]
        bracket = a.write(stream)
        assert repr(bracket) == "<caid.Bracket write=['shared'] not begun>"
        assert not bracket.is_open
        with bracket as v:
            assert bracket.is_open and repr(bracket) == "<caid.Bracket write=['shared'] open>"
            assert figures(client) == (0, 1, 0, False)
            assert (v.shape, v.typestr, v.ptr, v.readonly) == ((1000,), "<i4", a.ptr, False)
            v.copy_from_host(filled(7), **({} if stream is None else {"stream": stream}))
        assert not bracket.is_open and repr(bracket) == "<caid.Bracket write=['shared'] ended>"
        bracket.check()
        with a.read(stream) as v:
            assert figures(client) == (1, 0, 0, False)
            out = bytearray(4000)
            v.copy_to_host(out, **({} if stream is None else {"stream": stream}))
        s.synchronize()
        caid.Stream.from_handle(1, client).synchronize()
        assert out == filled(7)
        assert figures(client) == (0, 0, 0, False) and client.status().brackets == 0


def test_the_stream_is_the_brackets(client, shared):
    a, _ = shared
    with client.stream() as s:
        for given in (s, s.ptr, caid.Stream.from_handle(s)):
            with a.read(given) as v:
                assert v.__cuda_array_interface__["stream"] == s.ptr
                assert v[::2].view().__cuda_array_interface__["stream"] == s.ptr
        assert a.read(s).stream is s and a.read(s.ptr).stream == s
        assert a.read().stream is None
        with a.read() as v:
            assert v.__cuda_array_interface__["stream"] is None


def test_a_foreign_stream_is_kept_by_its_bracket(client, shared):
    class Foreign:
        def __init__(self, handle):
            self.handle = handle

    with client.stream() as s:
        foreign = Foreign(s.ptr)
        kept = weakref.ref(foreign)
        with shared[0].read(foreign) as v:
            del foreign
            gc.collect()
            assert kept() is not None
        assert kept() is not None, "by the view"
        del v


def test_views_of_a_bracket(client, shared):
    """A view of a view is of that view; it has a share of the lease."""
    a, _ = shared
    with a[10:20].read() as v:
        assert v.shape == (10,) and v.ptr == a.ptr + 40
    assert not v.closed and v.shape == (10,)
    v.close()
    assert not a.closed


def test_what_the_view_may_is_what_the_array_may(client, shared):
    with client.open("shared") as b:
        with b.read() as v, shared[0].read() as w:
            assert v.readonly and not w.readonly


def test_begin_and_end_by_hand(client, shared):
    a, _ = shared
    bracket = a.write()
    for early in (bracket.end, bracket.abandon, bracket.check):
        with pytest.raises(caid.InvalidError, match="has not begun"):
            early()
    v = bracket.begin()
    assert isinstance(v, caid.Array) and bracket.is_open
    for again in (bracket.begin, bracket.__enter__):
        with pytest.raises(caid.InvalidError, match="a bracket is begun once"):
            again()
    bracket.end()
    bracket.check()
    for late in (bracket.end, bracket.abandon):
        with pytest.raises(caid.InvalidError, match="has already ended"):
            late()
    with pytest.raises(caid.InvalidError, match="a bracket is begun once"):
        bracket.begin()
    assert figures(client) == (0, 0, 0, False)


def test_it_may_end_in_its_block(client, shared):
    a, _ = shared
    bracket = a.write()
    with bracket:
        bracket.end()
        assert figures(client) == (0, 0, 0, False)
    bracket = a.write()
    with bracket:
        bracket.abandon()
    assert figures(client) == (0, 0, 0, True)
    a.discard()
    assert figures(client) == (0, 0, 0, False)


# --- several arrays -------------------------------------------------------------------------


def test_arrays_in_one_bracket(client, shared):
    a, _ = shared
    with client.create("b", 4) as b, client.create("c", (2, 2)) as c, client.stream() as s:
        with client.bracket(s, read=[a, b[1:]], write=(x for x in [c])) as views:
            assert [v.shape for v in views] == [(1000,), (3,), (2, 2)]
            assert [figures(client, name)[:2] for name in ("shared", "b", "c")] == [
                (1, 0),
                (1, 0),
                (0, 1),
            ]
            assert client.status().brackets == 1
        with client.bracket(read=[a]) as views:
            assert isinstance(views, tuple) and len(views) == 1
        with client.bracket(write=[c[0], c[1]], read=[b, b, b[2:]]) as views:  # of two leases
            assert len(views) == 5 and figures(client, "c")[:2] == (0, 1)


def test_which_arrays_may_be_in_a_bracket(client, other, shared):
    a, b = shared
    closed = client.empty(4)
    closed.close()
    with client.empty(4, memory="managed") as managed:
        for refused, error, what in [
            (lambda: client.bracket(), caid.InvalidError, "of no arrays"),
            (lambda: client.bracket(read=a), TypeError, "a list of arrays is needed"),
            (lambda: client.bracket(write=a), TypeError, "a list of arrays is needed"),
            (lambda: client.bracket(read=["shared"]), TypeError, "a caid.Array is needed, not str"),
            (lambda: client.bracket(read=[a, b]), caid.InvalidError, "another client's"),
            (lambda: client.bracket(read=[closed]), caid.ClosedError, "closed"),
            (closed.read, caid.ClosedError, "closed"),
            (closed.discard, caid.ClosedError, "closed"),
            (managed.write, caid.UnsupportedError, "no brackets"),
            (managed.discard, caid.UnsupportedError, "no brackets"),
            (caid.as_array(DICT).read, caid.UnsupportedError, "no brackets"),
        ]:
            with pytest.raises(error, match=what):
                refused()
    for wrong, error in ((-1, ValueError), (float("nan"), ValueError), ("1", TypeError)):
        with pytest.raises(error):
            a.read(timeout=wrong).begin()
    with pytest.raises(caid.InvalidError):
        client.bracket(read=[a], write=[a]).begin()
    assert figures(client) == (0, 0, 0, False)


DICT = {"shape": (0,), "typestr": "<i4", "data": (0, False), "version": 3}


def test_only_what_was_opened_for_writing_is_written(client, shared):
    with client.open("shared") as b:
        with pytest.raises(caid.ReadOnlyError):
            b.write().begin()
        with pytest.raises(caid.ReadOnlyError):
            b.discard()
        with b.read():
            pass


# --- who comes after whom -------------------------------------------------------------------


def test_timeouts_and_tries(client, shared):
    a, b = shared
    with a.write():
        for timeout in (0, 0.01, 0.12):
            before = time.monotonic()
            with pytest.raises(caid.TimedOutError) as caught, b.read(timeout=timeout):
                raise AssertionError("it was entered")
            assert isinstance(caught.value, TimeoutError)
            assert time.monotonic() - before >= timeout
        bracket = b.write(timeout=0)
        with pytest.raises(caid.TimedOutError):
            bracket.begin()
        assert figures(client) == (0, 1, 0, False)
    with bracket, pytest.raises(caid.TimedOutError):  # it had not begun
        a.read(timeout=0).begin()
    with b.read(timeout=0), a.read(timeout=1e-12), a.read(timeout=1e300):
        pass


def test_deadlocks(client, shared):
    a, b = shared
    with a.read(), pytest.raises(caid.DeadlockError) as caught:  # a read does not become a write
        a.write().begin()
    assert caught.value.code == caid.ErrorCode.DEADLOCK
    with a.write():
        for bracket in (a.read(), a.write(), client.bracket(read=[a])):
            with pytest.raises(caid.DeadlockError):
                bracket.begin()
    with a.write(), pytest.raises(caid.TimedOutError):
        b.write(timeout=0.01).begin()  # another client of this thread's is another's
    assert figures(client) == (0, 0, 0, False)


# --- parts of one array ---------------------------------------------------------------------


def test_eight_writers_of_slices_are_in_at_a_time(client, shared):
    """Of two clients. Who reads all of it waits for all of them."""
    a, b = shared
    writers = [begins((a, b)[i % 2][125 * i : 125 * (i + 1)].write()) for i in range(8)]
    for writer in writers:
        assert writer.begun.wait(PATIENCE_S)
    assert figures(client) == (0, 8, 0, False)
    reader = begins(b.read())
    wait_until(lambda: figures(client) == (0, 8, 1, False))
    for writer in writers[1:]:
        ends(writer)
    wait_until(lambda: figures(client) == (0, 1, 1, False))  # an end is not waited for
    assert not reader.begun.is_set()
    with a[125:].read():  # who reads another part does not
        assert figures(client) == (1, 1, 1, False)
    ends(writers[0])
    assert reader.begun.wait(PATIENCE_S)
    ends(reader)


def test_a_thread_has_several_parts(client, shared):
    a, _ = shared
    m = a.reshape(10, 100)
    with m[:2].write(), m[2:4].write(), m[9:5:-1].read():
        assert figures(client) == (1, 2, 0, False)
        for overlapping in (m, m[1:3], m[::-1][:9], m[3:6].reshape(300)[::7], m[:, 5]):
            with pytest.raises(caid.DeadlockError):
                overlapping.write().begin()
        with pytest.raises(caid.DeadlockError):  # of no elements: as all of it
            m[4:4].write().begin()
    with client.bracket(read=[m[0], m[9]], write=[m[1:9]]) as views:  # as one with a halo
        assert [v.shape for v in views] == [(100,), (100,), (8, 100)]
        assert figures(client) == (2, 1, 0, False)
    with client.bracket(write=[m[:5], m[3:7], m[7]]):
        assert figures(client) == (0, 1, 0, False), "what overlaps or meets is one part"
    with client.bracket(read=[a[i : i + 1] for i in range(0, 32, 2)]), a[1:2].write():
        assert figures(client) == (16, 1, 0, False)
    with client.bracket(read=[a[i : i + 1] for i in range(10, 1000, 2)]) as views, a[:10].write(), a[999:].write():
        assert len(views) == 495 and figures(client) == (1, 2, 0, False)
        with pytest.raises(caid.DeadlockError):  # so many are one part, from the first to the last
            a[11:12].write().begin()
    for reads, writes in (([m[0]], [m]), ([m[:, 0]], [m[:, 1]])):
        with pytest.raises(caid.InvalidError, match="overlap"):
            client.bracket(read=reads, write=writes).begin()


def test_a_part_is_abandoned_alone(client, shared):
    a, b = shared
    with pytest.raises(KeyError), a[:10].write():
        raise KeyError
    assert figures(client) == (0, 0, 0, True), "for who asks for all of it"
    with b[10:].read(), pytest.raises(caid.AbandonedError):
        b[9:].read().begin()
    with a[:9].write():
        pass
    assert figures(client)[3]
    with a[:11].write():
        pass
    assert not figures(client)[3]


# --- figures and leaks ----------------------------------------------------------------------


def test_nothing_is_left_of_many_brackets(client, shared):
    a, b = shared
    with client.stream() as s:
        for _ in range(20):
            with a.write(s), client.stream() as t, pytest.raises(caid.TimedOutError):
                b.read(t, timeout=0).begin()
        s.synchronize()
        gc.collect()
        objects = len(gc.get_objects())
        for _ in range(200):
            with a.write(s) as v:
                assert not v.closed
            with b.read(s), pytest.raises(caid.TimedOutError):
                a.write(s, timeout=0).begin()
            s.synchronize()  # what is on its way is known here
        del v
        gc.collect()
        assert len(gc.get_objects()) - objects < 50
    assert client.status().brackets == 0


# --- the work of streams ---------------------------------------------------------------------


def test_copies_on_other_streams_come_before_the_end(client, other, shared, memops):
    a, b = shared
    gate = threading.Event()
    s, t = (client.stream(non_blocking=True) for _ in range(2))
    u = other.stream(non_blocking=True)
    with s, t, u, client.empty_like(a) as source, other.empty_like(a) as target:
        source.copy_from_host(filled(9))
        t.add_callback(lambda *_: gate.wait(PATIENCE_S))
        with a.write(s) as v:
            v.copy_from(source, stream=t)
        with b.read(u) as v:
            target.copy_from(v, stream=u)
        s_is_held, u_is_held = not s.query(), not u.query()
        gate.set()
        u.synchronize()
        assert contents(target) == filled(9) and s_is_held and u_is_held


def test_what_a_bracket_has_left_is_pending(client, shared):
    """Outside brackets the dict names a stream on which to wait for it."""
    a, _ = shared
    gate = threading.Event()
    with client.stream() as s:
        with a.read(s) as v:
            s.add_callback(lambda *_: gate.wait(PATIENCE_S))
        assert v.__cuda_array_interface__["stream"] == s.ptr
        assert a.__cuda_array_interface__["stream"] not in (None, s.ptr)
        gate.set()
        a.synchronize()
        assert a.__cuda_array_interface__["stream"] is None
        gate.clear()
        with pytest.raises(KeyError), a.write(s):
            s.add_callback(lambda *_: gate.wait(PATIENCE_S))
            raise KeyError
        assert a.__cuda_array_interface__["stream"] is not None
        gate.set()
        a.synchronize()
    a.discard()


def test_parts_do_not_wait_for_each_others_work(client, shared):
    """Neither for what brackets of other parts have left, nor for copies; who has some of the bytes does."""
    a, _ = shared
    gate = threading.Event()
    s, t, u = (client.stream(non_blocking=True) for _ in range(3))
    with s, t, u, client.empty_like(a) as source:
        for held in (s, t):
            held.add_callback(lambda *_: gate.wait(PATIENCE_S))
        with a[:100].write(s), a[200:300].write(u) as v:
            v[:50].copy_from(source[:50], stream=t)
        with a[100:200].write() as v, client.stream(non_blocking=True) as other, a[800:].read(other):
            v.synchronize(), v.fill(1)
            assert v.__cuda_array_interface__["stream"] is None and "1" in repr(v)
        with client.stream(non_blocking=True) as other:
            with client.bracket(read=[a[100:150], a[160:200]], stream=other):
                pass
            other.synchronize()
            with a[150:210].read(other):
                pass
            assert not other.query() and a[100:150].__cuda_array_interface__["stream"] is None
            assert a[250:260].__cuda_array_interface__["stream"] is not None, "it has a bracket's bytes"
            gate.set()
            other.synchronize()
    a.synchronize()
    assert a.__cuda_array_interface__["stream"] is None and not a._memory.pending.spans


# --- asyncio --------------------------------------------------------------------------------


def test_tasks_take_turns_and_the_loop_goes_on(client, shared):
    """Of one thread's tasks, too, which would be a deadlock of that thread's."""
    a, _ = shared
    seen = []

    async def write(value):
        async with a.write() as v:
            assert figures(client)[1] == 1
            v.copy_from_host(filled(value))
            await asyncio.sleep(0)
            seen.append((value, contents(v) == filled(value)))

    async def main():
        async with a.read() as v, a.read() as w:
            tasks = [asyncio.ensure_future(write(value)) for value in (1, 2, 3)]
            while figures(client)[2] < 3:
                await asyncio.sleep(0.001)
            assert seen == [] and (v.ptr, w.ptr) == (a.ptr, a.ptr)
        await asyncio.gather(*tasks)

    run_async(main())
    assert sorted(seen) == [(1, True), (2, True), (3, True)] and client.status().brackets == 0


def test_a_task_that_is_cancelled_while_it_waits_passes_its_turn_on(client, other, shared):
    a, b = shared

    async def main():
        async with a.read():
            task = asyncio.ensure_future(b.write().__aenter__())
            while figures(client)[2] == 0:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with a.read():  # after that turn, in which nothing was written: the array is not abandoned
            assert figures(client) == (1, 0, 0, False)

    run_async(main())
    assert figures(client) == (0, 0, 0, False)


def test_what_goes_wrong_in_asyncio(client, shared):
    a, _ = shared

    async def fail():
        async with a.write():
            raise KeyError

    async def main():
        async with a.read():
            with pytest.raises(caid.TimedOutError):
                async with a.write(timeout=0):
                    pass
        with pytest.raises(KeyError):
            await fail()
        with pytest.raises(caid.AbandonedError):
            async with a.read():
                pass
        bracket = a.write()
        async with bracket as v:
            v.copy_from_host(filled(1))
            bracket.end()
        with pytest.raises(caid.InvalidError, match="begun once"):
            async with bracket:
                pass
        async with a.read() as v:
            assert contents(v) == filled(1)

    run_async(main())
    assert client.status().brackets == 0
