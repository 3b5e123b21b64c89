# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way to another process: by name through any pickle, by a ticket through
multiprocessing's, which is for one receiver, and keeps the memory until that has it."""

from __future__ import annotations

from typing import Any

from . import _arena, _array, _bracket, _default, _geometry, _imports, _pending, _typestr
from ._errors import AbandonedError, DeadlockError, NotFoundError, TimedOutError, corrupt


def by_name(array: Any) -> tuple:
    """What ``pickle`` sends: where the name is. Whoever unpickles it opens that generation."""
    memory = array._memory
    array._check()
    if memory.pool is None or memory.name is None:
        why = _ELSEWHERE if memory.pool is None else _NAMELESS
        raise TypeError(f"a caid.Array cannot be pickled: {why}")
    return _take, (None, *_told(array))


_ELSEWHERE = "its memory is of this process alone; copy it to an array of a client's"
_NAMELESS = (
    "it has no name, and who unpickles it could be anybody, or nobody; publish it, or send it by "
    "multiprocessing: a Queue, a Pipe, a Pool"
)


def by_ticket(array: Any) -> tuple:
    """What multiprocessing sends."""
    memory = array._memory
    array._check()
    if memory.pool is None:
        return by_part(array)
    follows = _hand_off(array)
    return _take, (memory.send(), *_told(array), follows)


def by_part(x: Any) -> tuple:
    """The same, of an Allocation, which arrives as an array of bytes, and of an array in an arena."""
    arena = _arena.holding(x.ptr)
    if arena is None:
        raise TypeError(f"a caid.{type(x).__name__} cannot be sent: {_ELSEWHERE}")
    mode = "r" if getattr(x, "readonly", False) else "rw"
    return _take, (arena._send(x), arena._client._socket, None, None, 0, mode, None)


def _told(array):
    memory, layout = array._memory, array._layout
    part = None
    if not array._root:
        start = layout.ptr - memory.ptr
        element = layout.element
        part = start, layout.shape, layout.strides, element.told, element.itemsize, element.descr
    mode = "r" if memory.readonly else "rw"
    return memory.client._socket, memory.pool, memory.name, memory.generation, mode, part


def _hand_off(array):
    """Whether work on the array is under way that the receiver is to come after: then a bracket
    around nothing stands for it. It is waited for here where others are in brackets, and where the
    array is abandoned, which such a bracket would hide."""
    array._note_stream()
    stream = _pending.to_follow(array._memory)
    if stream is None or array._memory.readonly:
        return stream is not None  # who has it "r" follows a writer, whose fence the daemon knows
    try:
        for write in False, True:
            with _bracket.of_array(array, write, stream, 0):
                pass
        return True
    except (AbandonedError, DeadlockError, TimedOutError):
        array.synchronize()
        return False


# --- the other end --------------------------------------------------------------------------


def _take(ticket, socket, pool, name, generation, mode, part, follows=False):
    client = _default.client_of(socket)
    array = _open(client, ticket, pool, name, generation, mode)
    try:
        if follows:  # what is done here comes after what its sender had begun, or whoever writes now
            with _bracket.of_array(array, False, _pending.own_stream(array._memory), None):
                pass
        return array if part is None else _part_of(array, *part)
    except BaseException:
        array.close()
        raise


def _open(client, ticket, pool, name, generation, mode):
    if ticket is not None:
        try:
            return _array.of_lease(client._take(ticket, mode, None))
        except NotFoundError:
            if name is None:
                raise
    return client.open(name, mode, pool=pool, generation=generation)


def _part_of(whole, start, shape, strides, *told):
    memory, element = whole._memory, _typestr.element_of(*told)
    shape, strides = _geometry.dims("shape", shape), _geometry.dims("strides", strides)
    _, room = _geometry.extent(whole.shape, whole.strides, whole.itemsize)
    low, high = _geometry.extent(shape, strides, element.itemsize)
    inside = low == high or 0 <= start + low <= start + high <= room
    if not inside or min(shape, default=0) < 0 or len(shape) != len(strides):
        raise corrupt(f"a part of {whole._label} that is not within its {room} bytes")
    layout = whole._layout._replace(
        ptr=memory.ptr + start, shape=shape, strides=strides, element=element
    )
    part = _array.make(memory.share(), layout, root=False)
    whole.close()
    return part


def _register(reduction):
    reduction.ForkingPickler.register(_array.Array, by_ticket)
    reduction.ForkingPickler.register(_arena.Allocation, by_part)


_imports.when_imported("multiprocessing.reduction", _register)
