# SPDX-License-Identifier: Apache-2.0
"""Watch: news of a name, or of all with a prefix, waited for by a thread or by asyncio."""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from weakref import WeakKeyDictionary, WeakValueDictionary

from .. import _caid
from .._base._errors import CancelledError, Error, TimedOutError, check_timeout, closed
from .._base._lifetime import Named
from .._base._records import Change


@_caid.derived
class Watch(Named, _caid.Watch):
    """News of a name, or of all that begin with a prefix: what :meth:`caid.Client.watch` gives.

    Iterating waits for the next change, in a thread by ``for``, in asyncio by ``async for``::

        for change in client.watch("weights"):
            with client.open("weights", generation=change.generation) as weights:
                ...

    The first change is the array that has the name already, if any. Each later one is the latest state of a
    name that has changed: states between two looks may be left out. Of a prefix there is a change for each name, and
    ``change.name`` says which::

        for change in client.watch(prefix="run/"):
            print(change.name, "is gone" if change.generation == 0 else change.generation)

    The iteration ends when the watch is closed, by close(), by its ``with`` block, or with its
    client. With a `timeout` it raises TimedOutError where nothing changed for so many seconds; the
    watch goes on, and may be iterated again.

    Notes
    -----
    A waiting thread gives up the GIL, and Ctrl-C interrupts it. In asyncio all watches of a client
    share one reader of the event loop, on ``client.fileno()``. A watch of a prefix lists all names with it whenever
    some have changed and the program has had the changes before.
    """

    __slots__ = ("_client", "_name", "_pool", "_timeout", "__weakref__")
    _comes_from = "Client.watch()"
    _no_copy = "watch its name anew"

    def close(self) -> None:
        """Ends the watch and wakes whoever waits. Idempotent."""
        super().close()
        wake(self._client)

    def __repr__(self):
        return self._described()

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
        name, generation = self._next(timeout)
        return Change(name, self._pool, generation)

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
        """The next change if it has come, else None."""
        self._check()
        try:
            return self.get(0)
        except TimedOutError:
            return None

    async def wait(self, timeout: float | None = None) -> Change:
        """get(), for asyncio. A wait that is cancelled leaves the change to the next one."""
        self._check()
        import asyncio

        loop = asyncio.get_running_loop()
        signal = asyncio.Event()
        expired, timer = False, None

        def expire():
            nonlocal expired
            expired = True
            signal.set()

        hub = _hub(self._client, loop)
        hub.add(signal)
        try:
            if timeout is not None:
                timer = loop.call_later(timeout, expire)
            while True:
                signal.clear()
                change = self._look()
                if change is not None:
                    return change
                if expired:
                    raise TimedOutError(errno.ETIMEDOUT, f"no news of {self._name!r} in time")
                await signal.wait()
                if self.closed:
                    raise CancelledError(errno.ECANCELED, f"the watch of {self._name!r} was closed")
        finally:
            if timer is not None:
                timer.cancel()
            hub.remove(signal)

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


def create(client, name, prefix, pool, timeout):
    """The Watch of Client.watch()."""
    if (name is None) == (prefix is None):
        raise TypeError("watch: either a name or a prefix is needed")
    check_timeout(timeout)
    watch = client._watch(name, pool) if prefix is None else client._watch_prefix(prefix, pool)
    if name is not None and "*" in name and not client.exists(name, pool=pool):
        message = f"a watch is of one name, and in {name!r} a * is a letter: watch(prefix=) is of many, Client.list(pattern=) takes patterns"
        warnings.warn(message, stacklevel=3)
    watch._client = client
    watch._name = prefix if name is None else name
    watch._pool = pool
    watch._timeout = timeout
    return watch


# --- one reader for all watches of a client in a loop ---------------------------------------

# client: {loop: hub}, all by weak references. An event loop's reader holds the hub, and so the client and the
# waiters; when the loop is closed or dropped, all of them can be collected.
_hubs: WeakKeyDictionary = WeakKeyDictionary()


def _hub(client, loop):
    of_client = _hubs.setdefault(client, WeakValueDictionary())
    hub = of_client.get(loop)
    if hub is None:
        hub = of_client[loop] = _Hub(client, loop)
    return hub


class _Hub:
    """The waiters of one event loop for watches of one client. Each has a signal, after which it looks for
    its own news. The hub reads the client's fd while there are waiters, and ends with the last."""

    def __init__(self, client, loop):
        self.client = client
        self.loop = loop
        self.fd = None  # a duplicate: after the client's close its number may be another file's
        self.signals = set()

    def add(self, signal):
        if not self.signals:
            fd = os.dup(self.client.fileno())
            try:
                self.loop.add_reader(fd, self.ready)
            except BaseException:
                os.close(fd)
                raise
            self.fd = fd
        self.signals.add(signal)

    def remove(self, signal):
        self.signals.discard(signal)
        if self.signals or self.fd is None:
            return
        fd, self.fd = self.fd, None
        _hubs.get(self.client, {}).pop(self.loop, None)
        try:
            if not self.loop.is_closed():
                self.loop.remove_reader(fd)
        finally:
            os.close(fd)

    def look_all(self):
        """Has every waiter look for news. Each look raises what went wrong."""
        for signal in self.signals:
            signal.set()

    def ready(self):
        """The fd is readable."""
        with contextlib.suppress(Error):
            self.client.dispatch()  # wakes the waiters of all loops

    def wake(self):
        """Calls look_all() on the loop's thread. Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self.loop.call_soon_threadsafe(self.look_all)


def wake(client):
    """Has all waiters of a client look, since news may have come, or the client may be closed."""
    for hub in list(_hubs.get(client, {}).values()):
        hub.wake()
