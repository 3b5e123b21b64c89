# SPDX-License-Identifier: Apache-2.0
"""Turn: one process at a time does something about a name, and the next one's turn comes when it has ended its own, or
has exited.

Who has the turn has a write bracket on an array of no bytes that is made for it. The array goes with the last turn. Who
is killed leaves it to the next.
"""

from __future__ import annotations

import contextlib
import time

from .._base._errors import DeadlockError, Error, NotFoundError, TimedOutError


def left(deadline: float | None) -> float | None:
    """The seconds until a time of :func:`time.monotonic`; None: without end."""
    return None if deadline is None else max(deadline - time.monotonic(), 0)


class Turn:
    """A turn, waited for when it is made, which end() ends; or a context manager."""

    def __init__(self, client, array: str, pool, timeout: float | None, does: str):
        """`array`: the name of the array. `does`: what who has the turn does, as errors tell it.
        TimedOutError; DeadlockError: it is this thread's own. Else as Client.create()."""
        self._client, self._name, self._pool, self._does = client, array, pool, does
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._begin(left(deadline)):
            pass

    def _begin(self, timeout):
        """False: the one before has taken the array's name away, and others have a new one's."""
        self._array = self._client.create(self._name, 0, "|u1", pool=self._pool, exist_ok=True)
        self._bracket = self._array.write(timeout=timeout)
        try:
            self._bracket.begin()
            if self._is_named():
                return True
        except (TimedOutError, DeadlockError) as e:
            self._leave()
            name = self._name.rpartition(".")[0]
            raise type(e)(e.errno, f"{name}: {self._who()} {self._does} it") from None
        except BaseException:
            self._leave()
            raise
        self._leave()
        return False

    def _is_named(self):
        try:
            found = self._client.show(self._name, pool=self._pool)
        except NotFoundError:
            return False
        return found.entry.generation == self._array.generation

    def _who(self):
        """Whose turn it is, as far as the daemon knows: it has been started anew, perhaps, and he is not back."""
        writing: list = []
        with contextlib.suppress(Error):
            holders = self._client.show(self._name, pool=self._pool).holders
            writing = [holder for holder in holders if holder.writing] or [h for h in holders if h.hung_up]
        return ", ".join(f"{holder.client or 'process'} {holder.pid}" for holder in writing) or "another process"

    def end(self) -> None:
        """The name goes first: who waits for the bracket looks for another array then."""
        try:
            with contextlib.suppress(Error):
                self._client.unlink(self._name, pool=self._pool)
        finally:  # Ctrl-C, too
            self._leave()

    def _leave(self):
        try:
            with contextlib.suppress(Error):
                if self._bracket.is_open:
                    self._bracket.end()
        finally:
            self._array.close()

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def turn(client, name: str, *, pool: str | None = None, timeout: float | None = None) -> Turn:
    """The turn to load what is under a name, for a ``with`` block. Who gets it looks first whether it is there now: the
    one before has loaded it, perhaps. Its array is NAME.turn; errors as Turn's."""
    return Turn(client, f"{name}.turn", pool, timeout, "loads")
