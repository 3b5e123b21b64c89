# SPDX-License-Identifier: Apache-2.0
"""Work that this process has started by caid on a memory, and that may not be done yet:
asynchronous copies, and brackets that have ended; what consumers have enqueued on the stream that
they were told; and what is on streams that arrays are bound to (Array.bind()).

Each piece is a ``_caid.Mark``, an event on the stream that the work is on. What is enqueued elsewhere,
or through a pointer, is not known here.

The stream that consumers are told is one of caid's own, which waits for the work: nobody else ends it,
and what is on it is what was waited for, or a consumer's. It and those that arrays are bound to are
looked at again at each later use.

The marks of a memory are kept with it, in its attribute ``pending``; those of copies that use
memory of the host are kept here besides, with that memory, as long as the copy may run: arrays and
clients may be gone by then. Both are looked at when work is added, and are made short when it has
passed.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import time
from weakref import WeakValueDictionary, ref

from .._base._errors import ClosedError
from . import _any_stream

_NON_BLOCKING = 1  # enum caid_stream_flags
_FEW = 16  # marks that are not worth looking through
_PAUSES_S = (0.0001, 0.01)  # between looks at a mark that is waited for: at first, at most
_LEAVE_S = 60  # that a process waits at its end


class Marks:
    """Marks in the order of the work. Any thread appends and removes, without a lock, one mark at a
    time: a lock could be left behind by an exception of a signal handler."""

    __slots__ = ("list", "_many", "told", "bound")

    def __init__(self):
        self.list = []
        self._many = _FEW
        self.told = None  # the Stream that consumers were told, to live as long as the memory
        self.bound = []  # the Bound of arrays, by weak references

    def tidy(self):
        """Drops marks that have passed: without going through all each time, yet never leaving
        more than twice of those that have not."""
        if len(self.list) >= self._many:
            self.sweep()
            self._many = max(_FEW, 2 * len(self.list))
        else:
            self._drop(itertools.takewhile(_is_done, self.list[:]))

    def sweep(self):
        """Drops all marks that have passed."""
        self._drop(filter(_is_done, self.list[:]))

    def _drop(self, marks):
        for mark in marks:
            with contextlib.suppress(ValueError):  # another thread was quicker
                self.list.remove(mark)

    def unfinished(self):
        """The last mark of each stream that is not done. Of streams of which one cannot be told from
        another, all marks."""
        self.sweep()
        last, streams = [], set()
        for mark in reversed(self.list[:]):
            key = _identity(mark.number, mark.stream)
            if key is None or key not in streams:
                last.append(mark)
                streams.add(key)
        return last

    def is_all_on(self, identity):
        """Whether there is no work but on the stream of this identity, which is not asked."""
        if identity is None or self.told is not None or self.bound:
            return False
        return all(_identity(mark.number, mark.stream) == identity for mark in self.list[:])

    def is_all_of(self, seen):
        """Whether there is no work but that of these marks."""
        return self.told is None and not self.bound and seen.issuperset(self.list)

    def streams(self):
        """Those on which there may be work that has no mark."""
        streams = [self.told, *(bound() for bound in self.bound[:])]
        return [stream for stream in map(_any_stream.live, streams) if stream is not None]


def _is_done(mark):
    return mark.done


def _identity(number, owner):
    """What tells a stream from all others while its object is alive, or None: handles are used
    again, 1 is another stream in each context, 2 also in each thread."""
    if owner is None or number in (_any_stream.LEGACY, _any_stream.PER_THREAD):
        return None
    return id(owner), number


_kept = Marks()  # of copies that use memory of the host
_sent = Marks()  # of what receivers of arrays wait for
for _marks in _kept, _sent:
    os.register_at_fork(after_in_child=_marks.__init__)  # nothing of a child's is under way


def _of(memory):
    """The marks of a memory."""
    return memory.pending or memory.pending_or(Marks())


def _unfinished(memory, but=None):
    """Marks for all that is not done; not for what is on the stream of that number alone."""
    if memory.pending is None:
        return ()
    marks = memory.pending.unfinished()
    for stream in memory.pending.streams():
        with contextlib.suppress(ClosedError):  # its client is closed
            if _any_stream.handle(stream) != but:
                marks += _here(memory, stream)
    return marks


def _here(memory, stream):
    """A mark for all that is on a stream by now, where anything is."""
    if getattr(stream, "_query", bool)():  # of caid's, which are asked for less
        return ()
    here = mark(memory.client, max(memory.mapped_device, 0), stream)
    here.record(())
    return () if here.done else (here,)


# --- starting work --------------------------------------------------------------------------


def mark(client, device, stream, keep=None):
    """A mark for work that is about to be enqueued on a stream, and what keeps its memory."""
    number = _any_stream.handle(stream)
    return client._mark(device, number, _any_stream.owner(stream), keep)


def lists(memories, *, keeps):
    """Where a mark goes: to each memory, and to those kept here where it keeps something."""
    marks = [_of(memory) for memory in memories]
    if keeps:
        marks.append(_kept)
    for each in marks:
        each.tidy()
    return tuple(each.list for each in marks)


def bind(memory, bound):
    """What is on a stream is work on a memory, as long as somebody has the Bound."""
    known = _of(memory).bound
    known.append(ref(bound, known.remove))


def note(memories, stream):
    """Work on these memories has been enqueued on a stream: up to here."""
    memories = [memory for memory in memories if memory.client is not None]
    if memories:
        client, device = memories[0].client, max(memories[0].mapped_device, 0)
        mark(client, device, stream).record(lists(memories, keeps=False))


# --- coming after it ------------------------------------------------------------------------


def order(memory, stream):
    """What is enqueued on a stream from here on comes after the work on a memory. Nothing waits
    but the stream."""
    order_all((memory,), stream)


def order_all(memories, stream):
    """The same, of several memories, which may share marks."""
    number = _any_stream.handle(stream)
    own = _identity(number, _any_stream.owner(stream))
    seen = set()
    for memory in memories:
        marks = memory.pending
        if marks is None or marks.is_all_on(own) or marks.is_all_of(seen):
            continue
        seen.update(marks.list)
        for each in _unfinished(memory, but=number):
            if own is None or own != _identity(each.number, each.stream):
                each.wait(number)


def wait(memory):
    """Waits on the host for the work on a memory."""
    for each in _unfinished(memory):
        each.synchronize()


def follow(client, device, before, after):
    """What is enqueued on the stream `after` from here on comes after what is on `before`."""
    here = mark(client, device, before)
    here.record(())
    here.wait(_any_stream.handle(after))


def stream_for(memory):
    """The number of a stream on which to wait for the work on a memory, alive as long as the
    memory; None where all of it is done."""
    own = to_follow(memory)
    if own is None:
        return None
    order(memory, own)
    memory.pending.told = own
    return _any_stream.handle(own)


def to_follow(memory):
    """The Stream of caid's own that is to come after the work on a memory; None where all is done."""
    return own_stream(memory) if _unfinished(memory) else None


