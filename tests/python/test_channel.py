# SPDX-License-Identifier: Apache-2.0
"""Channels: what Python adds. What their protocol promises is in tests/client and tests/stress."""

import asyncio
import contextlib
import copy
import ctypes
import gc
import json
import os
import pathlib
import pickle
import random
import re
import select
import signal
import subprocess
import threading
import time
from typing import Callable, NamedTuple

import numpy
import pytest
from conftest import PATIENCE_S, Held, at_last, forked, in_a_thread, in_thread, in_threads, refuses, run_async, softcuda, until_it_waits, wait_until
from restarts import Restarts

import caid

SHAPE = (4, 6)
MEMORIES = ["device", "pinned"]


@contextlib.contextmanager
def made(client, other, depth=1, **how):
    name = how.get("mode", "latest")
    with client.channel(name, SHAPE, "<i4", **how) as ch, other.open_channel(name, depth=depth) as r:
        yield ch, r


@pytest.fixture(params=MEMORIES)
def latest(request, soft, client, other):
    with made(client, other, memory=request.param) as both:
        yield both


@pytest.fixture(params=MEMORIES)
def fifo(request, soft, client, other):
    with made(client, other, memory=request.param, mode="fifo", slots=2) as both:
        yield both


def put(ch, value, timeout=PATIENCE_S):
    with ch.put(timeout=timeout) as frame:
        numpy.asarray(frame)[:] = value
        frame.info = str(value).encode()
    return frame.sequence


def ends(call):
    """The class of the error by which it does."""
    with pytest.raises(caid.Error) as e:
        call()
    return e.type


def value_of(frame):
    pixels = numpy.asarray(frame)
    assert pixels.shape == SHAPE and pixels.dtype == "<i4" and (pixels == pixels[0, 0]).all()
    assert frame.info == str(pixels[0, 0]).encode().ljust(64, b"\0")
    return int(pixels[0, 0])


def got(r, timeout=PATIENCE_S):
    with r.get(timeout=timeout) as frame:
        return frame.sequence, frame.missed, value_of(frame)


# --- modes ------------------------------------------------------------------------------------


def test_latest_gives_the_newest_and_says_what_was_missed(latest):
    ch, r = latest
    with pytest.raises(caid.TimedOutError):
        r.get(timeout=0)
    for i in range(1, 21):
        assert put(ch, i, timeout=0) == i  # it waits for nobody
    assert got(r)[::2] == (20, 20)
    with pytest.raises(TimeoutError):
        r.get(timeout=0.01)
    put(ch, 21)
    with r.get(timeout=0) as frame:
        for i in range(22, 40):
            put(ch, i)
        assert value_of(frame) == 21 and frame.missed == 0
    assert got(r) == (39, 17, 39)


def test_fifo_gives_every_frame_and_holds_the_producer_up(fifo):
    ch, r = fifo
    put(ch, 1), put(ch, 2)
    with pytest.raises(caid.TimedOutError):
        ch.put(timeout=0)
    thread, ended = in_a_thread(lambda: put(ch, 3))
    assert not ended and got(r) == (1, 0, 1)
    thread.join(PATIENCE_S)
    assert ended == [3] and [got(r)[0], got(r)[0]] == [2, 3]
    with pytest.raises(caid.TimedOutError):
        r.get(timeout=0)


def test_a_put_that_fails_is_nobodys(fifo, latest):
    for ch, r in (fifo, latest):
        with pytest.raises(KeyError), ch.put() as frame:
            raise KeyError
        assert not frame.is_open
        frame = ch.put()
        frame.abandon()
        with pytest.raises(caid.TimedOutError):
            r.get(timeout=0)
        n = put(ch, 7)
        assert got(r)[::2] == (n, 7)


@pytest.mark.parametrize("mode", ["latest", "fifo"])
def test_a_frame_whose_stream_captures_a_graph_stays_open(client, other, stream, mode):
    with made(client, other, mode=mode) as (ch, r):
        for begin in (ch.put, r.get):
            with pytest.raises(caid.InvalidError, match="captures a graph"), begin(stream.handle.value) as frame:
                graph = contextlib.ExitStack()
                graph.enter_context(stream.captures())
            assert frame.is_open
            graph.close()
            frame.end()
        n = put(ch, 7)
        assert got(r)[::2] == (n, 7)


@pytest.mark.parametrize("mode", ["latest", "fifo"])
def test_a_put_that_is_given_up_in_a_capture_ends_its_producer(client, other, stream, mode):
    with made(client, other, mode=mode) as (ch, r), contextlib.ExitStack() as graph:
        with pytest.raises(ZeroDivisionError), ch.put(stream.handle.value) as frame:
            graph.enter_context(stream.captures())
            raise ZeroDivisionError
        assert not frame.is_open
        with pytest.raises(caid.ClosedError):
            frame.end()
        with pytest.raises(caid.AbandonedError, match="captured a graph"):
            ch.put()
        with pytest.raises(caid.AbandonedError):
            r.get()


