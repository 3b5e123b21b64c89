# SPDX-License-Identifier: Apache-2.0
"""Timeline: a number that one process counts up, on a stream, and others wait for, on theirs."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from .. import _caid
from .._base._errors import NotFoundError, check_timeout, invalid, timed_out
from .._base._lifetime import Named, attributes
from . import _any_stream


@attributes
@_caid.derived
class Timeline(Named, _caid.Timeline):
    """A number that only grows, 1 to 2**62 - 1, in memory that processes share: what
    :meth:`caid.Client.timeline` creates, to signal, and :meth:`caid.Client.open_timeline` opens, to
    wait. Once it is open no daemon is asked.

    ::

        tl = client.timeline("frames")                # in one process
        for i in range(1, n + 1):
            produce(frame, stream=s)
            tl.signal(s, i)

        tl = client.open_timeline("frames")           # in another
        for i in range(1, n + 1):
            tl.wait(s, i)
            consume(frame, stream=s)

    It is closed by ``close()``, by leaving its ``with`` block, when it is collected (then with a
    ResourceWarning), or with its client. When the creator's process exits, or the creator closes
    it, all waits for values that were not reached end: see wait().
    """

    __slots__ = ("_name", "_pool", "_creator", "__weakref__")
    _comes_from = "Client.timeline() or Client.open_timeline()"
    _no_copy = "pass its name"

    def __repr__(self):
        return self._described(" signals" if self._creator else " waits")

    # --- signal and wait --------------------------------------------------------------------

    def signal(self, stream: Any, value: int) -> None:
        """The timeline reaches `value` when the stream reaches this point. Does not wait.

        Parameters
        ----------
        stream : int, stream object or None
            As for :meth:`caid.Array.close`. None: now, on the host. Signals of several streams are
            ordered by the caller.
        value : int
            More than the last one, at most 2**62 - 1.

        Raises
        ------
        InvalidError
            Not more than the last one; a signal of a stream is on its way and the host would run
            ahead of it; the stream captures a graph.
        AccessError
            The timeline was opened, not created.
        ValueError, DriverError
            Stream 0, which is ambiguous; the driver knows no such stream.
        """
        self._signal(_number(stream), value)

    def wait(
        self, stream: Any, value: int, timeout: float | None = None, ahead: bool = False
    ) -> None:
        """Has the stream wait: work that is enqueued on it from now on comes after `value`.

        Blocks the host until the signal has been submitted, then enqueues the wait: so no stream waits for
        work that was never submitted.

        Parameters
        ----------
        stream : int, stream object or None
            As for :meth:`caid.Array.close`. None: the host waits until `value` has been reached.
        value : int
            1 to 2**62 - 1.
        timeout : float, optional
            Seconds that the host is held; 0 only looks. Without it, without end.
        ahead : bool
            Enqueues the wait at once, even if the signal has not been submitted. There is no
            timeout then, and as long as the stream waits it takes one of the few queues between
            process and device (``CUDA_DEVICE_MAX_CONNECTIONS``, 8): other streams may be held up
            behind it, and, if it is one of them that leads to the signal, for ever.

        Raises
        ------
        TimedOutError
            Not submitted, for the host not reached, in time; also a TimeoutError.
        AbandonedError
            The creator has exited, or closed the timeline, and `value` was not reached. Where this
            happens when the wait has been enqueued, the stream goes on, and
            :meth:`caid.Stream.check` and synchronize() tell.
        InvalidError
            No such value; `ahead` with a timeout or with no stream; the stream captures a graph.
        CancelledError
            The timeline was closed here meanwhile.

        Notes
        -----
        Gives up the GIL, and Ctrl-C interrupts it while it holds the host.
        """
        if ahead and (stream is None or timeout is not None):
            raise invalid("ahead=True is for a stream, and has no timeout")
        self._wait(_number(stream), value, timeout, ahead)

    async def async_wait(self, stream: Any, value: int, timeout: float | None = None) -> None:
        """wait(), for asyncio: what would hold the host is looked for 200 times a second. Parameters and errors
        as for wait()."""
        from .._base import _away

        check_timeout(timeout)
        number = _number(stream)
        await _away.until(lambda: self._wait(number, value, 0, False), timeout)


def _number(stream):
    """The number of a stream, or 0 for None: to libcaid 0 is the host, as a stream's number it is refused."""
    return 0 if stream is None else _any_stream.handle(stream)


_RETRY_S = 0.02  # seconds between two looks for a timeline: no news of one comes


def make_when_there(client, name, pool, wait, timeout):
    """The Timeline of Client.open_timeline(wait=True)."""
    if not wait:
        raise invalid("open_timeline: timeout needs wait=True")
    for made in _looks(client, name, pool, timeout):
        if made is not None:
            return made
        time.sleep(_RETRY_S)


async def async_make_when_there(client, name, pool, timeout):
    """The Timeline of Client.async_open_timeline()."""
    import asyncio

    for made in _looks(client, name, pool, timeout):
        if made is not None:
            return made
        await asyncio.sleep(_RETRY_S)


def _looks(client, name, pool, timeout):
    """The Timeline, or None and then once more: until the timeout. A pool is not waited for."""
    check_timeout(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    with contextlib.suppress(NotFoundError):
        yield make(client, name, pool, False)
    client.list(pool=pool, prefix=name)  # NotFoundError: there is no such pool
    while True:
        with contextlib.suppress(NotFoundError):
            yield make(client, name, pool, False)
        if deadline is not None and time.monotonic() >= deadline:
            raise timed_out(f"no timeline {name!r} came in {timeout:g} s")
        yield None


def make(client, name, pool, creator):
    """The Timeline of Client.timeline(), who creates it, or Client.open_timeline()."""
    timeline = client._timeline(name, pool, creator)
    timeline._name = name
    timeline._pool = pool
    timeline._creator = creator
    return timeline
