# SPDX-License-Identifier: Apache-2.0
"""Publisher: versions of one model, which are made once and published in turn.

A version lies in a **slot**: an array of bytes of its own block, of which the tensors are parts, and the set that has
these. Publishing gives the model's name to another slot's set. A slot is written when nobody has its version, which
the daemon knows and waits for.

Publishers take turns (_turn.py), by the array NAME.publisher. A slot that was not published is freed at the exit of its
process.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .._base import _geometry, _metadata, _typestr
from .._base._errors import (
    CancelledError, ClosedError, Error, InvalidError, InvalidNameError, LostError, NotFoundError, TimedOutError,
    check_timeout, closed, invalid,
)
from .._base._lifetime import Closing, NotCompared, OfProcess
from .._handoff import _any_stream, _pending, _stream
from .._interfaces import _torch_types
from .._memory import _array, _copy, _data
from .._memory._layout import Layout
from .._session._client import Client
from . import _plan
from ._turn import Turn, left
from ._views import elements_of
from ._weights import Weights, prefix_of

_BYTE = _typestr.of_typestr("|u1")
_SHOWN = 8  # tensors that an error names
_LARGE = 1 << 20  # bytes
_FOREVER = 2**64 - 1  # ns


# --- what a version is made of ----------------------------------------------------------------


class Member(NamedTuple):
    """A tensor of each version, `at` bytes into its slot, in C order."""

    element: _typestr.Element
    shape: tuple
    at: int
    nbytes: int


class Members(NamedTuple):
    of: dict  # Member by key; tied ones lie at one place
    nbytes: int  # of a slot
    is_torch: bool  # whether tensors of PyTorch were shown


def _members_like(like, prefix):
    """The Members of versions that have the tensors of `like`. One error for all that cannot be."""
    shown = _shown(like)
    found, first, elements, misfits, end = {}, {}, {}, [], 0
    for key, (thing, identity) in shown.items():
        try:
            _plan.check_name(prefix, key)
            element, shape = _described(thing)
        except (TypeError, ValueError) as e:
            misfits.append(str(e) if isinstance(e, InvalidNameError) else f"{key!r}: {e}")
            continue
        element = elements.setdefault(element, element)  # _misfits() compares objects
        tied = found.get(first.setdefault((identity, element, shape), key))
        nbytes = _geometry.size(shape) * element.itemsize
        at = tied.at if tied else _plan.aligned(end) if nbytes else 0
        found[key] = Member(element, shape, at, nbytes)
        end = max(end, at + nbytes)
    if misfits or not found:
        raise invalid(f"{prefix[:-1]}: {_listed(misfits) or 'no tensors'}")
    tensor = _tensor_class()
    is_torch = all(isinstance(thing, tensor) for thing, _ in shown.values())
    return Members(found, end, is_torch)


def _shown(like):
    """By key: what has a shape and a type, and what is the same for keys that are one tensor."""
    if isinstance(like, Weights):
        arrays = like.items()
        try:
            return {key: ((a.shape, a._layout.element), elements_of(a) if a.nbytes else key) for key, a in arrays}
        finally:
            for _, array in arrays:
                array.close()
    if not isinstance(like, Mapping):
        if not hasattr(like, "state_dict"):
            raise TypeError(f"like: a module, a dict or Weights is needed, not {type(like).__name__}")
        like = like.state_dict(keep_vars=True)
    tensor = _tensor_class()
    return {key: (thing, _identity(thing, tensor)) for key, thing in like.items()}


def _identity(thing, tensor):
    """Modules give a new object for a tensor each time, and those of device "meta" have no addresses."""
    if isinstance(thing, tensor) and thing.numel():
        return thing.untyped_storage()._cdata, thing.storage_offset(), thing.stride()
    return id(thing)


def _described(thing):
    """(element, shape) of a tensor, of an array, or of a pair of shape and type."""
    if isinstance(thing, _array.Array):
        return thing._layout.element, thing.shape
    if type(thing) is not tuple:
        thing = getattr(thing, "shape", None), getattr(thing, "dtype", None)
    if len(thing) != 2 or any(part is None for part in thing):  # float64's dtype is equal to None
        raise TypeError("neither an array or a tensor, nor a shape and a dtype")
    element, inner = _typestr.of_dtype(thing[1])
    shape = _geometry.dims("shape", thing[0]) + inner
    if any(extent < 0 for extent in shape):
        raise ValueError(f"shape {shape}: negative")
    return element, shape


def _tensor_class():
    """PyTorch's, if the program has imported that: else nothing is of it."""
    return getattr(sys.modules.get("torch"), "Tensor", ())


