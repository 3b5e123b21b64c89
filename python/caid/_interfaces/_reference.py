# SPDX-License-Identifier: Apache-2.0
"""Reference: where an array is, for who cannot be given its memory; and how arrays are pickled, which
is by one: by name through any pickle, by a ticket through multiprocessing's, which is for one receiver,
and keeps the memory until that has it."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal

from .._base import _geometry, _imports, _typestr
from .._base._errors import (
    AbandonedError, DeadlockError, Error, NoDaemonError, NotFoundError, TimedOutError, closed as
    closed_error, corrupt, not_found,
)
from .._base._lifetime import Closing, attribute, attributes
from .._handoff import _pending
from .._memory import _arena, _array, _bracket, _cai
from .._memory._array import Array
from .._memory._layout import Layout
from .._session import _default

if TYPE_CHECKING:
    import numpy

    from .._session._client import Client

_FEEDER = "QueueFeederThread"  # a multiprocessing.Queue's, in which what is put is pickled
_ELSEWHERE = "its memory is of this process alone; copy it to an array of a client's"
_NAMELESS = (
    "it has no name, and who unpickles it could be anybody, or nobody; publish it, send it by "
    "multiprocessing (a Queue, a Pipe, a Pool), or send a caid.Reference"
)


@attributes
class Reference(Closing):
    """Where an array is: a reference is sent in place of an array, to processes that may be on the same
    machine, or not.

    Any pickle sends it. It is small, and has the shape and type even where the array cannot be opened. It
    grants no rights: the receiver opens it at a daemon that it has connected to by itself, which checks the
    pool's permission, and a ticket if there is no name.

    Parameters
    ----------
    x : Array, or any object in memory of an Arena
        Of CuPy, PyTorch, …: it has a ``__cuda_array_interface__``, or is an Allocation.
    keep : bool
        Whether the reference keeps the array, by a ticket that any number of receivers may use, until
        it is closed or collected, or 10 minutes (``ticket_ttl`` of caid.conf(5)) after its client is closed
        or its process has ended. It is charged as a lease. What is made of it by
        pickling keeps nothing. Else it tells the name, and is good as long as that shows this array.

    Raises
    ------
    TypeError
        The memory is no daemon's; it has no name, and is not to be kept.
    LimitError, QuotaError
        The user has as many leases as there may be.

    Attributes
    ----------
    machine_id, daemon_id : str
        Of the daemon, as :attr:`caid.Client.machine_id` and `daemon_id`.
    pool, name : str or None
    generation : int
        Of the name.
    mode : {"r", "rw"}
        In which the array was open.
    shape, strides : tuple of int
    """

    __slots__ = (
        "machine_id",
        "daemon_id",
        "pool",
        "name",
        "generation",
        "mode",
        "shape",
        "strides",
        "_type",
        "_start",
        "_ticket",
        "_once",
        "_follows",
        "_kept",
    )

    machine_id: str
    daemon_id: str
    pool: str | None
    name: str | None
    generation: int
    mode: Literal["r", "rw"]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    _type: tuple  # of the type: what element_of() takes
    _start: int | None  # bytes from the array that is opened to this one, a part of it; None: the same
    _ticket: bytes | None
    _once: bool  # the ticket is for one
    _follows: bool  # who opens it comes after work that is under way
    _kept: list  # what its maker has: (the client, a view of the array); empty: given up

    def __new__(cls, x: Any, *, keep: bool = True) -> Reference:
        if not keep:
            return _by_name(x)
        x = x if isinstance(x, (Array, _arena.Allocation)) else _cai.as_array(x, sync=False)
        sent, client = _with_ticket(x, False)
        return _made(*sent, kept=[(client, x.view() if isinstance(x, Array) else x)])

    @property
    def typestr(self) -> str:
        """str: type of the elements, as :attr:`caid.Array.typestr`."""
        return self._element().typestr

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """numpy.dtype: type of the elements, as :attr:`caid.Array.dtype`. Needs NumPy."""
        return _typestr.to_numpy(self._element())

    @property
    def nbytes(self) -> int:
        """int: bytes of the elements."""
        return _geometry.size(self.shape) * self._element().itemsize

    def _element(self):
        return _typestr.element_of(*self._type)

    def here(self, client: Client | None = None) -> bool:
        """Whether the array is at the daemon of this client, or of one that this process has: then it
        can be opened without a copy, as long as it is there, by who may. Asks nobody."""
        try:
            return self._is_at(client or _default.client_at(self.daemon_id))
        except NoDaemonError:
            return False

    def open(
        self,
        client: Client | None = None,
        mode: Literal["r", "rw"] | None = None,
        device: int | str | None = None,
    ) -> Array:
        """Opens the array. Its use here comes after the sender's work on it that caid knows of.

        Parameters
        ----------
        client : Client, optional
            Without it, one of this process's that is at that daemon: the default one, or one that arrays
            have come by.
        mode : {"r", "rw"}, optional
            Without it, the sender's.
        device : int or str, optional
            Of this process, to reach the memory by, as :meth:`caid.Client.open` takes it.

        Raises
        ------
        NotFoundError
            The array is at another daemon: it has to be sent by value. It is not there any more, or
            somebody else has taken it, or the caller may not see its pool.
        StaleError, AccessError, ReadOnlyError
            The name shows another one; the caller may not write the pool; it was sent "r".
        DeviceError
            This process does not see that device.
        NoDaemonError
            Nobody listens at this process's socket.
        CorruptError
            What the reference says cannot be, or is not so of the array.
        """
        flaw = self._flaw()
        if flaw is not None:
            raise corrupt(f"an invalid reference: its {flaw} is invalid")
        client = client or _default.client_at(self.daemon_id)
        if not self._is_at(client):
            raise not_found(
                f"{self!r} is on machine {self.machine_id or 'unknown'}; {client!r} is at daemon "
                f"{client.daemon_id} of machine {client.machine_id}: it has to be sent by value"
            )
        array = self._open(client, mode or self.mode, device)
        try:
            if self._follows:  # what is done here comes after its sender's work, or who writes now
                with _bracket.of_array(array, False, _pending.own_stream(array._memory), None):
                    pass
            return self._whole(array) if self._start is None else self._part_of(array)
        except BaseException:
            array.close()
            raise

    def _is_at(self, client):
        return (self.machine_id, self.daemon_id) == (client.machine_id, client.daemon_id)

    def _open(self, client, mode, device):
        if self._ticket is not None:
            uuid = client._uuid_of(device)
            try:
                return _array.of_lease(client._take(self._ticket, mode, uuid, not self._once))
            except NotFoundError:
                if self.name is None:
                    raise
        if self.name is None:
            raise corrupt("a reference without a name or a ticket")
        return client.open(
            self.name, mode, pool=self.pool, generation=self.generation, device=device
        )

    def _flaw(self):
        """The field that cannot be as it is, or None: anybody may have written what has arrived."""
        for slot, is_valid in _FIELDS.items():
            if not is_valid(getattr(self, slot)):
                return slot.lstrip("_")
        return None if len(self.shape) == len(self.strides) else "strides"

    def _whole(self, array):
        layout = array._layout
        same = (self.shape, self._element()) == (layout.shape, layout.element)
        if not same or not _geometry.is_contiguous(self.shape, self.strides, layout.strides):
            raise corrupt(f"{self!r} does not match the array that is there: {array._told()}")
        return array

    def _part_of(self, whole):
        memory, element, start = whole._memory, self._element(), self._start
        _, room = _geometry.extent(whole.shape, whole.strides, whole.itemsize)
        low, high = _geometry.extent(self.shape, self.strides, element.itemsize)
        if low != high and not 0 <= start + low <= start + high <= room:
            raise corrupt(f"a part of {whole._label} that is not within its {room} bytes")
        layout = whole._layout._replace(
            ptr=memory.ptr + start, shape=self.shape, strides=self.strides, element=element
        )
        part = _array.make(memory.share(), layout, root=False)
        whole.close()
        return part

    # --- what its maker has -----------------------------------------------------------------

    def close(self) -> None:
        """Stops keeping the array: nobody can open it by this reference any more, except by its name.
        Idempotent; does nothing for a reference that was received."""
        try:
            client, view = (self._kept or []).pop()
        except IndexError:
            return
        with contextlib.suppress(Error):  # it has ended with its client
            if self._ticket is not None:
                client._take(self._ticket, "r", None, False).close()
        view.close()

    def __del__(self, _warn=warnings.warn):
        if getattr(self, "_kept", None):
            if self._kept[0][0]._live:
                _warn(f"unclosed {self!r}", ResourceWarning, source=self)
            self.close()

    def __reduce__(self):
        if self._kept == []:
            raise closed_error(f"{self!r} is closed")
        state = [getattr(self, slot) for slot in _FIELDS]
        if self._kept:
            state[-1] = isinstance(self._kept[0][1], Array) and _follows(self._kept[0][1])
        # Who knows things by their pickles (joblib, Dask) would take what is there now for what was.
        return _arrived, (*state, os.urandom(16))

    def __repr__(self):
        flaw = self._flaw()
        if flaw is not None:
            return f"<caid.Reference: its {flaw} is invalid>"
        name = "" if self.name is None else f" {self.name!r}"
        typestr = self._type[0]
        return f"<caid.Reference{name} {self.shape} {typestr!r} at daemon {self.daemon_id or 'unknown'}>"


def _is_text(x):
    return isinstance(x, str)


def _is_text_or_none(x):
    return x is None or _is_text(x)


def _is_int(x, least=-1 << 63):
    return type(x) is int and least <= x < 1 << 64


def _are_ints(x, least=-1 << 63):
    return type(x) is tuple and all(_is_int(each, least) for each in x)


# What is sent, in this order, and what it has to be.
_FIELDS = {
    "machine_id": _is_text,
    "daemon_id": _is_text,
    "pool": _is_text_or_none,
    "name": _is_text_or_none,
    "generation": lambda x: _is_int(x, 0),
    "mode": lambda x: x in ("r", "rw"),
    "shape": lambda x: _are_ints(x, 0),
    "strides": _are_ints,
    "_type": lambda x: type(x) is tuple and len(x) == 3 and _typestr.is_type(*x),
    "_start": lambda x: x is None or _is_int(x),
    "_ticket": lambda x: x is None or (type(x) is bytes and len(x) == _TICKET_SIZE),
    "_once": lambda x: type(x) is bool,
    "_follows": lambda x: type(x) is bool,
}
_TICKET_SIZE = 16  # CAID_TICKET_SIZE


def _made(*sent, kept=None):
    reference = object.__new__(Reference)
    for slot, value in zip(_FIELDS, sent):
        setattr(reference, slot, value)
    reference._kept = kept
    return reference


def _arrived(*sent):
    """The last, which makes pickles differ, says nothing."""
    return _made(*(sent[:-1] if len(sent) == len(_FIELDS) + 1 else [None] * len(_FIELDS)))


_NOTHING = _made("", "", None, None, 0, "r", (0,), (1,), ("|u1", 1, None), None, None, True, False)


# --- making them ----------------------------------------------------------------------------


def by_name(array: Any) -> tuple:
    """What ``pickle`` sends: where the name is. Whoever unpickles it opens that generation."""
    if _is_missing(array):
        return array._memory.sent
    reference = _by_name(array)
    return _open_at, (array._memory.client._socket, reference)


def by_ticket(x: Any) -> tuple:
    """What multiprocessing sends; of an Allocation, too, which arrives as an array of bytes."""
    if _is_missing(x):
        return x._memory.sent
    try:
        sent, client = _with_ticket(x, True)
    except (Error, TypeError) as e:
        if threading.current_thread().name != _FEEDER:
            raise
        return _unsent, (_bare(x), _advised(x, e))
    return _open_at, (client._socket, _made(*sent))


def _bare(x):
    """What a reference says of an array that cannot be opened by it."""
    name = (x.pool, x.name, x.generation) if isinstance(x, Array) else (None, None, 0)
    return _made("", "", *name, *_type_of(x), None, None, True, False)


def _advised(x, error):
    if not x.closed:
        return error
    return closed_error(
        f"{getattr(x, '_label', 'the allocation')} was closed before it was sent: a Queue pickles in a thread, after "
        "put() has returned; put(a.view()) of an array, or close it when its receiver has answered"
    )


def _unsent(reference, error):
    """What arrives where a message would have been lost, and its receiver waited for ever."""
    return _without_memory(reference, error, (_unsent, (reference, error)))


def _open_at(socket, reference):
    """Which of this user's daemons it is, the sender's socket says; Reference.open() asks nobody. Raises
    nothing: the Array does, where its memory is asked for."""
    try:
        if not _is_text(socket) or "\0" in socket:
            raise corrupt("an array with an invalid path of its daemon's socket")
        return reference.open(_default.client_of(socket))
    except Exception as e:
        return _without_memory(reference, e, (_open_at, (socket, reference)))


def _without_memory(reference, error, sent):
    believed = reference if reference._flaw() is None else _NOTHING
    return _missing(believed, error, sent)


def _is_missing(x):
    return isinstance(x, Array) and not x.closed and isinstance(x._memory, _Missing)


def _by_name(array):
    array._check()
    memory = array._memory
    if memory.pool is None or memory.name is None:
        why = _ELSEWHERE if memory.pool is None else _NAMELESS
        raise TypeError(f"a caid.Array cannot be pickled: {why}")
    return _made(*_fields_of(array, memory.client), None, True, False)


def _with_ticket(x, once):
    """(what a reference with a new ticket is made of, the client whose that is). The ticket comes last:
    nothing fails that would leave it behind."""
    if isinstance(x, Array):
        x._check()
    if isinstance(x, Array) and x._memory.pool is not None:
        client, follows = x._memory.client, _follows(x)
        send = functools.partial(x._memory.send, not once)
    else:
        arena = _arena.holding(attribute(x, "ptr"))
        if arena is None:
            raise TypeError(f"a caid.{type(x).__name__} cannot be sent: {_ELSEWHERE}")
        client, send, follows = arena._client, functools.partial(arena._send, x, None, not once), False
    fields = _fields_of(x, client)
    return (*fields, send(), once, follows), client


def _fields_of(x, client):
    """What a reference says of an array, or of an Allocation."""
    name, start = (None, None, 0), None
    if isinstance(x, Array) and x._memory.pool is not None:
        memory = x._memory
        name = memory.pool, memory.name, memory.generation
        start = None if x._root else x._layout.ptr - memory.ptr
    return client.machine_id, client.daemon_id, *name, *_type_of(x), start


def _type_of(x):
    """(mode, shape, strides, type) of it."""
    if not isinstance(x, Array):
        return "rw", (x.nbytes,), (1,), ("|u1", 1, None)
    layout, element = x._layout, x._layout.element
    of_type = element.type_name, element.itemsize, element.descr
    return "r" if layout.readonly else "rw", layout.shape, layout.strides, of_type


def _follows(array):
    """Whether work on the array is under way that the receiver is to come after: then a bracket around
    nothing stands for it. Of an arena's array its ticket has seen to that. It is waited for here where
    others are in brackets, and where the array is abandoned, which such a bracket would hide."""
    memory = array._memory
    if memory.pool is None:
        return False
    array._note_stream()
    stream = _pending.to_follow(memory)
    if stream is None or memory.readonly:
        return stream is not None  # who has it "r" follows a writer, whose fence the daemon knows
    try:
        for write in False, True:
            with _bracket.of_array(array, write, stream, 0):
                pass
        _pending.send(memory, stream)
        return True
    except (AbandonedError, DeadlockError, TimedOutError):
        array.synchronize()
        return False


# --- arrays that have arrived without their memory --------------------------------------------


class _Missing:
    """Memory as Array wants it, of an array that has arrived and could not be opened: an exception while something
    is unpickled would end the thread in which multiprocessing reads results, and nobody would be told. So
    what asks for the memory is told why it is not there."""

    __slots__ = ("pool", "name", "generation", "error", "sent")

    client = memory = metadata = uid = pending = None
    device = mapped_device = mapped_ordinal = -1
    created = closed = _live = False

    def __init__(self, pool, name, generation, error, sent):
        self.pool = pool
        self.name = name
        self.generation = generation
        self.error = copy.copy(error)  # without its traceback, which keeps what its frames have
        self.sent = sent  # what it is pickled as: where that arrives, it is tried again

    def check(self):
        raise copy.copy(self.error)

    def close(self, _stream=None):
        pass


def _missing(reference, error, sent):
    """The Array that a reference tells of, without its memory."""
    readonly = reference.mode == "r"
    layout = Layout(0, reference.shape, reference.strides, reference._element(), readonly)
    memory = _Missing(reference.pool, reference.name, reference.generation, error, sent)
    return _array.make(memory, layout, root=False)


def _register(reduction):
    reduction.ForkingPickler.register(Array, by_ticket)
    reduction.ForkingPickler.register(_arena.Allocation, by_ticket)


Array.__reduce__ = by_name  # type: ignore[method-assign]  # here: this folder comes after Array's
_imports.when_imported("multiprocessing.reduction", _register)
_imports.when_imported("multiprocessing.util", _pending.leave_with)