def test_a_frame_that_is_collected_in_a_capture_holds_nobody_up(client, other, stream):
    with made(client, other, mode="fifo") as (ch, r):
        put(ch, 7)
        frame = r.get(stream.handle.value)
        with stream.captures(), pytest.warns(ResourceWarning, match="was not ended"):
            del frame
            gc.collect()
        with pytest.raises(caid.AbandonedError, match="captured a graph"):
            r.get()
        for n in range(20):
            put(ch, n)


def test_iteration_ends_each_frame(fifo):
    ch, r = fifo
    seen = []
    put(ch, 1), put(ch, 2)
    for frame in r.frames(timeout=PATIENCE_S):
        assert all(not before.is_open for before in seen)
        seen.append(frame)
        value_of(frame)
        if len(seen) == 10:
            break
        if len(seen) > 1:
            put(ch, len(seen) + 1)
    assert [frame.sequence for frame in seen] == list(range(1, 11))
    assert not frame.is_open  # of the loop's iterator, which has gone
    with pytest.raises(caid.TimedOutError):
        next(r.frames(timeout=0))
    r.close()
    assert list(r) == [] and r.mode == "fifo"


# --- where frames go --------------------------------------------------------------------------


def test_a_frame_goes_where_arrays_go(latest):
    ch, r = latest
    with ch.put() as frame:
        assert not frame.array.readonly and len(frame) == 4 and "open" not in repr(frame)
        frame.array[:] = 3
        frame.array[0].copy_from_host(numpy.arange(6, dtype="<i4"))
        assert frame.info[0] == 0
        frame.info[1:3] = b"ab"
        with pytest.raises(ValueError):
            frame.info = bytes(65)
    with r.get() as frame:
        view, array = memoryview(frame), frame.array
        assert view.readonly and (view.shape, view.strides, view.format) == (SHAPE, (24, 4), "i")
        assert view.tolist() == numpy.asarray(array).tolist() == array.tolist() == [list(range(6))] + [[3] * 6] * 3
        assert frame.info == b"\0ab".ljust(64, b"\0")
        assert frame.__dlpack_device__() == array.__dlpack_device__()
        with pytest.raises(AttributeError):
            frame.info = b""
        with pytest.raises(caid.ReadOnlyError):
            array[:] = 1
        if ch.memory == "device":
            assert frame.__cuda_array_interface__["data"] == (array.ptr, True)
        view.release()
    for use in (array.tolist, frame.end, lambda: memoryview(frame), lambda: frame.__array_interface__, lambda: frame.__dlpack__()):
        with refuses(caid.ClosedError, match="has ended"):
            use()
    assert "ended" in repr(frame) and array.closed


@pytest.mark.parametrize("dtype", ["|b1", "<f2", "<f8", "<c16", ">i4", "<M8[s]", [("x", "<f4"), ("y", "|u1")]])
def test_elements_of_any_type(client, other, dtype):
    values = numpy.zeros((3,), dtype)
    values.view("u1")[:] = 1
    with client.channel("t", 3, dtype, memory="pinned") as ch, other.open_channel("t") as r:
        assert ch.dtype == r.dtype == values.dtype and (r.shape, r.slots, r.mode) == ((3,), 8, "latest")
        with ch.put() as frame:
            numpy.asarray(frame)[:] = values
        with r.get() as frame:
            assert numpy.asarray(frame).tobytes() == values.tobytes() and numpy.asarray(frame).dtype == values.dtype


def capsule(frame):
    return frame.__dlpack__(max_version=(1, 0))


def test_a_buffer_that_is_left_keeps_a_readers_frame_open(fifo):
    ch, r = fifo
    for take in (numpy.asarray, memoryview, lambda frame: numpy.asarray(frame.array)[1:], capsule):
        n = put(ch, 5)
        put(ch, 6)
        with pytest.warns(ResourceWarning, match=f"frame {n} stays open"), r.get() as frame:
            left = take(frame)
        with pytest.raises(caid.TimedOutError):
            ch.put(timeout=0)
        with pytest.raises(caid.InvalidError):  # depth=1
            r.get(timeout=0)
        del left
        put(ch, 7)
        assert [got(r)[2], got(r)[2]] == [6, 7]


def test_a_producers_frame_is_readers_at_its_end(latest):
    ch, r = latest
    with pytest.warns(ResourceWarning, match="not to be written any more"), ch.put() as frame:
        left = numpy.asarray(frame)
        left[:] = 0
    with r.get() as frame:
        assert not numpy.asarray(frame).any()
    with ch.put() as frame:  # it is said once
        left = numpy.asarray(frame)
    del left