def _misfits(members, given):
    """What keeps the tensors that are given from being a version."""
    known: dict = {}  # elements by the libraries' types
    for key, member in members.items():
        thing = given.get(key, given)
        try:
            shape, dtype = thing.shape, None if isinstance(thing, _array.Array) else thing.dtype
        except AttributeError:
            yield f"{key!r}: missing" if thing is given else f"{key!r}: no array but {type(thing).__name__}"
            continue
        element = thing._layout.element if dtype is None else known.get(dtype)
        if element is None:
            element = known[dtype] = _typestr.of_dtype(dtype)[0]
        if element is not member.element:
            if not _typestr.same(element, member.element):
                yield f"{key!r}: {element.type_name}, not {member.element.type_name}"
                continue
            known[dtype] = member.element
        if shape != member.shape and tuple(shape) != member.shape:
            yield f"{key!r}: shape {tuple(shape)}, not {member.shape}"
    for key in given:
        if key not in members:
            yield f"{key!r}: not of the model"


def _listed(misfits):
    more = f"; and {len(misfits) - _SHOWN} more" if len(misfits) > _SHOWN else ""
    return "; ".join(misfits[:_SHOWN]) + more


def _table(members):
    """The members as the extension takes them."""
    return tuple(
        (key, member.at, member.element.type_name, member.element.descr, member.shape, None)
        for key, member in members.of.items()
    )


# --- where it lies --------------------------------------------------------------------------


class _Slot:
    """A set, and a lease by which its block is mapped "rw" as long as the slot is there."""

    def __init__(self, members: Members, version, memory, ptr: int):
        self.set = version  # _caid.Lease
        self.memory = memory  # _caid.Lease
        self._ptr = ptr  # of its first byte
        self._members = members
        self._tensors: dict | None = None

    def close(self):
        """When the work on it is done, the daemon is told."""
        self._tensors = None
        self.set.close()
        self.memory.close()

    def array(self, member, stream=None):
        strides = _geometry.c_strides(member.shape, member.element.itemsize)
        layout = Layout(self._ptr + member.at, member.shape, strides, member.element, False)
        return _array.make(self.memory.share(), layout, root=False, stream=stream)

    def tensors(self):
        """PyTorch's tensors, by key: views of one."""
        if self._tensors is None:
            import torch

            dtypes = _torch_types.dtypes(torch)
            with self.array(Member(_BYTE, (self._members.nbytes,), 0, 0)) as whole:
                flat = torch.from_dlpack(whole)
            made: dict = {}
            for member in self._members.of.values():
                if member not in made:
                    dtype = dtypes.get(member.element)
                    if dtype is None:
                        raise TypeError(f"PyTorch has no {member.element.type_name}")
                    part = flat[member.at : member.at + member.nbytes]
                    made[member] = part.view(dtype).view(member.shape) if member.nbytes else part.new_empty(
                        member.shape, dtype=dtype
                    )
            self._tensors = {key: made[member] for key, member in self._members.of.items()}
        return self._tensors


# --- writing --------------------------------------------------------------------------------


