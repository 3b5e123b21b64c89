# SPDX-License-Identifier: Apache-2.0
"""Arrays on their way to another process: by name through any pickle, by a ticket through
multiprocessing's, which is for one receiver, and keeps the memory until that has it."""

from __future__ import annotations

from typing import Any

from . import _array, _bracket, _default, _geometry, _imports, _pending
from ._errors import TimedOutError, DeadlockError, NotFoundError, corrupt


def by_name(array: Any) -> tuple:
    """What ``pickle`` sends: where the name is. Whoever unpickles it opens that generation."""
    memory = array._memory
    if memory.pool is None or memory.name is None:
        raise TypeError(f"a caid.Array cannot be pickled: {_why_not(memory)}")
    return _take, (None, *_told(array))


def _why_not(memory):
    if memory.pool is None:
        return "its memory is of this process alone; copy it to an array of a client's"
    return (
        "it has no name, and who unpickles it could be anybody, or nobody; publish it, or send it by "
        "multiprocessing: a Queue, a Pipe, a Pool"
    )


def by_ticket(array: Any) -> tuple:
    """What multiprocessing sends."""
    memory = array._memory
    if memory.pool is None:
        raise TypeError(f"a caid.Array cannot be sent: {_why_not(memory)}")
    array._check()
    follows = _hand_off(array)
    return _take, (memory.send(), *_told(array), follows)


def _told(array):
    memory, layout = array._memory, array._layout
    part = None
    if not array._root:
        start = layout.ptr - memory.ptr
        part = start, layout.shape, layout.strides, layout.element
    mode = "r" if memory.readonly else "rw"
    return memory.client._socket, memory.pool, memory.name, memory.generation, mode, part


def _hand_off(array):
    """Whether work on the array is under way that the receiver is to come after: then a bracket
    around nothing stands for it. Where others are in brackets, it is waited for here."""
    memory = array._memory
    stream = None if memory.readonly else _pending.to_follow(memory)
    if stream is None:
        return False
    try:
        with _bracket.of_array(array, True, stream, 0):
            return True
    except (TimedOutError, DeadlockError):
        array.synchronize()
        return False


# --- the other end --------------------------------------------------------------------------


def _take(ticket, socket, pool, name, generation, mode, part, follows=False):
    client = _default.client_of(socket)
    array = _open(client, ticket, pool, name, generation, mode)
    try:
        if follows:
            _follow(array)
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


def _follow(array):
    """What is done with it here comes after what its sender had begun."""
    try:
        with _bracket.of_array(array, False, _pending.own_stream(array._memory), 0):
            pass
    except TimedOutError:
        pass  # somebody writes it by now, after the sender


def _part_of(whole, start, shape, strides, element):
    memory = whole._memory
    _, room = _geometry.extent(whole.shape, whole.strides, whole.itemsize)
    low, high = _geometry.extent(shape, strides, element.itemsize)
    if low < high and not 0 <= start + low <= start + high <= room:
        raise corrupt(f"a part of {whole._label} that is not within its {room} bytes")
    layout = whole._layout._replace(
        ptr=memory.ptr + start, shape=shape, strides=strides, element=element
    )
    part = _array.make(memory.share(), layout, root=False)
    whole.close()
    return part


def _register(reduction):
    reduction.ForkingPickler.register(_array.Array, by_ticket)


_imports.when_imported("multiprocessing.reduction", _register)
