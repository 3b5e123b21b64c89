# SPDX-License-Identifier: Apache-2.0
"""Version: the leases that a version's tensors live by, one for the set and one for each block.

A Weights has one from when its tensors are first asked for until it is closed. What other libraries have of
its blocks keeps it, too, by a Hold: so the leases end when the Weights is closed and the last tensor is
gone. As an array that was taken out by itself, they outlive their client's close.
"""

from __future__ import annotations

import contextlib
from typing import Any
from weakref import WeakSet, ref

from .._base import _typestr
from .._base._errors import Error, InvalidError, UnsupportedError, corrupt
from .._handoff import _any_stream
from .._memory import _array, _cai
from .._memory._layout import Layout

_BYTE = _typestr.of_typestr("|u1")
_ALIGNED = 512  # bytes: what other libraries are given begins at a multiple of it
_MAPPINGS_MAX = 4  # blocks of versions that a Line keeps mapped

_live: WeakSet = WeakSet()  # all Versions


class Hold:
    """What tensors keep of a Version. Nobody else has it."""

    __slots__ = ("version", "__weakref__")

    def __init__(self, version):
        self.version = version


class Memory(_cai.ForeignMemory):
    """A block's memory, as Array uses it: a Hold owns it."""

    __slots__ = ("lease",)

    def __init__(self, lease, owner, pending=None):
        super().__init__(lease.client, lease.device, owner, pending)
        self.lease = lease

    memory = property(lambda self: self.lease.memory)
    ptr = property(lambda self: self.lease.ptr)
    host = property(lambda self: self.lease.host)
    mapped_ordinal = property(lambda self: self.lease.mapped_ordinal)
    mapped_device = property(lambda self: self.lease.mapped_device)

    def check(self):
        super().check()
        self.lease.check()

    def share(self):
        self.check()
        return Memory(self.lease, self.owner, self.pending)


class Version:
    """The leases on a version, and the bytes that its arrays take of their blocks."""

    __slots__ = ("leases", "table", "_uuid", "_set", "_hold", "_starts", "__weakref__")

    def __init__(self, set_lease, table, is_listed, device_uuid=None):
        """is_listed: the table is this version's own list, not that of one before with the same layout."""
        keys = tuple(block.key for block in table.blocks)
        self.leases, self.table, self._set, self._hold = [], table, None, None
        self._uuid = device_uuid  # of the device that is to reach it; None: any
        self.leases = self._open(set_lease, keys)
        try:
            self._starts = [_start(*each, is_listed) for each in zip(table.blocks, self.leases)]
            self._set = set_lease.share()
        except BaseException:
            for lease in self.leases:
                lease.close()
            self.leases = []
            raise
        for lease in (self._set, *self.leases):
            lease._outlive(True)
        _live.add(self)

    def _open(self, set_lease, keys):
        mode = "r" if set_lease.readonly else "rw"
        return list(set_lease.client._open_many(keys, mode, None, self._uuid, set_lease) if keys else ())

    def open(self, keys):
        """Arrays that are taken one by one."""
        return dict(zip(keys, _array.of_leases(self._open(self._set, tuple(keys)), root=False)))

    @property
    def has_tensors(self):
        """Whether somebody has tensors of it."""
        return self._hold is not None and self._hold() is not None

    def blocks(self):
        """An Array of bytes for each block, which keeps the Version."""
        hold = self._hold and self._hold()
        if hold is None:
            hold = Hold(self)
            self._hold = ref(hold)
        arrays = []
        for block, lease, (low, ptr) in zip(self.table.blocks, self.leases, self._starts):
            layout = Layout(ptr, (block.high - low,), (1,), _BYTE, lease.readonly)
            arrays.append(_array.make(Memory(lease, hold), layout, root=False))
        return arrays

    @property
    def lows(self):
        """Where each block's Array begins, as offsets in the table."""
        return tuple(low for low, _ in self._starts)

    def offset(self, slot):
        """Of a slot's first element in its block's Array."""
        return slot.offset - self._starts[slot.block][0]

    def stretches(self):
        """(first address, bytes) in each block."""
        return [
            (ptr, block.high - low) for block, (low, ptr) in zip(self.table.blocks, self._starts)
        ]

    def advance(self, new):
        """Puts what `new` has at this one's addresses, and takes its leases for it. Where that fails, both are as they
        were, or unmapped."""
        client, leases = self._set.client, (tuple(self.leases), tuple(new.leases))
        before = [lease.ptr for lease in self.leases]
        try:
            try:
                client._exchange(*leases)
            except InvalidError:
                client.flush()  # it waits for the ends of arrays there that have been closed
                client._exchange(*leases)
        finally:  # Ctrl-C during the wait is raised when the blocks have changed places
            if [lease.ptr for lease in self.leases] != before:
                self.leases, new.leases = new.leases, self.leases
                self._set, new._set = new._set, self._set

    def end(self, stream=None):
        """Ends the leases, the set's behind the others. Idempotent. Where the stream cannot be waited for, some
        are left, and end with the next call."""
        while self.leases:
            lease = self.leases[-1]
            if len(self.leases) == 1 and self._set is not None:
                self._end_set(lease)
            live = lease._live and stream is not None
            lease.close(_any_stream.handle(stream) if live else None)
            lease._outlive(False)
            self.leases.pop()
        if self._set is not None:
            self._end_set(None)

    def _end_set(self, behind):
        lease, self._set = self._set, None
        lease._outlive(False)
        if behind is not None:
            with contextlib.suppress(Error):  # the client is closed, or another process's
                lease._close_with(behind)
                return
        lease.close()

    def __del__(self):
        self.end()


def _start(block, lease, is_listed):
    """(offset in the table, address) of the first byte that is given out of a block, once it has been opened by an
    array of it. What the daemon has listed is checked here against the block that is mapped."""
    slot = block.slot
    here = lease.shape, lease.strides, lease.typestr
    moved = lease.offset - slot.offset  # where the whole lies elsewhere in its block
    is_other = is_listed and (lease.block, moved) != (block.number, 0)
    if here != (slot.shape, slot.strides, block.typestr) or lease.descr is not None or is_other:
        raise corrupt(f"array {lease.name!r} is not what the set's list says")
    if block.low + moved < 0 or block.high + moved > lease.block_size:
        raise corrupt(f"array {lease.name!r}: the set's list leads out of its block")
    low = block.low - (block.low + moved) % _ALIGNED
    return low, lease.ptr + low - slot.offset


class Line:
    """A Weights and those that came of it by newer(). Keeps the blocks of a publisher's versions mapped, so that
    each is mapped once."""

    def __init__(self):
        self._n_open = 0
        self._mappings: dict[int, Any] = {}  # by block, the longest unused first

    def enter(self):
        self._n_open += 1

    def leave(self):
        self._n_open -= 1
        if not self._n_open:
            self._keep_at_most(0)

    def keep(self, version, n_versions):
        """Keeps the version's blocks mapped, and those of n_versions - 1 versions before it."""
        n = min(n_versions, _MAPPINGS_MAX)
        if len(version.leases) != 1 or n < 1:
            return
        (lease,) = version.leases
        with contextlib.suppress(UnsupportedError):  # no memory of a device
            self._mappings[lease.block] = self._mappings.pop(lease.block, None) or lease._keep_mapping()
        self._keep_at_most(n)

    def _keep_at_most(self, n):
        while len(self._mappings) > n:
            self._mappings.pop(next(iter(self._mappings))).close()
