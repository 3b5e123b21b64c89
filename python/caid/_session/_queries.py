# SPDX-License-Identifier: Apache-2.0
"""What a client asks the daemon for: its devices, names, memory, and the daemon itself."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Union

from .. import _caid
from .._base import _metadata
from .._base._errors import (
    ClosedError, DisconnectedError, LostError, NotFoundError, device as device_error, invalid,
)
from .._base._records import (
    Connection, Details, Device, Entry, Flushed, Holder, Lost, MemoryInfo, Metric, Pool, Status, Ticket, User,
)

_Device = Union[int, str]  # see Queries.devices


class Queries(_caid.Client):
    """The part of :class:`caid.Client` that only asks."""

    __slots__ = ("_device_list",)

    _device_list: List[Device] | None

    # --- devices ----------------------------------------------------------------------------

    @property
    def devices(self) -> List[Device]:
        """list of Device: the daemon's devices.

        ``device=`` elsewhere is an index in it, or a text: a UUID, a PCI address ("0000:65:00.0"), "cuda:1" (the
        ordinal that CUDA and its libraries give it in this process: ``CUDA_VISIBLE_DEVICES``), or "own", the
        device that this process uses first: CUDA's current one, else the first that it sees."""
        return self._known_devices().copy()

    def _known_devices(self):
        if self._device_list is None:
            self._device_list = [_device(device) for device in self._devices()]
        return self._device_list

    def _index_of(self, device):
        """The index of a device that was given by index or by a text."""
        return self._find_device(device) if isinstance(device, str) else device

    def _uuid_of(self, device):
        """The UUID of a device, for this process to find: the daemon need not have that one."""
        if device is None or (isinstance(device, str) and device.startswith(("GPU-", "MIG-"))):
            return device
        device = self._index_of(device)
        if 0 <= device < len(self._known_devices()):
            return self._known_devices()[device].uuid
        raise device_error(f"no device {device}: the daemon has {len(self._known_devices())}")

    # --- what the daemon knows --------------------------------------------------------------

    def list(
        self, *, pool: str | None = None, prefix: str | None = None, pattern: str | None = None,
        all: bool = False,
    ) -> List[Entry]:
        """Names, in byte order.

        Parameters
        ----------
        pool : str, optional
            Without it, the caller's own.
        prefix : str, optional
            Only names that start with it.
        pattern : str, optional
            Only names that it takes as a whole, as :func:`fnmatch.fnmatchcase` does: "run*" ("[*]" is
            the letter). Elsewhere a "*" is a letter of a name like any other.
        all : bool
            Those of every pool that the caller may read, pool by pool.

        Returns
        -------
        list of Entry
        """
        if pattern is None:
            return self._records(Entry, "list", pool, prefix, all)
        if prefix is not None:
            raise invalid("list: prefix and pattern exclude each other")
        import fnmatch
        import re

        entries = self._records(Entry, "list", pool, re.split(r"[*?[]", pattern)[0], all)
        return [entry for entry in entries if fnmatch.fnmatchcase(entry.name, pattern)]

    def lost(
        self, *, pool: str | None = None, prefix: str | None = None, all: bool = False
    ) -> List[Lost]:
        """Names whose arrays did not come back from an earlier daemon, and why; and droppable sets that made room,
        as models do (:func:`caid.weights.load`).

        Opening one raises LostError or DroppedError, until it is unlinked, or created or published anew.

        Parameters
        ----------
        pool, prefix, all
            As in list().

        Returns
        -------
        list of Lost
        """
        return self._records(Lost, "lost", pool, prefix, all)

    def exists(self, name: str, *, pool: str | None = None) -> bool:
        """Whether an array has the name, which can be another one, or none, a moment later: rather
        open it, or create it with ``exist_ok=True``. ``name in client`` asks in the caller's own
        pool. False, too, where there is no pool that the caller may see. Raises InvalidNameError."""
        try:
            self._show(name, pool)
        except (LostError, NotFoundError):
            return False
        return True

    def __contains__(self, name: str) -> bool:
        return self.exists(name)

    def show(self, name: str, *, pool: str | None = None) -> Details:
        """What is known of a name, and who holds the array: Details."""
        return _details(self._show(name, pool)[0])

    def unnamed(self, *, pool: str | None = None, all: bool = False) -> List[Details]:
        """Arrays that have no name, or have it no more, and who keeps their memory.

        Parameters
        ----------
        pool, all
            As in list().

        Returns
        -------
        list of Details
            `entry.name` is the last name. The daemon tells no strides here.
        """
        return [_details(details) for details in self._query("unnamed", pool, None, all)]

    def pools(self) -> List[Pool]:
        """The pools that the caller may read: list of Pool."""
        return self._records(Pool, "pools")

    def _records(self, cls, query, pool=None, prefix=None, all=False):
        return [cls._make(record) for record in self._query(query, pool, prefix, all)]

    def users(self) -> List[User]:
        """What the caller's uid is charged; for root and the daemon's own uid, every uid: list of
        User."""
        return self._records(User, "users")

    def connections(self) -> List[Connection]:
        """The connections of the caller's uid; for root and the daemon's own uid, of all: list of
        Connection. kick() ends one."""
        return self._records(Connection, "connections")

    def tickets(self) -> List[Ticket]:
        """What was sent and nobody has taken, by the caller's uid; for root and the daemon's own uid, by
        all: list of Ticket. withdraw() ends it."""
        return self._records(Ticket, "tickets")

    def metrics(self) -> List[Metric]:
        """What the daemon has counted since its start, and what there is: of all users together, of
        those that users() gives, and of the pools that pools() gives. docs/PROTOCOL.md has the
        names: list of Metric."""
        return self._records(Metric, "metrics")

    # --- memory -----------------------------------------------------------------------------

    def memory_info(self, device: _Device | None = None) -> MemoryInfo:
        """Memory of a device: MemoryInfo, which begins with free and total bytes. Without
        `device`, of the first. Raises DeviceError."""
        return MemoryInfo._make(self._memory_info(self._index_of(0 if device is None else device)))

    def flush(self, device: _Device | None = None) -> Flushed:
        """Frees what waits to be freed, and gives empty blocks back to the driver: those of the
        caller's uid; for root and the daemon's own uid, all.

        Memory that nobody holds is not given back at once, see caid.conf(5): ``max_pending_*``.
        What defer_cleanup() holds back stays.

        Parameters
        ----------
        device : int or str, optional
            Index or a text (see `devices`); without it, every device.

        Returns
        -------
        Flushed

        Raises
        ------
        DriverError
            A release failed. That block is written off and counted (``quarantined``); what came
            after it waits on.
        """
        index = -1 if device is None else self._index_of(device)
        if device is not None and index < 0:
            raise device_error(f"no device {device}: the daemon has {len(self._known_devices())}")
        return Flushed._make(self._flush(index))

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """A ``with`` block in which nothing of the caller's uid that waits to be freed is freed,
        so that no release disturbs the GPU's work. Blocks may be nested; what they held back goes
        on waiting after the outermost, until the next flush.

        Another user's want of memory overrides it, a create() of this client's that finds none
        does not. It ends with the connection, too. The rules are those of Numba's
        ``cuda.defer_cleanup()``.
        """
        self._defer_begin()
        try:
            yield
        finally:
            with contextlib.suppress(ClosedError, DisconnectedError):  # then the deferral has ended
                self._defer_end()

    def withdraw(self, *, pid: int | None = None, gone: bool = False) -> int:
        """Ends what was sent and nobody has taken: arrays without a name that a message keeps.

        A message keeps its array until it is taken, and for ``ticket_ttl`` of caid.conf(5), 10 minutes,
        after its sender has gone. Who would take it later gets :class:`caid.NotFoundError`.
        ``caidctl show --tickets`` tells what there is.

        Parameters
        ----------
        pid : int, optional
            What that process has sent, of the caller's uid; of any for root and the daemon's own uid.
        gone : bool
            What senders have left that have ended.

        Without both it is what this client has sent, but for an open :class:`caid.Reference`.

        Returns
        -------
        int
            How many messages.
        """
        return self._withdraw(pid or 0, gone)

    def kick(self, conn: int) -> None:
        """Ends a connection of the caller's uid; for root and the daemon's own uid, of any.

        Its client's calls raise :class:`caid.KickedError`. The client does not come back, also not to a daemon
        that is started later; its program may connect anew. What the client has open stays until its process
        has exited, since the GPU may use it.

        Parameters
        ----------
        conn : int
            :attr:`Connection.conn`.

        Raises
        ------
        NotFoundError
            The connection is none of the caller's, or has ended.
        """
        self._kick(conn)

    # --- the daemon -------------------------------------------------------------------------

    def status(self) -> Status:
        """The daemon: Status."""
        return Status._make(self._status())

    @property
    def host_accessible(self) -> bool:
        """bool: whether the host can reach array memory; so it is with the software driver, unless
        :func:`caid.strict_device` was called."""
        return self._host_accessible


def _device(record):
    device = Device._make(record)
    return device._replace(kinds=tuple(device.kinds.split()))


def _details(record):
    details = Details._make(record)
    return details._replace(
        entry=Entry._make(details.entry),
        holders=[Holder._make(holder) for holder in details.holders],
        metadata=_metadata.decode(details.metadata),
    )