_own_streams: WeakValueDictionary = WeakValueDictionary()  # (id of client, device): a Stream


def own_stream(memory):
    """Of caid's own, on the memory's device."""
    client, device = memory.client, max(memory.mapped_device, 0)
    own = _own_streams.get((id(client), device))
    if own is None or own.closed:
        # It keeps its client, whose id is nobody else's meanwhile. Of two threads each may make one.
        own = client._stream_new(device, _NON_BLOCKING)
        _own_streams[id(client), device] = own
    return own


def send(memory, stream):
    """Who is sent the memory comes after what is on the stream, which is done before the process ends: else it
    would be abandoned. A client that is closed waits for all work."""
    _sent.tidy()
    _sent.list += _here(memory, stream)


# --- letting go -----------------------------------------------------------------------------


def release():
    """Lets go of the host's memory that copies have passed, and of clients that have sent something."""
    _kept.sweep()
    _sent.sweep()


def finish(client):
    """Waits for the copies of a client that use memory of the host: after it was closed, nobody
    can tell when they are done."""
    for each in tuple(_kept.list):
        if each.client is client:
            _poll(each)
    _kept.sweep()


@atexit.register
def leave():
    """Waits for what the process has sent. Not without end: somebody who is stopped may be in the way."""
    deadline = time.monotonic() + _LEAVE_S
    for each in tuple(_sent.list):
        _poll(each, deadline)


def leave_with(util):
    """The same in multiprocessing's processes, which know no atexit, nor what was registered before they began:
    when the threads of queues, which pickle, have ended (their priority is -5)."""

    def register(util):
        util.Finalize(None, leave, exitpriority=-10)

    register(util)
    util.register_after_fork(util, register)


def _poll(mark, deadline=float("inf")):
    """By looking: a wait in the driver is not interrupted."""
    pause, longest = _PAUSES_S
    while not mark.done and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, longest)
