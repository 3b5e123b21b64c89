# SPDX-License-Identifier: Apache-2.0
"""Event: a CUDA event, of this process or of another."""

from __future__ import annotations

from typing import Any

from .. import _caid
from .._base._driver import driver_client
from .._base._errors import timed_out
from .._base._lifetime import OfProcess, attributes
from .._caid import Client
from . import _any_stream, _pending

_IPC, _BLOCKING_SYNC, _TIMING = 1, 2, 8  # enum cuda_event_flags


@attributes
@_caid.derived
class Event(OfProcess, _caid.Event):
    """A CUDA event: what :meth:`caid.Client.event` creates, or one of another
    process.

    It ends with ``close()``, when it is collected, or with its client, which it keeps alive; what
    waits for it on a stream goes on waiting.

    Notes
    -----
    A stream that waits for an event of another process hangs for ever if that process is killed
    before its work is done: the driver has nobody to ask. A :class:`caid.Timeline` and a bracket
    (:meth:`caid.Array.read`) let their waiters go.

    Sources: CUDA Driver API, "Event Management"; cuIpcGetEventHandle().
    """

    __slots__ = ("__weakref__",)
    _comes_from = "Client.event() or Event.from_ipc_handle()"
    _no_copy = "pass its ipc_handle"

    @classmethod
    def from_ipc_handle(
        cls, handle: bytes, client: Client | None = None, device: int | str = 0
    ) -> Event:
        """An event of another process of the same uid.

        Parameters
        ----------
        handle : bytes
            Its `ipc_handle`, 64 bytes, which may be sent by any means: in a message, or as the metadata of an
            array.
        client : Client, optional
            Without it, this process's driver is used, with no daemon.
        device : int or str
            Index or, with a client, UUID of the device that it is of.

        Raises
        ------
        ValueError
            Not 64 bytes.
        DriverError
            No such event: it may have ended, or be of this process or of another uid.
        """
        index = device if client is None else client._index_of(device)
        return (client or driver_client())._event_open(index, handle)

    def __repr__(self):
        if self.closed:
            return "<caid.Event closed>"
        return f"<caid.Event {self._number:#x} device={self.device}>"

    def record(self, stream: Any = 0) -> None:
        """Records the event: it passes when the stream reaches this point. Only those who wait already still
        wait for what was recorded before.

        Parameters
        ----------
        stream : int or stream object
            As for :meth:`caid.Array.close`; 0 or None is Numba's default, here the legacy default
            stream.

        Raises
        ------
        DriverError, InvalidError
            The driver knows no such stream; it captures a graph.
        """
        self._record(_any_stream.numba_handle(stream))

    def wait(self, stream: Any = 0) -> None:
        """Has the stream wait for what was recorded last: work that is enqueued from now on comes after it.
        The host does not wait. Parameters and errors as for record()."""
        self._wait(_any_stream.numba_handle(stream))

    def synchronize(self) -> None:
        """Waits on the host until the event is passed. Raises DriverError."""
        self._synchronize()
        _pending.release()

    async def async_done(self) -> None:
        """synchronize(), for asyncio: it looks 200 times a second."""
        from .._base import _away

        await _away.until(self._look)
        _pending.release()

    def _look(self):
        if not self.query():
            raise timed_out(f"{self!r} has not passed")


def create(client, device, ipc, blocking_sync, timing):
    """The Event of Client.event()."""
    flags = (_IPC if ipc else 0) | (_BLOCKING_SYNC if blocking_sync else 0)
    flags |= _TIMING if timing else 0
    return client._event_new(client._index_of(device), flags)