def test_memory_stays_as_long_as_a_buffer_of_it():
    with caid.LocalDaemon() as daemon, daemon.connect() as c:
        other = daemon.connect()
        with made(c, other, memory="pinned") as (ch, r):
            put(ch, 9)
            with pytest.warns(ResourceWarning), r.get() as frame:
                pixels = numpy.asarray(frame)
            other.close()
        c.unlink("latest")
        assert (pixels == 9).all()


# --- streams ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["latest", "fifo"])
def test_streams_wait_for_each_other(slow, client, other, mode):
    data = caid.pinned_array(SHAPE, "<i4", client=client)
    with made(client, other, mode=mode, slots=4) as (ch, r), client.stream() as s, other.stream() as t:
        for i in range(6):
            s.synchronize()  # for data
            data[:] = i
            with ch.put(s) as frame:
                frame.array.copy_from_host(data, stream=s)
            with r.get(t, PATIENCE_S) as frame:
                assert frame.stream is t
                found = frame.array.copy_to_host(stream=t)
            t.synchronize()
            assert (found == i).all()
        with client.stream() as aside, Held(aside):  # a copy on another stream is part of the frame
            data[:] = 70
            with ch.put(s) as frame:
                frame.array.copy_from_host(data, stream=aside)
            with pytest.raises(caid.TimedOutError):
                r.get(timeout=0)
        with r.get(timeout=PATIENCE_S) as frame:
            assert (numpy.asarray(frame) == 70).all()
        frame = ch.put(s)
        with pytest.raises(caid.InvalidError):
            frame.end(s)
        frame.abandon()


def test_a_reader_on_another_stream_holds_the_producer_up(soft, client, other, memops):
    with made(client, other, mode="fifo", slots=2) as (ch, r), other.stream() as t:
        put(ch, 1), put(ch, 2)
        with Held(t):
            frame = r.get()
            frame.end(t)
            with pytest.raises(caid.TimedOutError):
                ch.put(timeout=0)
        put(ch, 3)
        out = caid.pinned_array(SHAPE, "<i4", client=other)
        with Held(t) as held:
            frame = r.get()
            frame.array.copy_to_host(out, stream=t)
            thread, ended = in_a_thread(frame.end)  # the host's frame, of which a copy is under way
            assert not ended
            held.gate.set()
            thread.join(PATIENCE_S)
        assert ended == [None] and (out == 2).all()


@pytest.mark.parametrize("end", ["exception", "abandon"])
def test_a_put_that_is_given_up_comes_after_its_copies(soft, client, other, end):
    data = caid.pinned_array(SHAPE, "<i4", client=client)
    data[:] = 70
    with made(client, other, slots=4) as (ch, r), client.stream() as aside:
        put(ch, 1)
        with Held(aside) as held:

            def give_up():
                with contextlib.suppress(KeyError), ch.put() as frame:
                    frame.array.copy_from_host(data, stream=aside)
                    if end == "abandon":
                        frame.abandon()
                    raise KeyError
                put(ch, 2)

            thread, ended = in_a_thread(give_up)
            assert not ended
            held.gate.set()
            thread.join(PATIENCE_S)
        assert ended == [None] and got(r)[2] == 2


def test_a_frame_ends_on_a_stream_that_was_closed(soft, client, other):
    with made(client, other, mode="fifo") as (ch, r):
        put(ch, 1), put(ch, 2)
        with other.stream() as s, other.stream() as t, pytest.warns(ResourceWarning):
            frame = r.get(s)
            left = memoryview(frame)
            frame.end(t)
        assert s.closed and t.closed
        del left
        assert got(r)[2] == 2


@pytest.mark.parametrize("end", ["own", "another", "kept"])
def test_a_client_that_closes_lets_go_after_its_streams(soft, end):
    with caid.LocalDaemon() as daemon, daemon.connect() as client, daemon.connect() as c:
        with client.channel("frames", SHAPE, "<i4", mode="fifo", slots=2) as ch:
            r, s, t = c.open_channel("frames"), c.stream(), c.stream()
            put(ch, 1), put(ch, 2)
            with Held(s) as held:
                frame = r.get(t if end == "another" else s if end == "own" else None)
                left = memoryview(frame) if end == "kept" else None
                if end != "own":
                    with contextlib.nullcontext() if left is None else pytest.warns(ResourceWarning):
                        frame.end(s)
                thread, _ = in_a_thread(c.close)
                with pytest.raises(caid.TimedOutError):
                    ch.put(timeout=0)
                held.gate.set()
                thread.join(PATIENCE_S)
            put(ch, 3)
            del left


@pytest.mark.parametrize("mode", ["latest", "fifo"])
def test_a_client_that_closes_gives_its_put_up(soft, daemon, other, mode):
    c = daemon.connect()
    ch, s = c.channel(mode, SHAPE, mode=mode), c.stream()
    with other.open_channel(mode) as r:
        with Held(s) as held:
            ch.put(s).end()
            frame = ch.put(s)
            thread, _ = in_a_thread(c.close)
            held.gate.set()
            thread.join(PATIENCE_S)
        r.get(timeout=PATIENCE_S).end()
        with pytest.raises(caid.TimedOutError):
            r.get(timeout=0)
        with pytest.raises(caid.ClosedError):
            frame.end()
    other.unlink(mode)