class NewVersion(NotCompared, Mapping[str, Any]):
    """The tensors of a version that is being written: what the ``with`` block of
    :meth:`caid.weights.Publisher.version` is given. A mapping of the model's keys to PyTorch's tensors, where the
    publisher was made like some, else to :class:`caid.Array`. Their contents are undefined until written.

    After the block it is closed, and so are its arrays. Tensors of other libraries must not be written any more: they lie
    in what readers have then.
    """

    def __init__(self, slot, members, stream):
        self._slot = slot
        self._members = members
        self._stream = stream  # on which it is written, or None
        self._arrays: dict[str, _array.Array] = {}

    def _open(self):
        if self._slot is None:
            raise closed("the version is not being written any more")
        return self._slot

    def _close(self):
        self._slot = None
        arrays, self._arrays = self._arrays, {}
        for array in arrays.values():
            array.close()

    def __getitem__(self, key: str) -> Any:
        slot = self._open()
        if self._members.is_torch:
            return slot.tensors()[key]
        return self._array(key)

    def _array(self, key):
        if key not in self._arrays:
            self._arrays[key] = self._open().array(self._members.of[key], self._stream)
        return self._arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members.of)

    def __len__(self) -> int:
        return len(self._members.of)

    def torch(self) -> dict[str, Any]:
        """PyTorch's tensors, by key; tied ones are one tensor."""
        return dict(self._open().tensors())

    def cupy(self) -> dict[str, Any]:
        """CuPy's arrays, by key."""
        import cupy

        return {key: cupy.from_dlpack(self._array(key)) for key in self}

    def _fill(self, given):
        """Copies what is given to all tensors, on the stream."""
        tensor = _tensor_class()
        if all(isinstance(thing, tensor) for thing in given.values()):
            self._fill_with_tensors(given)
            return
        for key, thing in given.items():
            with _data.side(thing) as side:
                _copy.copy(_copy.device(self._array(key)), side, self._stream)

    def _fill_with_tensors(self, given):
        """Large ones each by a copy of the device's, which is faster than kernels; of the others all that are alike in one
        call, which PyTorch makes few kernels of."""
        import torch

        tensors, batches, large = self._open().tensors(), {}, []
        device = next(iter(tensors.values())).device
        ordinal = -1 if device.type == "cpu" else device.index
        for key, source in given.items():
            if source.nbytes >= _LARGE:
                large.append((tensors[key], source))
                continue
            kind = source.dtype, source.get_device(), source.is_contiguous()
            batch = batches.get(kind)
            if batch is None:
                batch = batches[kind] = [], []
            batch[0].append(tensors[key])
            batch[1].append(source)

        def near(source):  # a link reaches PyTorch's own memory alone
            return source if source.get_device() in (-1, ordinal) else source.to(device)

        def copy():
            with torch.no_grad():
                for target, source in large:
                    target.copy_(near(source), non_blocking=True)
                for targets, sources in batches.values():
                    torch._foreach_copy_(targets, [near(source) for source in sources], non_blocking=True)

        if ordinal < 0:  # without a GPU the host copies
            if self._stream is not None:
                self._stream.synchronize()
            return copy()
        before = torch.cuda.current_stream(device)
        stream = before if self._stream is None else _torch_stream(torch, self._stream, device)
        with torch.cuda.stream(stream):
            copy()
        if stream != before:  # PyTorch would give freed sources to others on the stream that it knows
            for source in given.values():
                if source.get_device() == ordinal:
                    source.record_stream(stream)
        if self._stream is None and any(source.get_device() < 0 for source in given.values()):
            stream.synchronize()  # who gave no stream cannot know when these have been read
        self._stream = stream


def _torch_stream(torch, stream, device):
    number = _any_stream.handle(stream)
    if number == _any_stream.LEGACY:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(number, device=device)


# --- publishing -----------------------------------------------------------------------------


def create(client, name, like, versions, pool, device, timeout) -> Publisher:
    """publisher()."""
    prefix = prefix_of(name)
    check_timeout(timeout)
    if versions < 2:
        raise invalid(f"versions {versions}: 2 or more, as readers have one while the next is written")
    members = _members_like(like, prefix)
    self = object.__new__(Publisher)
    self._closed = True  # until there is something to close
    self._client, self._prefix, self._pool = client, prefix, pool
    self._members, self._versions = members, versions
    self._device = client._index_of(_device_like(client, like) if device is None else device)
    self._writing, self._state = threading.Lock(), threading.RLock()
    self._free = []
    self._current = self._pending = None
    self._turn = Turn(client, f"{prefix[:-1]}.publisher", pool, timeout, "publishes")
    try:
        self._current, self._generation = self._adopt()
        for _ in range(versions - (self._generation > 0)):
            self._free.append(self._made())
    except BaseException:
        self._end()
        raise
    self._closed = False
    return self


