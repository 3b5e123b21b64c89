# SPDX-License-Identifier: Apache-2.0
"""Watch: news of a name, waited for by a thread or by asyncio."""

from __future__ import annotations

import asyncio
import errno
import warnings
from weakref import WeakKeyDictionary

from ._errors import CancelledError, Error, TimedOutError, closed
from ._records import Change


class Watch:
    """News of a name: what :meth:`caid.Client.watch` gives.

    Iterating waits for the next change, in a thread by ``for``, in asyncio by ``async for``::

        for change in client.watch("weights"):
            with client.open("weights", generation=change.generation) as weights:
                ...

    The first change tells of an array that has the name already. After that there is one for each
    time that the name is seen to have changed: always the latest state, what came and went between
    two looks may be left out.

    The iteration ends when the watch is closed, by close(), by its ``with`` block, or with its
    client. With a `timeout` it raises TimedOutError where nothing changed for so many seconds; the
    watch goes on, and may be iterated again.

    Notes
    -----
    A waiting thread gives up the GIL, and Ctrl-C interrupts it. In asyncio all watches of a client
    share one reader of the event loop, on ``client.fileno()``.
    """

    __slots__ = ("_client", "_name", "_pool", "_timeout", "_watch", "__weakref__")

    def __init__(self, client, name, pool, timeout):
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout {timeout!r}: seconds, 0 or more, or None")
        self._client = client
        self._name = name
        self._pool = pool
        self._timeout = timeout
        self._watch = client._watch(name, pool)

    @property
    def name(self) -> str:
        """str: what is watched."""
        return self._name

    @property
    def pool(self) -> str | None:
        """str or None: the pool that the name is in; None for the caller's own."""
        return self._pool

    @property
    def closed(self) -> bool:
        """bool: whether the watch, or its client, is closed."""
        return self._watch.closed or self._client.closed

    def close(self) -> None:
        """Ends the watch and wakes whoever waits. Idempotent."""
        self._watch.close()
        wake(self._client)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self, _warn=warnings.warn):
        watch = getattr(self, "_watch", None)
        if watch is not None and not watch.closed:
            if not self._client.closed:
                _warn(f"unclosed {self!r}", ResourceWarning, source=self)
            watch.close()

    def __repr__(self):
        pool = "" if self._pool is None else f" pool={self._pool!r}"
        return f"<caid.Watch {self._name!r}{pool}{' closed' if self.closed else ''}>"

    def _check(self):
        if self.closed:
            raise closed(f"the watch of {self._name!r} is closed")

    # --- threads ----------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Change:
        """Waits for the next change.

        Parameters
        ----------
        timeout : float, optional
            Seconds; 0 only looks. Without it, without end.

        Raises
        ------
        TimedOutError
            Nothing changed; also a TimeoutError.
        CancelledError, ClosedError
            The watch was closed meanwhile; before.
        DisconnectedError
            The daemon is gone.
        """
        self._check()
        return Change(self._name, self._pool, self._watch.next(timeout))

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Change:
        try:
            return self.get(self._timeout)
        except TimedOutError:
            raise
        except Error:
            if self.closed:
                raise StopIteration from None
            raise

    # --- asyncio ----------------------------------------------------------------------------

    def _look(self):
        """A change that is there, or None."""
        self._check()
        try:
            return self.get(0)
        except TimedOutError:
            return None

    async def wait(self, timeout: float | None = None) -> Change:
        """get(), for asyncio."""
        self._check()
        future = _hub(self._client).add(self)
        try:
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError as e:
            if isinstance(e, TimedOutError):
                raise
            raise _timed_out(self._name) from None

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Change:
        try:
            return await self.wait(self._timeout)
        except TimedOutError:
            raise
        except Error:
            if self.closed:
                raise StopAsyncIteration from None
            raise


def _timed_out(name):
    return TimedOutError(errno.ETIMEDOUT, f"no news of {name!r} in time")


# --- one reader for all watches of a client in a loop ---------------------------------------

_hubs: WeakKeyDictionary = WeakKeyDictionary()  # client: {loop: hub}


def _hub(client):
    loop = asyncio.get_running_loop()
    of_client = _hubs.setdefault(client, {})
    if loop not in of_client:
        of_client[loop] = _Hub(client, loop)
    return of_client[loop]


class _Hub:
    """Those who wait in one event loop for watches of one client. It reads the client's fd while
    there are any, and is gone with the last."""

    def __init__(self, client, loop):
        self.client = client
        self.loop = loop
        self.fd = client.fileno()
        self.waiting = {}  # future: watch

    def add(self, watch):
        """A future for the watch's next change."""
        future = self.loop.create_future()
        if not self.waiting:
            self.loop.add_reader(self.fd, self.ready)
        self.waiting[future] = watch
        future.add_done_callback(self.remove)
        self.look(future, watch)
        return future

    def remove(self, future):
        self.waiting.pop(future, None)
        if not self.waiting:
            self.loop.remove_reader(self.fd)
            _hubs.get(self.client, {}).pop(self.loop, None)

    def look(self, future, watch):
        """Ends the wait if there is news, or if there can be none."""
        if future.done():
            return
        try:
            change = watch._look()
        except Exception as e:
            future.set_exception(e)
        else:
            if change is not None:
                future.set_result(change)

    def ready(self):
        """The fd is readable. What went wrong, every look finds out for itself."""
        try:
            self.client.dispatch()
        except Error:
            pass
        for future, watch in list(self.waiting.items()):
            self.look(future, watch)

    def wake(self):
        """Some watch was closed, by whatever thread."""
        try:
            self.loop.call_soon_threadsafe(self.end_closed)
        except RuntimeError:  # the loop has been closed
            pass

    def end_closed(self):
        for future, watch in list(self.waiting.items()):
            if watch.closed and not future.done():
                future.set_exception(_cancelled(watch.name))


def wake(client):
    """A watch of the client was closed, or the client: whoever waits for it is told."""
    for hub in list(_hubs.get(client, {}).values()):
        hub.wake()


def _cancelled(name):
    return CancelledError(errno.ECANCELED, f"the watch of {name!r} was closed")