def test_streams_that_have_to_do_with_the_frame(soft, client, other):
    class Stream(NamedTuple):  # which the collector does not clear
        stream: caid.Stream
        kept: dict
        end: Callable[[], None] = lambda: None

        def __cuda_stream__(self):
            self.end()
            return self.stream.__cuda_stream__()

    with made(client, other, mode="fifo", depth=2) as (ch, r), other.stream() as s:
        put(ch, 1)
        frame = r.get(Stream(s, {}))
        with pytest.raises(caid.ClosedError):
            frame.end(Stream(s, {}, frame.end))
        for ends in True, False:
            put(ch, 2)
            frame = r.get(Stream(s, {}))
            frame.stream.kept["view"] = memoryview(frame)
            with pytest.warns(ResourceWarning):
                if ends:
                    frame.end()
                del frame
                gc.collect()
            gc.collect()  # a warning has its frame


# --- without a driver -------------------------------------------------------------------------

READER = """
import numpy, os, caid

with caid.Client() as c, c.open_channel("latest", timeout=60) as r:
    print("open", flush=True)
    with r.get(timeout=60) as frame:
        print(int(numpy.asarray(frame).sum()), int(numpy.asarray(frame.array).sum()), flush=True)
    assert r.memory == "pinned"
"""


def test_a_process_without_a_driver_has_host_memory(soft, client, child):
    with client.channel("latest", SHAPE, "<i4", memory="pinned") as ch:
        reader = child(READER, CAID_CUDA_DRIVER="/nonexistent")
        reader.expect("open")
        put(ch, 2)
        reader.expect("48 48")


def n_registered():
    return int(softcuda("calls cuMemHostRegister"))


@pytest.mark.parametrize("use", ["stream", "array", "dlpack"])
def test_what_may_be_the_gpus_is_registered(soft, client, other, use):
    with made(client, other, memory="pinned", mode="fifo") as (ch, r), client.stream() as s:
        put(ch, 1)
        assert got(r) == (1, 0, 1)
        before = n_registered()
        put(ch, 2)
        assert n_registered() == before
        with r.get(s if use == "stream" else None) as frame:
            if use == "array":
                frame.array  # noqa: B018
            elif use == "dlpack":
                frame.__dlpack__(max_version=(1, 0))
            assert n_registered() != before


class Given:
    """What a library makes of an array that it gets by the CUDA Array Interface."""

    def __init__(self, frame, stream, readonly):
        given = frame.__cuda_array_interface__
        assert (given["shape"], given["typestr"], given["stream"]) == (SHAPE, "<i4", stream.number)
        (self.ptr, told), self.nbytes = given["data"], numpy.empty(SHAPE, "<i4").nbytes
        assert told == readonly


def test_libraries_use_frames_on_their_streams(memops, client, other, streams):
    s, t = streams
    out = caid.pinned_array(SHAPE, "<i4", client=other)
    out[:] = 0
    with made(client, other, mode="fifo", slots=2) as (ch, r):
        s.hold_up()
        with ch.put(s.number) as frame:
            s.fill(Given(frame, s, False), 5)
        with r.get(t.number, PATIENCE_S) as frame:
            t.read(Given(frame, t, True), out)
        assert not out.any()
        s.gate.set()
        t.synchronize()
        assert (out == 0x05050505).all()


def test_a_put_that_finds_no_slot_leaves_nothing_on_its_stream(memops, client, other, streams):
    s, t = streams
    with made(client, other, mode="fifo", slots=2) as (ch, r):
        s.hold_up()
        ch.put(s.number).end(), ch.put(s.number).end()
        before = softcuda(waits := "calls cuStreamWaitValue64_v2")
        for _ in range(3):
            with pytest.raises(caid.TimedOutError):
                ch.put(t.number, 0)
        assert softcuda(waits) == before
        r.get(s.number, PATIENCE_S).end()
        before = softcuda(waits)
        ch.put(t.number, PATIENCE_S).end()
        assert softcuda(waits) != before
        s.gate.set()


# --- threads ----------------------------------------------------------------------------------


def test_threads_get_each_frame_of_a_fifo_once(client, other):
    seen = []
    with made(client, other, depth=12, slots=13, mode="fifo", memory="pinned") as (ch, r):

        def work(i):
            for value in range(12 if i == 0 else 4):
                put(ch, value + 1) if i == 0 else seen.append(got(r))

        in_threads(4, work)
    assert sorted(seen) == [(i, 0, i) for i in range(1, 13)]


