# SPDX-License-Identifier: Apache-2.0
"""Storages between processes: the memory that a name stands for, its metadata, and brackets around it."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from typing import Any

import numpy

from .. import _caid
from .._base import _metadata, _typestr
from .._base._errors import (
    AbandonedError, CorruptError, InvalidError, StaleError, corrupt, invalid, read_only, unsupported,
)
from .._memory import _array, _bracket
from . import _layout
from ._sync import SyncState, address_of

_KEY, _VERSION = "caid.storage", 1  # of metadata
_KEPT = _layout.Parameters._fields[:8]  # the parameters in the metadata; the others are of this process
_ALIGNMENT_MAX = 2 << 20  # bytes: what mappings have in every process: caid_array_create()


class Shared:
    """The daemon's memory that a storage lies in, and that its name stands for: bytes on a device, bytes that
    the host reaches, or both; then these are the companion of those."""

    __slots__ = (
        "made", "host", "device", "leads", "raw", "whole", "arrays", "client", "readonly", "is_public", "may_copy",
        "_writer", "_copy",
    )

    def __init__(self, made: _layout.Parameters, host: Any, device: Any, leads: tuple[int, int]):
        self.made, self.host, self.device = made, host, device
        self.leads = leads  # bytes before the first point, of each of them
        self.raw = None  # views of both from the first point on, as bytes
        self.whole = None  # a view of all points, the host's if there is one
        self.arrays = [array for array in (device, host) if array is not None]
        self.client, self.readonly = self.arrays[0]._memory.client, self.arrays[0].readonly
        self.is_public = False  # it has had a name, so that others may use it
        self.may_copy = True  # whether a read-only side that is out of date may be copied, for this process alone
        self._writer = None  # the bracket that writes all of it, and its thread
        self._copy = None, 0, None  # side that was out of date, version, its bytes

    @property
    def name(self) -> str | None:
        return self.arrays[0].name

    @property
    def is_writing(self) -> bool:
        """Whether this thread, or task, is in a bracket in which all of it may be written."""
        bracket, thread = self._writer or (None, None)
        return thread == threading.get_ident() or bracket in _entered.get()

    def check_writable(self) -> None:
        if self.readonly:
            raise read_only(f'storage {self.name!r} was opened with mode "r"')

    def stale(self, modified: int) -> StaleError:
        side = "host" if modified == SyncState.SYNC_DEVICE_DIRTY else "device"
        return StaleError(
            f"storage {self.name!r}: the {side}'s buffer is out of date, and mode \"r\" does not write it"
        )

    def copying(self, stream: Any, modified: int, timeout: float | None) -> Any:
        """A Bracket for a copy from the modified side. If the process is killed meanwhile, the other side is
        abandoned, and the next copy writes it."""
        sides = (self.host,), (self.device,)
        source, target = sides if modified == SyncState.SYNC_HOST_DIRTY else sides[::-1]
        return _bracket.of_client(self.client, source, target, stream, timeout)

    def publish(self, side: Any, halo: tuple, name: str, replace: bool) -> int:
        self.check_writable()
        places = [(each.shape, each.strides, address_of(each)) for each in (side, self.whole)]
        if places[0] != places[1]:
            raise unsupported(
                "a view is not published: publish the storage that it was made from, and look at it so where it is "
                "opened; or a copy, by storage(view, name=...)"
            )
        size = self.made.alignment_size
        if size & (size - 1) or size > _ALIGNMENT_MAX:
            raise invalid(
                f"alignment_size {size}: of a storage with a name it is a power of 2, at most "
                f"{_ALIGNMENT_MAX}, as each process has addresses of its own"
            )
        for array in self.arrays:
            array.synchronize()
        first, companion = ([array._memory for array in self.arrays] + [None])[:2]
        was_public, self.is_public = self.is_public, True
        try:
            return first.publish(name, self._metadata(halo), 0, not replace, companion, 0)
        except BaseException:
            self.is_public = was_public
            raise

    def _metadata(self, halo):
        element, _ = _typestr.of_dtype(self.made.dtype)
        metadata = {name: getattr(self.made, name) for name in _KEPT}
        metadata |= {"dtype": element.name or element.typestr, "descr": element.descr, "halo": halo, "leads": self.leads}
        if self.made.device is None:
            metadata["managed"] = None
        return _metadata.encode({_KEY: _VERSION, **metadata})

    # --- mode "r" ---------------------------------------------------------------------------

    def read(self, sync: SyncState, side: Any) -> Any:
        """A view of one side or, if that is out of date, of an up-to-date copy; StaleError if no copy may be
        made."""
        is_host = isinstance(side, numpy.ndarray)
        stale = SyncState.SYNC_DEVICE_DIRTY if is_host else SyncState.SYNC_HOST_DIRTY
        if sync.state != stale:
            return side
        if not self.may_copy:
            raise self.stale(stale)
        source = self.device if is_host else self.host
        with _bracket.of_client(self.client, (source,), (), None, None):
            state, version = _caid.sync_load(sync._words)
            if state != stale:
                return side
            copy = self._copy
            if copy[:2] != (stale, version):
                host, device = self.raw
                copy = stale, version, _on_host(device) if is_host else _on_device(host, self)
                self._copy = copy
        return _alike(side, copy[2], sync)


def _on_host(device):
    copy = device.copy_to_host()
    copy.flags.writeable = False
    return copy


def _on_device(host, shared):
    memory = shared.device._memory
    with memory.client.empty(host.nbytes, "|u1", device=max(memory.mapped_device, 0)) as root:
        root.copy_from(host)
        return root.view()


def _alike(side, copy, sync):
    """The view of a copy that corresponds to `side`, a view of the original."""
    if isinstance(side, numpy.ndarray):
        at = address_of(side) - address_of(sync._host)
        return numpy.ndarray(side.shape, side.dtype, copy, at, side.strides)
    ptr = copy._address() + side._address() - sync._device._address()
    layout = side._layout._replace(ptr=ptr, readonly=True)
    return _array.make(copy._memory.share(), layout, root=False)


# --- metadata -------------------------------------------------------------------------------


def described(array: Any) -> tuple[_layout.Parameters, tuple[int, int]]:
    """The Parameters of an opened storage, and its leads. InvalidError: the array is no storage;
    CorruptError: its metadata are invalid."""
    metadata = array.metadata
    if not isinstance(metadata, dict) or _KEY not in metadata:
        raise invalid(f"array {array.name!r} is no storage: Client.open() opens it")
    if metadata[_KEY] != _VERSION:
        raise invalid(f"storage {array.name!r} is of version {metadata[_KEY]!r}; this caid knows {_VERSION}")
    try:
        return _checked(metadata)
    except (InvalidError, KeyError, TypeError, ValueError, OverflowError) as e:
        raise impossible(array, e) from None


def impossible(array: Any, why: Any) -> CorruptError:
    return corrupt(f"storage {array.name!r}, created by uid {array._memory.uid}: {why}")


def _checked(metadata):
    element, _ = _typestr.of_dtype(str(metadata["dtype"]))
    if metadata["descr"] is not None:
        element = _typestr.element_of(element.typestr, element.itemsize, metadata["descr"])
    metadata = {**metadata, "dtype": _typestr.to_numpy(element)}
    made = _layout.checked(_layout.Parameters(*(metadata[name] for name in _KEPT)))
    if (made.device, made.managed) not in ((None, None), ("gpu", None), ("gpu", "gt4py")):
        raise ValueError(f"device {made.device!r}, managed {made.managed!r}")
    host, device = _layout.extents(metadata["leads"])
    return made, (host, device)


# --- brackets -------------------------------------------------------------------------------


_entered: ContextVar = ContextVar("caid-storage-brackets", default=frozenset())  # the task's


class StorageBracket:
    """A bracket around a storage: what ``read()`` and ``write()`` give. See :class:`caid.Bracket`, also for
    ``async with``.

    A bracket that writes is around both buffers. One that reads is around the buffer that is used, which
    excludes all brackets that write the storage; the other side may be brought up to date meanwhile.
    """

    __slots__ = ("_storage", "_shared", "_write", "_stream", "_device", "_timeout", "_bracket", "_views", "_away")

    def __init__(self, storage: Any, write: bool, stream: Any, timeout: float | None):
        self._storage, self._shared = storage, storage._shared
        if self._shared is None:
            raise invalid("a storage in memory of this process alone has no brackets")
        if write:
            self._shared.check_writable()
        on_device = self._shared.host is None or (stream is not None and self._shared.device is not None)
        self._device = "gpu" if on_device else None
        self._write, self._stream, self._timeout = write, stream if on_device else None, timeout
        self._bracket = None

    def __enter__(self) -> Any:
        if self._bracket is not None:
            raise invalid("a bracket is begun once")
        end = None if self._timeout is None else time.monotonic() + self._timeout
        try:
            while self._bracket is None:
                self._begin(None if end is None else max(end - time.monotonic(), 0))
            used = self._storage._use(self._device, stream=self._stream or 0)
        except BaseException:
            self._give_up()
            raise
        return self._views[0] if used is self._storage._array else used

    def _begin(self, timeout):
        """Begins the bracket, unless the other side was modified, or its copy abandoned, meanwhile."""
        storage, shared = self._storage, self._shared
        may_copy = not self._write and not shared.readonly
        if may_copy:
            storage._bring(self._device, self._stream or 0, timeout)
        bracket = _bracket.of_client(shared.client, *self._arrays(), self._stream, timeout)
        try:
            self._views = bracket.begin()
        except AbandonedError:
            if not may_copy or storage._sync is None or storage._sync.state:
                raise
            storage._bring(self._device, 0, timeout, force=True)  # a process was killed after its copy, in the bracket
            return
        self._bracket = bracket
        if self._write:
            shared._writer = self, threading.get_ident()
        elif may_copy and storage._is_stale(self._device):
            self._bracket = None
            bracket.end()

    def _arrays(self):
        """(to be read, to be written)"""
        device, host = self._storage._array, self._shared.host
        if self._write:
            return (), tuple(array for array in (device, host) if array is not None)
        is_on_device = self._device is not None
        if self._shared.readonly and self._storage._is_stale(self._device):
            is_on_device = not is_on_device  # the side that is copied
        return (device if is_on_device else host,), ()

    def _give_up(self):
        if self._bracket is not None:
            self._shared._writer = None
            self._bracket._give_up()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if self._write:
                self._storage._modified(self._device)
        except BaseException:
            self._give_up()
            raise
        self._shared._writer = None
        self._bracket.__exit__(kind, error, traceback)

    async def __aenter__(self) -> Any:
        from .._base import _away

        views = await _away.enter(self, self.__enter__, lambda: self.__exit__(None, None, None))
        _entered.set(_entered.get() | {self})
        return views

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        from .._base import _away

        _entered.set(_entered.get() - {self})
        await _away.leave(self, lambda: self.__exit__(kind, error, traceback))
