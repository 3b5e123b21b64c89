# SPDX-License-Identifier: Apache-2.0
"""Work on a memory that this process has started and that may not be done yet: asynchronous copies by caid,
brackets that have ended, what consumers have enqueued on an exported stream, and what is on streams that
arrays are bound to (Array.bind()).

Each piece is a ``_caid.Mark``, an event on the stream that the work is on. What is enqueued elsewhere,
or through a pointer, is not known here.

The exported stream, the one that consumers are told, is caid's own and waits for the work. Nobody else ends
it. It and the streams that arrays are bound to have no marks: they are looked at anew at each later use.

A mark is for all of its memories, or, of brackets and copies of views, for some of their bytes. What has to do
with other bytes alone does not wait for it. Bytes are told by a callable that gives pairs of addresses, the
first byte's and the one after the last's, or by None for all.

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
_LEAVE_S = 60  # that a process waits for its work at its end


class Marks:
    """Marks in the order of the work. Any thread appends and removes one mark at a time, without a lock: an
    exception of a signal handler could leave a lock taken."""

    __slots__ = ("list", "_many", "spans", "exported", "bound")

    def __init__(self):
        self.list = []
        self._many = _FEW
        self.spans = {}  # mark: the bytes that it is for, where these are not all
        self.exported = None  # the exported Stream, kept as long as the memory
        self.bound = []  # the Bound of arrays, by weak references

    def tidy(self):
        """Drops marks that have passed. It does not look through all each time, yet there are never more than
        twice as many marks as have not passed."""
        if len(self.list) >= self._many:
            self.sweep()
            self._many = max(_FEW, 2 * len(self.list))
        else:
            self._drop(itertools.takewhile(_is_done, self.list[:]))

    def sweep(self):
        """Drops all marks that have passed."""
        self._drop(filter(_is_done, self.list[:]))
        if not self.list:
            self.spans.clear()  # of marks that were dropped before these were known

    def _drop(self, marks):
        for mark in marks:
            self.spans.pop(mark, None)
            with contextlib.suppress(ValueError):  # another thread has removed it
                self.list.remove(mark)

    def among(self, spans):
        """The marks for some of these bytes."""
        marks = self.list[:]
        if spans is None or not self.spans:
            return marks
        wanted = spans()
        return [mark for mark in marks if _meet(wanted, self.spans.get(mark, wanted))]

    def unfinished(self, spans=None):
        """The last mark of each stream whose work is not done; all marks of streams that cannot be told
        apart."""
        self.sweep()
        last, streams = [], set()
        for mark in reversed(self.among(spans)):
            key = _identity(mark.number, mark.stream)
            if key is None or key not in streams:
                last.append(mark)
                streams.add(key)
        return last

    def is_all_on(self, identity):
        """Whether all work is on the stream of this identity. The driver is not asked."""
        if identity is None or self.exported is not None or self.bound:
            return False
        return all(_identity(mark.number, mark.stream) == identity for mark in self.list[:])

    def is_all_of(self, seen):
        """Whether all work is that of these marks."""
        return self.exported is None and not self.bound and seen.issuperset(self.list)

    def streams(self):
        """The streams on which there may be work without a mark."""
        streams = [self.exported, *(bound() for bound in self.bound[:])]
        return [stream for stream in map(_any_stream.live, streams) if stream is not None]


def _meet(these, those):
    return any(low < end and start < high for low, high in these for start, end in those)


def _is_done(mark):
    return mark.done


def _identity(number, owner):
    """What identifies a stream as long as its object is alive, or None where nothing does: handles are
    reused, 1 is another stream in each context, and 2 in each thread, too."""
    if owner is None or number in (_any_stream.LEGACY, _any_stream.PER_THREAD):
        return None
    return id(owner), number


_kept = Marks()  # of copies that use memory of the host
_sent = Marks()  # of work that receivers of arrays wait for
for _marks in _kept, _sent:
    os.register_at_fork(after_in_child=_marks.__init__)  # a forked child has no work under way


def _of(memory):
    """The marks of a memory."""
    return memory.pending or memory.pending_or(Marks())


def _unfinished(memory, spans=None, but=None):
    """Marks for all work that is not done, but for what is on the stream of the number `but`."""
    if memory.pending is None:
        return ()
    marks = memory.pending.unfinished(spans)
    for stream in memory.pending.streams():
        with contextlib.suppress(ClosedError):  # its client is closed
            if _any_stream.handle(stream) != but:
                marks += _here(memory, stream)
    return marks


def _here(memory, stream):
    """(a mark for all that is on a stream by now), or () where nothing is."""
    if getattr(stream, "_query", bool)():  # caid's own streams, to ask which costs less
        return ()
    here = mark(memory.client, max(memory.mapped_device, 0), stream)
    here.record(())
    return () if here.done else (here,)


# --- starting work --------------------------------------------------------------------------


def mark(client, device, stream, keep=None):
    """A mark for work that is about to be enqueued on a stream. It keeps `keep` until the work is done."""
    number = _any_stream.handle(stream)
    return client._mark(device, number, _any_stream.owner(stream), keep)


def lists(memories, *, keeps):
    """The lists that a mark goes to: that of each memory, and _kept where the mark keeps something."""
    marks = [_of(memory) for memory in memories]
    if keeps:
        marks.append(_kept)
    for each in marks:
        each.tidy()
    return tuple(each.list for each in marks)


def narrow(mark, memory, spans):
    """A mark that is recorded is for these bytes of a memory alone. Until this is called, or if it is not, it is
    for all."""
    memory.pending.spans[mark] = spans()


def bind(memory, bound):
    """Counts what is on a stream as work on a memory, as long as somebody has the Bound."""
    known = _of(memory).bound
    known.append(ref(bound, known.remove))


def note(memories, stream, spans=None):
    """Notes that work on these memories has been enqueued on a stream, by now. `spans`: by memory, the bytes
    that it is for; those it lacks are used whole."""
    memories = [memory for memory in memories if memory.client is not None]
    if memories:
        client, device = memories[0].client, max(memories[0].mapped_device, 0)
        here = mark(client, device, stream)
        here.record(lists(memories, keeps=False))
        for memory in spans or ():
            narrow(here, memory, spans[memory])


# --- coming after it ------------------------------------------------------------------------


def order(memory, stream, spans=None):
    """What is enqueued on a stream from here on comes after the work on a memory. Nothing waits
    but the stream."""
    order_all((memory,), stream, spans)


def order_all(memories, stream, spans=None):
    """order() for several memories, which may share marks."""
    number = _any_stream.handle(stream)
    own = _identity(number, _any_stream.owner(stream))
    seen = set()
    for memory in memories:
        marks = memory.pending
        if marks is None or marks.is_all_on(own) or marks.is_all_of(seen):
            continue
        seen.update(marks.list)
        for each in _unfinished(memory, spans, but=number):
            if own is None or own != _identity(each.number, each.stream):
                each.wait(number)


def wait(memory, spans=None):
    """Waits on the host for the work on a memory."""
    for each in _unfinished(memory, spans):
        each.synchronize()


def is_idle(memory, stream=None, spans=None):
    """Whether none of the work on a memory that is known of, nor any on this stream, is under way. Waits for
    nothing, and ends no capture of a graph. Raises Error where that cannot be told."""
    if memory.pending is not None and memory.pending.unfinished(spans):
        return False
    streams = [] if memory.pending is None else memory.pending.streams()
    streams += [] if stream is None else [stream]
    client, device = memory.client, max(memory.mapped_device, 0)
    return all(client._stream_wrap(_any_stream.handle(each), device)._query() for each in streams)


def follow(client, device, before, after):
    """What is enqueued on the stream `after` from here on comes after what is on `before`."""
    here = mark(client, device, before)
    here.record(())
    here.wait(_any_stream.handle(after))


def stream_for(memory, spans=None):
    """The number of a stream on which to wait for the work on a memory, alive as long as the
    memory; None where all of it is done."""
    own = to_follow(memory, spans)
    if own is None:
        return None
    order(memory, own, spans)
    memory.pending.exported = own
    return _any_stream.handle(own)


def to_follow(memory, spans=None):
    """The Stream of caid's own that is to come after the work on a memory; None where all is done."""
    return own_stream(memory) if _unfinished(memory, spans) else None