def test_threads_get_no_frame_of_a_latest_twice(client, other):
    n, seen = 300, []
    with made(client, other, depth=2, memory="pinned") as (ch, r):

        def work(i):
            if i > 0:
                for frame in r:
                    seen.append((frame.sequence, value_of(frame)))
                return
            for value in range(n):
                put(ch, value + 1)
            wait_until(lambda: (n, n) in seen)
            r.close()

        in_threads(3, work)
    assert len(set(seen)) == len(seen) and all(sequence == value for sequence, value in seen)


# --- asyncio ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["put", "get"])
def test_a_thread_that_waits_keeps_its_turn(client, other, what):
    """Another one is refused, however often it asks."""

    def is_refused():
        try:
            begin(timeout=0)
        except caid.InvalidError:
            return True
        except caid.TimedOutError:
            return False

    def wait():
        while True:
            with contextlib.suppress(caid.InvalidError):  # the other one had the turn
                return begin(timeout=PATIENCE_S)

    with made(client, other, memory="pinned", mode="fifo", slots=2) as (ch, r):
        begin = ch.put if what == "put" else r.get
        if what == "put":
            put(ch, 1), put(ch, 2)
        thread, frames = in_thread(wait)
        wait_until(is_refused)
        assert all(is_refused() for _ in range(200_000))
        got(r) if what == "put" else put(ch, 1)
        thread.join()
        frames[0].end()


def test_a_task_that_is_cancelled_ends_its_frame(fifo):
    ch, r = fifo
    seen = []

    async def read():
        async for frame in r:
            seen.append(frame)
            await asyncio.Event().wait()

    async def main():
        for i in range(1, 4):
            put(ch, i)
            task = asyncio.ensure_future(read())
            while len(seen) < i:
                await asyncio.sleep(0)
            assert seen[-1].is_open
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not seen[-1].is_open
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(read(), 0.01)  # there is none
        put(ch, 4)
        assert got(r)[0] == 4

    run_async(main())
    assert [frame.sequence for frame in seen] == [1, 2, 3]


def test_frames_that_are_there_leave_other_tasks_a_turn(latest):
    ch, r = latest
    turns = []

    async def others():
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async def main():
        task = asyncio.ensure_future(others())
        for i in range(1, 5):
            with await ch.async_put():
                pass
            assert len(turns) >= 2 * i - 1
            with await r.async_get():
                pass
            assert len(turns) >= 2 * i
        task.cancel()

    run_async(main())


def test_the_fd_is_readable_while_there_is_a_frame(fifo):
    ch, r = fifo
    fd = r.fileno()
    assert fd == r.fileno()
    with refuses(caid.InvalidError, match="created to put frames"):
        ch.fileno()
    for i in range(1, 20, 2):
        put(ch, i)
        put(ch, i + 1)
        for j in range(i, i + 2):
            assert select.select([fd], [], [], PATIENCE_S)[0]
            with r.get(timeout=0) as frame:
                assert frame.sequence == j
                assert not select.select([fd], [], [], 0)[0]
        with pytest.raises(caid.TimedOutError):
            r.get(timeout=0)
        assert not select.select([fd], [], [], 0)[0]
    r.close()
    with pytest.raises(caid.ClosedError):
        r.fileno()


def test_tasks_wait_for_the_same_reader(client, other):
    async def one(r):
        with await r.async_get(timeout=PATIENCE_S) as frame:
            return frame.sequence

    async def main():
        with made(client, other, depth=3, memory="pinned", mode="fifo") as (ch, r):
            waiting = [asyncio.ensure_future(one(r)) for _ in range(3)]
            await asyncio.sleep(0)
            for i in range(3):
                put(ch, i)
            assert sorted(await asyncio.gather(*waiting)) == [1, 2, 3]

    run_async(main())


def test_asyncio(fifo):
    ch, r = fifo

    async def produce():
        for i in range(20):
            with await ch.async_put(timeout=PATIENCE_S):
                pass
            await asyncio.sleep(0)

    async def main():
        task = asyncio.ensure_future(produce())
        sequences = []
        async for frame in r:
            sequences.append(frame.sequence)
            if len(sequences) == 20:
                break
        await task
        with pytest.raises(caid.TimedOutError):
            await r.async_get(timeout=0)
        with pytest.raises(caid.TimedOutError):
            await r.async_get(timeout=0.01)
        waiting = asyncio.ensure_future(r.async_get())
        await asyncio.sleep(0)
        waiting.cancel()
        put(ch, 1)
        with await r.async_get() as frame:
            sequences.append(frame.sequence)
        rest = asyncio.ensure_future(collect())
        await asyncio.sleep(0)
        r.close()
        assert await rest == []
        return sequences

    async def collect():
        return [frame async for frame in r]

    assert run_async(main()) == list(range(1, 22))