def _device_like(client, like):
    """The device of what is shown, where that is one; else the first."""
    if isinstance(like, Weights):
        return like.client.devices[like.device].uuid
    if hasattr(like, "state_dict"):
        like = like.state_dict(keep_vars=True)
    tensor, found = _tensor_class(), set()
    for thing in like.values():
        if isinstance(thing, tensor) and thing.is_cuda:
            found.add(client._find_device(thing.device.index))
        elif isinstance(thing, _array.Array) and thing._memory.client is client:
            found.add(max(thing.device, 0))
    return found.pop() if len(found) == 1 else 0


class Publisher(OfProcess, NotCompared, Closing):
    """What publishes versions of a model in turn: see :func:`caid.weights.publisher`. A context manager.

    Memory is taken once, `versions` times that of a version, and written in turn. The version that was displaced
    first is overwritten, when nobody has it any more: no process a lease, a tensor, a ticket or a
    :class:`caid.Reference` of it, nor work on it under way. That a process still has it mapped does not count.

    Methods may be called from any thread; one version is written at a time. After ``os.fork()`` they raise ForkedError
    in the child. Over a restart of a daemon that has a keeper all goes on.
    """

    __slots__ = (
        "_client", "_closed", "_current", "_device", "_free", "_generation", "_members", "_pending", "_pool", "_prefix",
        "_state", "_turn", "_versions", "_writing", "__weakref__",
    )  # fmt: skip
    _comes_from = "caid.weights.publisher()"

    _free: list[_Slot]  # the one that was displaced first is the first
    _current: _Slot | None  # its version has the name, or had it last
    _pending: _Slot | None  # its version is on its way

    # --- life -------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets another one publish. Idempotent. Waits until what is on its way has landed and is published, and raises
        what keeps it from that. The current version keeps its name; the other memory is given back when nobody has
        versions there. A version that is being written is not published."""
        if self._closed or not self._client._live:
            self._closed = True
            return
        with self._state:
            self._closed = True
            try:
                self._land(None)
            except Error:
                self._end()
                raise
            except BaseException:  # Ctrl-C: the next one must not have its turn before this version is there
                self._closed = False
                raise
            self._end()

    def _end(self):
        slots, self._free, self._current = (*self._free, self._current), [], None
        try:
            for slot in slots:
                if slot is not None:
                    with contextlib.suppress(Error):
                        slot.set._cancel()  # who waits for it in another thread
                    slot.close()
        finally:  # Ctrl-C, too
            self._turn.end()

    def __del__(self, _warn=warnings.warn):
        if getattr(self, "_closed", True):
            return
        if self._client._live:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)
        with contextlib.suppress(Error, RuntimeError):  # RuntimeError: the interpreter ends, and so does the turn
            if self._pending is None:
                self.close()
            else:  # a collection does not wait for the GPU
                threading.Thread(target=self.close, daemon=True).start()

    def _check(self):
        if self._closed:
            raise closed(f"{self!r} is closed")
        self._client._check()

    def __repr__(self) -> str:
        what = f"{self.name!r} tensors={len(self._members.of)} versions={self._versions}"
        return f"<caid.weights.Publisher {what}{' closed' if self.closed else ''}>"

    # --- what it is -------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """bool: whether it, or its client, is closed."""
        return self._closed or self._client.closed

    @property
    def name(self) -> str:
        """str: the model's name."""
        return self._prefix[:-1]

    @property
    def pool(self) -> str | None:
        """str or None: the pool that the model lies in; None for the caller's own."""
        return self._pool

    @property
    def client(self) -> Client:
        """Client: the one by which it publishes."""
        return self._client

    @property
    def device(self) -> int:
        """int: index in ``client.devices`` of the device on which versions lie."""
        return self._device

    @property
    def nbytes(self) -> int:
        """int: bytes of the memory of one version."""
        return self._members.nbytes

    # --- versions ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def version(
        self, *, stream: Any = None, timeout: float | None = None, metadata: Any = None
    ) -> Iterator[NewVersion]:
        """A ``with`` block in which the next version is written, all of it::

            with p.version(stream=s, timeout=60) as w:
                w["model.norm.weight"].copy_(norm)

        Entering waits until the version before has landed, and nobody has the one that is overwritten. At its end the
        version is published behind the work that is on the stream by then, by a thread of the client's: the caller
        does not wait, and readers find it when it is whole. A block that is left by an exception publishes nothing;
        its memory is given back, and taken anew for the next.

        Parameters
        ----------
        stream : int or stream object, optional
            The CUDA stream on which the tensors are written, as for :meth:`caid.Array.close`. Without it, all work is
            waited for that is on any stream of the device's context at the end of the block.
        timeout : float, optional
            Seconds that entering may wait; 0 is a try. Without it, without end.
        metadata : object, optional
            Anything that JSON can tell: ``Weights.metadata`` of this version.

        Returns
        -------
        NewVersion
            A mapping of the tensors, for the block.

        Raises
        ------
        TimedOutError
            Processes have the version that is to be overwritten: the message names them. Or the one before has not
            landed.
        InvalidError
            Another version is being written.
        OutOfMemoryError, QuotaError, LimitError
            There is no memory where some has to be taken anew.
        ClosedError, ForkedError
            The publisher, or its client, is closed, or was closed meanwhile; it was inherited by ``os.fork()``.
        caid.Error
            What kept the version before from being published; it is raised once.
        """
        self._check()
        check_timeout(timeout)
        told = {"safetensors": {}, "publisher": {"versions": self._versions}, "metadata": metadata}
        text = _metadata.encode(told)
        if not self._writing.acquire(blocking=False):
            raise invalid(f"{self!r}: another version is being written")
        try:
            slot = self._vacant(None if timeout is None else time.monotonic() + timeout)
            try:
                on = _stream.of(stream, self._client, max(slot.memory.mapped_device, 0))
                w = NewVersion(slot, self._members, on)
                try:
                    yield w
                    self._publish(slot, w._stream, text)
                finally:
                    w._close()
            except BaseException:  # what is on its way there must not meet the next version
                if slot is not self._pending:
                    slot.close()
                raise
        finally:
            self._writing.release()

    def publish(
        self, state_dict: Mapping[str, Any], *, stream: Any = None, timeout: float | None = None, metadata: Any = None
    ) -> None:
        """Publishes copies of tensors as the next version, as version() does: without waiting for the copies. Tensors
        of PyTorch that are on another device go through memory of PyTorch's on this one.

        Parameters
        ----------
        state_dict : mapping of str to tensors or arrays
            All of the model's keys, with their shapes and types, and any strides: of PyTorch, or whatever
            :meth:`caid.Client.array` takes. Of tied ones, one is taken.
        stream : int or stream object, optional
            The stream on which they are copied, after what is on it: they must not change before it has come past
            that. Without it, PyTorch's tensors on a GPU are copied on its current stream, and all else has been read
            when this returns.
        timeout, metadata
            As for version().

        Raises
        ------
        InvalidError
            Keys, shapes or types are not the model's: the message says which. Nothing has been written.
        TimedOutError, ClosedError, ForkedError, ...
            As for version().
        """
        self._check()
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict: a mapping of tensors is needed, not {type(state_dict).__name__}")
        misfits = list(_misfits(self._members.of, state_dict))
        if misfits:
            raise invalid(f"{self.name}: {_listed(misfits)}")
        with self.version(stream=stream, timeout=timeout, metadata=metadata) as w:
            w._fill(state_dict)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until what was published last has landed, and is the current version.

        Parameters
        ----------
        timeout : float, optional
            Seconds; 0 only looks. Without it, without end.

        Returns
        -------
        int
            The version, as ``Weights.version`` has it; 0: there has been none.

        Raises
        ------
        TimedOutError
            It has not landed in time.
        ClosedError, ForkedError
            As for version().
        caid.Error
            What kept it from being published; it is raised once, and the version before is still the current one.
        """
        self._check()
        check_timeout(timeout)
        self._land(timeout)
        return self._generation

    # --- inside -----------------------------------------------------------------------------

    def _publish(self, slot, stream, text):
        if stream is None:
            _pending.wait(slot.memory)
        else:
            _pending.order(slot.memory, stream)
        with self._state:
            self._check()
            self._pending = slot  # first: Ctrl-C may come as the call returns
            try:
                slot.set._publish_behind(self._prefix, text, 0 if stream is None else _any_stream.handle(stream))
            except Error:
                self._pending = None
                raise

    def _land(self, timeout):
        """Waits for the version that is on its way."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._locked(timeout):
            slot = self._pending
            if slot is None:
                return
            try:
                self._generation = slot.set._publish_wait(left(deadline))
            except TimedOutError:
                raise
            except Error:
                self._pending = None
                slot.close()
                raise
            before, self._pending, self._current = self._current, None, slot
            if before is not None:
                self._free.append(before)

    @contextlib.contextmanager
    def _locked(self, timeout):
        """Another thread has the lock as long as it waits in _land()."""
        if not self._state.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise TimedOutError(errno.ETIMEDOUT, f"{self!r}: the last version has not landed")
        try:
            yield
        finally:
            self._state.release()

    def _vacant(self, deadline):
        """Takes a slot that nobody has, or makes one where there are fewer than there may be."""
        self._land(left(deadline))
        while True:
            with self._state:
                self._check()
                free = list(self._free)
                may_make = len(free) + (self._current is not None) < self._versions
            try:
                if free:
                    return self._take(free, 0 if may_make else left(deadline))
            except TimedOutError:
                if not may_make:
                    raise
            except (InvalidError, LostError):
                if not self._give_up(free):
                    raise
                continue
            return self._made()

    def _take(self, slots, timeout):
        """Takes the first one of some free slots that nobody has."""
        try:
            slot = slots[self._wait(slots, timeout)]
        except (CancelledError, ClosedError):
            self._check()
            raise
        with self._state:
            self._check()
            self._free.remove(slot)
        return slot

    def _wait(self, slots, timeout):
        sets, own = (tuple(getattr(slot, what) for slot in slots) for what in ("set", "memory"))
        return self._client._vacate(sets, own, _FOREVER if timeout is None else min(round(timeout * 1e9), _FOREVER))

    def _give_up(self, slots):
        """Gives up the slots that have got another name since, or have not come back from an earlier daemon: how many."""
        given_up = 0
        for slot in slots:
            try:
                self._wait([slot], 0)
            except TimedOutError:
                continue
            except (InvalidError, LostError):
                with self._state:
                    self._check()
                    self._free.remove(slot)
                slot.close()
                given_up += 1
        return given_up

    def _made(self):
        """A new slot."""
        client, members = self._client, self._members
        size = (max(members.nbytes, 1),)
        memory = client._create_lease(None, size, _BYTE, None, self._pool, self._device, True, "device", 0, None)
        try:
            version = client._set_create(memory, _table(members))
        except BaseException:
            memory.close()
            raise
        return _Slot(members, version, memory, memory.ptr)

    def _adopt(self):
        """(the slot of the current version, its generation). None: it is not as this publisher makes them; 0: there is
        no version."""
        try:
            version = self._client._open(self._prefix, "rw", self._pool, 0, None)
        except (NotFoundError, LostError):
            return None, 0
        slot = None
        try:
            generation = version.generation
            told = _metadata.decode(version.metadata)
            if isinstance(told, dict) and "publisher" in told and version.members == len(self._members.of):
                slot = self._slot_of(version)
        finally:
            if slot is None:
                version.close()
        return slot, generation

    def _slot_of(self, version):
        """The slot of a version, which may be another user's; None if its members do not lie as ours."""
        client, members = self._client, self._members.of
        try:
            leases = client._open_many(tuple(members), "rw", None, None, version)
        except (NotFoundError, InvalidNameError):
            return None
        found = None
        try:
            largest, member = max(zip(leases, members.values()), key=lambda pair: pair[1].nbytes)
            start = largest.offset - member.at
            if all(map(self._is_at, leases, members.values(), itertools.repeat((largest.block, start)))):
                found = largest
        finally:
            for lease in leases:
                if lease is not found:
                    lease.close()
        return found and _Slot(self._members, version, found, found.ptr - member.at)

    def _is_at(self, lease, member, place):
        block, start = place
        return (
            (not member.nbytes or (lease.block, lease.offset, lease.device) == (block, start + member.at, self._device))
            and lease.shape == member.shape
            and lease.strides == _geometry.c_strides(member.shape, member.element.itemsize)
            and _typestr.same(_typestr.element_of(lease.typestr, lease.itemsize, lease.descr), member.element)
        )
