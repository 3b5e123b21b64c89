# SPDX-License-Identifier: Apache-2.0
"""Named timelines: times and values that are none, and what ends waits."""

import itertools
import time

import pytest
from conftest import PATIENCE_S, in_a_thread, in_thread, refuses, until_it_waits, wait_until

import caid

MAX = 2**62 - 1


@pytest.fixture
def frames(client, other):
    """A timeline from both its ends: the one that signals, the one that waits."""
    with client.timeline("frames") as tl, other.open_timeline("frames") as opened:
        yield tl, opened


# --- by the host ----------------------------------------------------------------------------


def test_timeouts(frames):
    _, opened = frames
    for timeout in (0, 0.01, 0.12):
        before = time.monotonic()
        for stream in (None, 1):
            with pytest.raises(caid.TimedOutError) as caught:
                opened.wait(stream, 1, timeout)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.code == caid.ErrorCode.TIMEOUT
        assert time.monotonic() - before >= 2 * timeout
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="seconds, 0 or more, or None"):
            opened.wait(None, 1, wrong)
    with pytest.raises(TypeError):
        opened.wait(None, 1, "1")


def test_values(frames):
    tl, opened = frames
    for wrong in (0, MAX + 1, 2**64 - 1, -1, 2**64):
        for call in (lambda v: tl.signal(None, v), lambda v: opened.wait(None, v, 0)):
            with pytest.raises(caid.InvalidError):
                call(wrong)
    for wrong in ("1", None, 1.5):
        for call in (lambda v: tl.signal(None, v), lambda v: opened.wait(None, v, 0)):
            with pytest.raises(TypeError):
                call(wrong)
    with pytest.raises(PermissionError):  # only the creator signals
        opened.signal(None, 1)
    tl.signal(None, 3)
    for backwards in (3, 2, 1):
        with pytest.raises(caid.InvalidError):
            tl.signal(None, backwards)
        opened.wait(None, backwards)
    tl.signal(None, MAX)
    assert opened.value == MAX
    opened.wait(None, MAX)


# --- on streams -----------------------------------------------------------------------------


def test_ahead(client, frames, memops):
    tl, opened = frames
    with client.stream(non_blocking=True) as s:
        opened.wait(s, 2, ahead=True)
        assert not s.query()
        tl.signal(None, 1)
        time.sleep(0.02)
        assert not s.query()
        tl.signal(None, 2)
        s.synchronize()
    for wrong in ((None, 3), (1, 3, 0), (1, 3, 1.0)):
        with pytest.raises(caid.InvalidError, match="ahead=True"):
            opened.wait(*wrong, ahead=True)


# --- names ----------------------------------------------------------------------------------


def test_names(client, other, frames):
    tl, opened = frames
    assert (tl.name, tl.pool, opened.name) == ("frames", None, "frames")
    assert repr(tl) == "<caid.Timeline 'frames' signals>"
    assert repr(opened) == "<caid.Timeline 'frames' waits>"
    with pytest.raises(caid.ExistsError, match="frames"):
        other.timeline("frames")
    with pytest.raises(caid.NotFoundError, match="absent") as caught:
        client.open_timeline("absent")
    for timeout in (0, 0.05):
        with pytest.raises(caid.TimedOutError, match="no timeline 'absent' came"):
            client.open_timeline("absent", wait=True, timeout=timeout)
    with pytest.raises(caid.NotFoundError, match="pool"):
        client.open_timeline("frames", pool="absent", wait=True)
    for wrong, error in ({"timeout": 1}, caid.InvalidError), ({"wait": True, "timeout": -1}, ValueError):
        with pytest.raises(error, match="timeout"):
            client.open_timeline("frames", **wrong)
    thread, results = in_a_thread(lambda: client.open_timeline("late", wait=True))
    assert results == []
    with other.timeline("late") as late:
        thread.join()
        late.signal(None, 1)
        results[0].wait(None, 1, timeout=PATIENCE_S)
        results[0].close()
    assert isinstance(caught.value, FileNotFoundError)
    client.create("frames", 4).close()  # names of arrays are apart
    with pytest.raises(caid.NotFoundError):
        client.open_timeline("frames", pool="absent")
    own = client.status().pool
    with client.timeline("in a pool", pool=own) as t, other.open_timeline("in a pool") as u:
        assert t.pool == own and u.pool is None and "pool=" in repr(t)


# --- the end --------------------------------------------------------------------------------


def test_the_name_goes_with_the_creators_close(client, other):
    with client.timeline("t") as tl:
        tl.signal(None, 1)
        opened = other.open_timeline("t")
    assert tl.closed and not opened.closed and client.timelines() == []
    wait_until(lambda: is_abandoned(opened))
    opened.wait(None, 1)  # that was reached
    for stream in (None, 1):
        with pytest.raises(caid.AbandonedError) as caught:
            opened.wait(stream, 2)
        assert caught.value.code == caid.ErrorCode.ABANDONED
    for use in (lambda: tl.value, lambda: tl.signal(None, 2), lambda: tl.wait(None, 2)):
        with refuses(caid.ClosedError, match="the timeline is closed"):
            use()
    opened.close()
    opened.close()
    with client.timeline("t") as again, other.open_timeline("t") as opened:
        again.signal(None, 1)
        assert opened.value == 1


def is_abandoned(timeline):
    try:
        timeline.value
    except caid.UnavailableError as e:
        return isinstance(e.__cause__, caid.AbandonedError)
    return False


def test_close_ends_the_waits_of_this_object(frames):
    tl, opened = frames
    waits = [in_thread(lambda s=s: opened.wait(s, 2**40)) for s in (None, 1)]
    for thread, _ in waits:
        until_it_waits(thread)
    opened.close()
    values = itertools.count(1)  # also while others wake them
    wait_until(lambda: (tl.signal(None, next(values)), all(ended for _, ended in waits))[1])
    for thread, ended in waits:
        thread.join()
        assert isinstance(ended[0], caid.CancelledError), ended


# --- other processes ------------------------------------------------------------------------

def test_async_done_tells_of_a_dead_creator(child, client, memops):
    import asyncio

    c = child(
        """
        with caid.connect() as c, c.timeline("t") as tl:
            step("up")
        """
    )
    c.expect("up")
    with client.open_timeline("t") as tl, client.stream() as s:
        tl.wait(s, 1, ahead=True)

        async def main():
            future = s.async_done()
            await asyncio.sleep(0.02)
            c.kill()
            with pytest.raises(caid.AbandonedError):
                await asyncio.wait_for(future, PATIENCE_S)

        asyncio.run(main())