_own_streams: WeakValueDictionary = WeakValueDictionary()  # (id of client, device): a Stream


def own_stream(memory):
    """A Stream of caid's own on the memory's device."""
    client, device = memory.client, max(memory.mapped_device, 0)
    own = _own_streams.get((id(client), device))
    if own is None or own.closed:
        # The stream keeps its client, so that no other client has its id. Two threads may each make a stream.
        own = client._stream_new(device, _NON_BLOCKING)
        _own_streams[id(client), device] = own
    return own


def send(memory, stream):
    """Notes work that the receiver of a memory comes after: the process waits for it before it ends, or else
    the array would be abandoned. A client that is closed waits for all work itself."""
    _sent.tidy()
    _sent.list += _here(memory, stream)


# --- letting go -----------------------------------------------------------------------------


def release():
    """Drops the host memory of copies that are done, and the marks of what was sent."""
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
    """Waits for the work that goes with what the process has sent, for _LEAVE_S at most: another process,
    which may be stopped, can be in its way."""
    deadline = time.monotonic() + _LEAVE_S
    for each in tuple(_sent.list):
        _poll(each, deadline)


def leave_with(util):
    """Registers leave() in multiprocessing's processes, which run no atexit and forget what was registered
    before they began. It runs after the threads of queues, which pickle, have ended (their priority is
    -5)."""

    def register(util):
        util.Finalize(None, leave, exitpriority=-10)

    register(util)
    util.register_after_fork(util, register)


def _poll(mark, deadline=float("inf")):
    """Waits by polling, since Ctrl-C does not interrupt a wait in the driver."""
    pause, longest = _PAUSES_S
    while not mark.done and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, longest)