# --- ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["channel", "client"])
def test_a_close_ends_waits(other, daemon, end):
    with daemon.connect() as c, other.channel("frames", 4, mode="fifo", slots=2) as ch:
        r = c.open_channel("frames")
        thread, ended = in_a_thread(lambda: list(r))
        assert not ended
        (r if end == "channel" else c).close()
        thread.join(PATIENCE_S)
        assert ended == [[]] and r.closed
        with pytest.raises(caid.ClosedError):
            r.get()
        put_one = ch.put(timeout=PATIENCE_S)
        put_one.end()
    other.unlink("frames")


@pytest.mark.parametrize("end", ["channel", "client"])
def test_a_close_ends_a_put_that_waits(other, daemon, end):
    with daemon.connect() as c:
        ch = c.channel("frames", SHAPE, "<i4", mode="fifo", slots=2, memory="pinned")
        with other.open_channel("frames") as r:
            put(ch, 1), put(ch, 2)

            def wait():
                with pytest.raises((caid.CancelledError, caid.ClosedError)):
                    ch.put()

            thread, ended = in_a_thread(wait)
            assert not ended
            (ch if end == "channel" else c).close()
            thread.join(PATIENCE_S)
            assert ended == [None] and ch.closed
            assert [got(r), got(r)] == [(1, 0, 1), (2, 0, 2)]
    other.unlink("frames")


def test_a_close_ends_a_get_that_is_woken_again_and_again(client, other):
    with made(client, other, memory="pinned", mode="fifo", slots=2) as (ch, r):

        def give_up():
            with contextlib.suppress(ZeroDivisionError), ch.put():
                1 / 0

        thread, ended = in_thread(r.get)
        until_it_waits(thread)
        r.close()
        wait_until(lambda: (give_up(), ended)[1])
        thread.join()
        assert isinstance(ended[0], caid.CancelledError), ended


def test_an_open_frame_outlives_the_close_of_its_channel(fifo):
    ch, r = fifo
    put(ch, 1)
    frame = r.get()
    r.close()
    assert value_of(frame) == 1 and r.closed
    frame.end()
    mine = ch.put()
    ch.close()
    mine.end()
    with pytest.raises(caid.ClosedError):
        ch.put()


def test_a_frame_that_is_collected_has_ended(fifo):
    ch, r = fifo
    frame = ch.put()
    with pytest.warns(ResourceWarning, match="was not ended"):
        del frame
        gc.collect()
    put(ch, 3)
    frame = r.get()
    with pytest.warns(ResourceWarning, match="was not ended"):
        del frame
        gc.collect()
    put(ch, 4)
    assert got(r)[2] == 4


PRODUCER = """
c = caid.connect()
ch = c.channel("frames", (4, 6), "<i4", mode="fifo", memory="pinned")
step("produces")
for value in 1, 2:
    with ch.put() as frame:
        frame.array[:] = value
        frame.info = str(value).encode()
frame = ch.put()
step("puts")
"""


def test_the_next_producer_goes_on(daemon, client, other, child):
    how = {"mode": "fifo", "memory": "pinned"}
    with client.channel("frames", SHAPE, "<i4", **how), pytest.raises(caid.BusyError, match=str(os.getpid())):
        other.channel("frames", SHAPE, "<i4", **how)
    producer = child(PRODUCER)
    producer.expect("produces")
    with client.open_channel("frames") as r:
        producer.go()
        producer.expect("puts")
        assert got(r)[::2] == (1, 1)
        producer.kill()
        assert got(r)[::2] == (2, 2)
        with pytest.raises(caid.AbandonedError):
            r.get(timeout=PATIENCE_S)
        with pytest.raises(caid.TimedOutError):
            r.get(timeout=0)
        with other.channel("frames", SHAPE, "<i4", **how) as ch:
            n = put(ch, 3)
            assert n > 2 and got(r)[::2] == (n, 3)


def get_unanswered(daemon, r):
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        with pytest.raises(caid.TimedOutError):
            r.get(timeout=0)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_the_last_frame_is_there_when_another_one_has_ended_meanwhile(daemon, client, other):
    with made(client, other, depth=2, memory="pinned") as (ch, r):
        put(ch, 1)
        with r.get(timeout=PATIENCE_S):
            put(ch, 2)
            ch.close()
            get_unanswered(daemon, r)
        assert got(r)[2] == 2


def test_the_last_frame_lands_while_an_older_one_is_asked_for(soft, daemon, client, other):
    with made(client, other) as (ch, r), client.stream() as s:
        put(ch, 1)
        with Held(s) as held:
            with ch.put(s) as frame:
                frame.array.copy_from_host(numpy.full(SHAPE, 2, "<i4"), stream=s)
                frame.info = b"2"
            ch.close()
            os.kill(daemon.pid, signal.SIGSTOP)
            thread, _ = in_a_thread(client.ping)  # so the daemon hears of this client first
            try:
                with pytest.raises(caid.TimedOutError):
                    r.get(timeout=0)
                held.gate.set()
                s.synchronize()
                time.sleep(0.2)  # the client leaves; if it does so later, there is less to see
            finally:
                os.kill(daemon.pid, signal.SIGCONT)
            thread.join()
        assert got(r)[2] == 2


@pytest.mark.parametrize("next_one", [False, True])
def test_the_last_frame_of_a_producer_is_asked_for_again(daemon, client, other, next_one):
    how = {"memory": "pinned", "slots": 4}
    with made(client, other, **how) as (ch, r):
        put(ch, 1)
        ch.close()
        get_unanswered(daemon, r)
        other.ping()  # the daemon has answered what came before it
        if not next_one:
            assert at_last(lambda: got(r, timeout=0))[2] == 1
            return
        with daemon.connect() as c, c.channel("latest", SHAPE, "<i4", **how) as after:
            for i in range(2, 9):
                put(after, i)
            with r.get(timeout=PATIENCE_S) as frame:
                first = value_of(frame)
                for i in range(9, 16):
                    put(after, i)
                assert value_of(frame) == first == frame.sequence
            assert got(r)[::2] == (15, 15)


@pytest.mark.parametrize("mode", ["latest", "fifo"])
def test_frames_go_on_while_there_is_no_daemon(soft, tmp_path, mode):
    with contextlib.closing(Restarts(tmp_path)) as restarts, contextlib.ExitStack() as stack:
        c, other, late = (stack.enter_context(caid.connect(restarts.address)) for _ in range(3))
        with made(c, other, mode=mode) as (ch, r):
            for i in range(3):
                restarts.end()
                put(ch, 3 * i)
                assert got(r)[2] == 3 * i
                restarts.start()
                put(ch, 3 * i + 1)
                assert got(r)[2] == 3 * i + 1
                with late.open_channel(mode) as another:  # which the producer lets in
                    put(ch, 3 * i + 2)
                    assert got(another)[2] == got(r)[2] == 3 * i + 2
        c.unlink(mode)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_all_calls_end_where_nothing_outlives_the_daemon(soft, signum):
    """Those that wait, and those that come later; what is open can be read and closed."""

    async def first(r):
        async for frame in r:
            return frame

    with contextlib.ExitStack() as stack:
        d = stack.enter_context(caid.LocalDaemon())
        c, other, third = (stack.enter_context(d.connect()) for _ in range(3))
        how = {"memory": "pinned", "slots": 4}
        ch, r = stack.enter_context(made(c, other, mode="fifo", **how))
        newest, idle = stack.enter_context(made(c, other, **how))
        loop = stack.enter_context(third.open_channel("latest"))
        for i in range(4):
            put(ch, i)
        frame = r.get()
        waiting = [
            in_a_thread(lambda call=call: ends(call))
            for call in (ch.put, idle.get, lambda: run_async(first(loop)), lambda: third.open_channel("later", wait=True))
        ]
        os.kill(d.pid, signum)
        for thread, results in waiting:
            thread.join(PATIENCE_S)
            assert results == [caid.DisconnectedError]
        for call in (ch.put, newest.put, r.get, idle.get, loop.get):
            assert ends(lambda call=call: call(timeout=0)) is caid.DisconnectedError
        assert select.select([idle], [], [], PATIENCE_S)[0]
        assert value_of(frame) == 0
        frame.end()


# --- pages of those who write what they like ---------------------------------------------------

SUBMITTED, TAIL, LANDED = 8, 512, 520  # words: of slot 0; of what is behind the slots


def own_page(make):
    """(what make() gives, the words of the page of timelines that it has made for this process to write)"""

    def pages():
        return set(re.findall(r"^(\w+)-(\w+) rw-s .*memfd:caid-timelines", pathlib.Path("/proc/self/maps").read_text(), re.M))

    before = pages()
    thing = make()
    ((start, end),) = pages() - before
    return thing, (ctypes.c_uint64 * ((int(end, 16) - int(start, 16)) // 8)).from_address(int(start, 16))


def die(words):
    """The page is as of one that has died: its own close is not what is looked at."""
    for slot in range(16):
        words[32 * slot], words[32 * slot + SUBMITTED] = 2**62, 2**62 | 2**32 - 1


def test_a_reader_that_lets_go_of_what_cannot_be_holds_no_producer_up(client, other):
    with client.channel("frames", SHAPE, mode="fifo", slots=2, memory="pinned") as ch:
        r, words = own_page(lambda: other.open_channel("frames"))
        put(ch, 1), put(ch, 2)
        thread, results = in_a_thread(lambda: put(ch, 3))
        words[0] = 2**63 - 2
        thread.join()
        assert results == [3]
        die(words)
        r.close()


@pytest.mark.parametrize("mode", ["latest", "fifo"])
def test_a_producers_page_of_garbage_holds_no_reader_up(client, other, mode):
    rng = random.Random(seed := int(os.environ.get("CAID_TEST_SEED", time.time_ns() % 2**32)))
    print("CAID_TEST_SEED", seed)
    ch, words = own_page(lambda: client.channel("frames", SHAPE, mode=mode, memory="pinned"))
    with ch, other.open_channel("frames") as r:
        for at, value in [(0, 10), (SUBMITTED, 3), (TAIL, 7 << 8)]:  # done, and not submitted
            words[at] = value
        for _ in range(200):
            with contextlib.suppress(caid.TimedOutError, caid.ProtocolError, caid.AbandonedError):
                r.get(timeout=0).end()
            at = rng.choice([0, SUBMITTED, TAIL, LANDED, LANDED + 1, rng.randrange(len(words))])
            words[at] = rng.choice([0, 1, rng.randrange(64) << 8 | rng.randrange(9), 1 << 54, 2**62 - 1, 2**62, 2**64 - 1])
        die(words)


# --- what is refused --------------------------------------------------------------------------


def test_misuse(latest):
    ch, r = latest
    for use in (r.put, ch.get, ch.frames().__next__):
        with pytest.raises(caid.InvalidError):
            use()
    with ch.put() as frame:
        with pytest.raises(caid.InvalidError):
            ch.put()
        for thing in (ch, r, frame, r.frames()):
            for take in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError):
                    take(thing)
        for use in (frame.array.read, lambda: frame.array.publish("x")):
            with refuses(caid.UnsupportedError):
                use().begin()
    for wrong in (-1, "1", float("nan")):
        with pytest.raises((ValueError, TypeError)):
            r.get(timeout=wrong)
    with pytest.raises(ValueError):
        r.get(stream=0)
    with pytest.raises(TypeError):
        caid.Channel()


def test_what_is_no_channel(daemon, client, other):
    with pytest.raises(caid.NotFoundError):
        client.open_channel("no")
    with pytest.raises(caid.TimedOutError):
        client.open_channel("no", wait=True, timeout=0)
    with client.create("array", 4), pytest.raises(caid.InvalidError, match="array"):
        client.open_channel("array")
    with made(client, other, slots=6):
        for differs in ({"slots": 7}, {"mode": "fifo"}, {"memory": "pinned"}):
            with pytest.raises(caid.InvalidError), daemon.connect() as c:
                c.channel("latest", SHAPE, "<i4", **{"slots": 6, **differs})
        with pytest.raises(caid.LimitError):
            client.open_channel("latest", depth=3)
    for wrong in ({"slots": 1}, {"slots": 65}, {"mode": "best"}, {"memory": "managed"}):
        with pytest.raises(caid.InvalidError):
            client.channel("x", SHAPE, **wrong)


@pytest.mark.parametrize("mode", ["latest", "fifo"])
def test_fork(soft, client, other, mode):
    with made(client, other, mode=mode) as (ch, r):
        put(ch, 1)
        r.fileno()
        left, mine = r.get(), ch.put()
        uses = (ch.put, r.get, r.fileno, mine.end, left.end, lambda: memoryview(left), lambda: mine.array.tolist())

        def leave():
            mine.__exit__(KeyError, None, None)
            ch.close(), r.close()
            gc.collect()

        forked(*uses, work=leave)  # what it had is its parent's yet
        assert value_of(left) == 1
        left.end()
        mine.array[:] = 2
        mine.info = b"2"
        mine.end()
        assert got(r)[2] == 2


# --- what operators see ---------------------------------------------------------------------


def told(daemon, *args):
    command = [pathlib.Path(os.environ["CAID_BUILD_DIR"]) / "bin" / "caidctl", f"--socket={daemon.address}", *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def test_operators_see_who_takes_part_and_how_fast(fifo, client, daemon):
    ch, r = fifo
    with client.channel("other", SHAPE), client.create("array", 4):
        put(ch, 1), put(ch, 2), got(r)
        assert {(entry.name, entry.sequence) for entry in client.channels(prefix="fi")} == {("fifo", 1), ("fifo", 2)}
        assert len(client.channels()) == 3 and client.channels(prefix="fifo/") == []
        assert json.loads(told(daemon, "--json", "channels", "fi"))["channels"][0]["name"] == "fifo"
        producer, reader = json.loads(told(daemon, "--json", "show", "fifo"))["channel"]
        assert (producer["producer"], producer["sequence"], producer["rate"]) == (True, 2, 0.0)
        assert (reader["sequence"], reader["lag"], reader["depth"], reader["rate"]) == (1, 1, 1, 0.0)
        assert "RATE" in told(daemon, "show", "fifo") and "RATE" not in told(daemon, "show", "array")
        assert "channel" not in json.loads(told(daemon, "--json", "show", "array"))
    client.unlink("array")


def test_a_rate_is_of_two_looks(latest, daemon):
    ch, _ = latest
    stop = threading.Event()

    def go_on():
        while not stop.is_set():
            put(ch, 1)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        wait_until(lambda: json.loads(told(daemon, "--json", "show", "latest"))["channel"][0]["rate"] > 0)
    finally:
        stop.set()
        thread.join()
