# SPDX-License-Identifier: Apache-2.0
"""Bracket: a bracket around the use of arrays, which orders it among all processes."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Generic

from .. import _caid
from .._base import _geometry
from .._base._errors import Error, invalid, unsupported
from .._base._lifetime import OfProcess
from .._handoff import _any_stream, _pending, _stream
from .._handoff._stream import Stream
from . import _array

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    _Views = TypeVar("_Views", default=Any)
else:
    from typing import TypeVar

    _Views = TypeVar("_Views")

_ALL = 1 << 64  # the end of a range that is all of an array
_RANGES_MAX = 16  # of an array in one list of a bracket: an array has 64 for all brackets


class Bracket(OfProcess, Generic[_Views]):
    """A bracket around the use of arrays on a stream: what :meth:`caid.Array.read`, :meth:`caid.Array.write`
    and :meth:`caid.Client.bracket` give. Of all processes' brackets, many may read an array at a time, or one
    may write it. They get their turns in the order in which they ask. A bracket of a view is one of the bytes
    from its first to its last: brackets whose bytes do not overlap, as those of ``a[:2]`` and ``a[2:]``, go on
    side by side. (Columns of a matrix in C order overlap.) An array has up to 64 such ranges at a time; a
    bracket that finds no place has all of the array. Of more than 16 views of an array that do not meet, a bracket
    has the bytes from the first to the last.

    ::

        with a.write(s) as v:             # a view; its __cuda_array_interface__ names the stream
            kernel[grid, block, s](v)

        with client.bracket(s, read=[a, b], write=[c]) as (a, b, c):
            ...

    Entering waits in the daemon's queue until the brackets before this one have ended. From then on, what is
    enqueued on the stream comes after their work, for which the host does not wait. Leaving enqueues a signal
    behind the work that is on the stream by then, and does not wait either: the brackets after this one come
    after the signal. The caller orders work on other streams into this one.

    In asyncio it is entered by ``async with a.read() as v:``. A thread of its own waits for the turn, so that the
    loop goes on, and leaves it. A task that is cancelled while it waits passes its turn on, when that comes.

    With ``stream=None`` the host uses the arrays, or starts work that it waits for before it leaves. Then
    entering also waits, on the host, for the work of the brackets before this one.

    A block that is left by an exception may not have written everything: the arrays of `write` are abandoned,
    as they are when the process is killed. Readers of an abandoned array get AbandonedError, until a bracket
    has written it, or :meth:`caid.Array.discard` was called.

    Where the connection to the daemon is lost in the block, leaving raises DisconnectedError. The bracket
    orders nothing any more, though the memory stays mapped, and work on the stream goes on. If the daemon
    still runs, the arrays of `write` are abandoned, and nobody else may write them before this process has
    exited. If the daemon has gone and kept nothing, a new one does not know the arrays.

    Notes
    -----
    A bracket is entered once, and the thread that enters it leaves it: by that the daemon finds deadlocks. To
    the daemon a thread that uses two clients is two threads: where their brackets wait for each other, only a
    timeout ends it. The views stay usable after the block, but their use is not ordered any more. They are
    read-only where the array is.
    """

    __slots__ = (
        "_client",
        "_reads",
        "_writes",
        "_single",
        "_stream",
        "_timeout",
        "_bracket",
        "_spans",
        "_open",
        "_away",
        "__weakref__",
    )
    _comes_from = "Array.read(), Array.write() or Client.bracket()"

    # --- life -------------------------------------------------------------------------------

    @property
    def stream(self) -> Stream | None:
        """Stream or None: the stream that it was begun on; None for the host."""
        return self._stream

    @property
    def is_open(self) -> bool:
        """bool: whether it has begun, and not ended."""
        return self._open

    def begin(self) -> _Views:
        """Begins the bracket: what ``with`` does.

        Returns
        -------
        Array or tuple of Array
            A view of the array; for those of a client.bracket(), of all: `read`, then `write`.

        Raises
        ------
        TimedOutError
            Others had not ended in time, or the daemon did not answer; also a TimeoutError.
        AbandonedError
            An array to be read was left by a writer that died, or gave up.
        DeadlockError
            It would wait for a bracket of this thread (a read does not become a write), or for a thread that
            waits for this one.
        ReadOnlyError
            An array to be written was opened with mode "r".
        DeviceError
            The stream is of a device that an array is not mapped for.
        InvalidError
            The bracket was begun before; an array to be read and one to be written overlap; the stream
            captures a graph.
        LimitError
            As many brackets as the user may have.
        ClosedError, CancelledError
            An array, the stream or the client is closed; was closed meanwhile.

        Notes
        -----
        Gives up the GIL, and Ctrl-C interrupts it: the bracket is given up.
        """
        if self._bracket is not None:
            raise invalid(f"{self!r}: a bracket is begun once")
        arrays = self._reads + self._writes
        views = tuple(self._view(array) for array in arrays)
        reads, read_ranges = _claims(self._reads)
        writes, write_ranges = _claims(self._writes)
        ranges = read_ranges + write_ranges
        self._spans = _spans(reads + writes, ranges)
        self._bracket = self._client._begin(
            reads,
            writes,
            ranges if any(ranges) else (),
            0 if self._stream is None else _any_stream.handle(self._stream),
            self._stream,
            self._timeout,
        )
        self._open = True
        try:
            self._order()
        except BaseException:
            self._give_up()
            raise
        return views[0] if self._single else views

    def end(self) -> None:
        """Ends the bracket: what leaving the ``with`` block does.

        Raises
        ------
        AbandonedError
            A process has died before the work was done that the bracket's stream waits for: what the bracket
            has read may be incomplete. See check().
        InvalidError
            It has not begun, or has ended.
        DriverError, DisconnectedError, ClosedError
            The signal could not be enqueued, the daemon is gone, the client was closed: the bracket
            has ended, and what it wrote is abandoned.
        """
        self._leave(_caid.Bracket.end)
        _pending.release()

    def abandon(self) -> None:
        """Ends a bracket that has not written everything: the arrays of `write` are abandoned. For a bracket
        that only reads, it is the same as end(). Errors as for end()."""
        self._leave(_caid.Bracket.abandon, Error)  # errors change nothing: what the bracket wrote is not whole

    def check(self) -> None:
        """Raises AbandonedError where end() would, as far as is known by now: the stream may not have reached
        the bracket yet. The answer is final when the stream has reached the bracket's end, for instance after
        :meth:`caid.Stream.synchronize`, which raises the same. Raises InvalidError before the bracket has
        begun."""
        if self._bracket is None:
            raise invalid(f"{self!r}: the bracket has not begun")
        self._bracket.check()

    def __enter__(self) -> _Views:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if not self._open:  # ended in the block
            return
        if kind is None:
            self.end()
        else:
            self._give_up()

    async def __aenter__(self) -> _Views:
        from .._base import _away

        return await _away.enter(self, self.begin, self.end)

    async def __aexit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        from .._base import _away

        await _away.leave(self, lambda: self.__exit__(kind))

    def __del__(self, _warn=warnings.warn):
        if getattr(self, "_open", False):
            if self._client._live:
                _warn(f"unended {self!r}", ResourceWarning, source=self)
            self._give_up()

    def __repr__(self):
        state = "open" if self._open else "not begun" if self._bracket is None else "ended"
        names = [
            f"{mode}={[array.name for array in arrays]}"
            for mode, arrays in (("read", self._reads), ("write", self._writes))
            if arrays
        ]
        return f"<caid.Bracket {' '.join(names)} {state}>"

    # --- inside -----------------------------------------------------------------------------

    def _view(self, array):
        array._check()
        return _array.make(array._memory.share(), array._layout, root=False, stream=self._stream)

    def _memories(self):
        return _leases(self._reads + self._writes)

    @property
    def _on(self):
        """The bracket's stream; its number where the stream was closed, as it still exists until the
        bracket's end."""
        return self._stream._number if self._stream.closed else self._stream

    def _order(self):
        """Orders the work that this process has under way on the arrays, such as copies on other streams,
        before the bracket's work, and before its end."""
        for memory in self._memories():
            if self._stream is None:
                _pending.wait(memory, self._spans.get(memory))
            else:
                _pending.order(memory, self._on, self._spans.get(memory))

    def _leave(self, end, *ignored):
        """Ends the bracket, after the work that this process has under way on the arrays. Where that is
        interrupted, by Ctrl-C or for want of memory, the bracket is abandoned: it never stays open at the
        daemon."""
        if not self._open:
            state = "begun" if self._bracket is None else "already ended"
            raise invalid(f"{self!r}: the bracket has {'not ' * (state == 'begun')}{state}")
        try:
            with contextlib.suppress(*ignored):
                self._order()
                if self._stream is not None:
                    _pending.note(self._memories(), self._on, self._spans)
            end(self._bracket)
        except BaseException:
            with contextlib.suppress(Error):  # it has ended
                self._bracket.abandon()
            raise
        finally:
            self._open = False

    def _give_up(self):
        """Abandons the bracket while an exception is raised, which no other replaces."""
        with contextlib.suppress(BaseException):
            self.abandon()


def _leases(arrays):
    """The leases of arrays, each once, since views share one."""
    return tuple(dict.fromkeys(array._memory for array in arrays))


def _range(array):
    """The bytes of its memory that an array lies in: the first, and the one after the last; 0 and _ALL for all,
    or where it has no elements."""
    memory, layout = array._memory, array._layout
    low, high = _geometry.extent(layout.shape, layout.strides, layout.element.itemsize)
    if layout.shape == memory.shape or low == high:
        return 0, _ALL
    at = layout.ptr - memory.ptr
    return at + low, at + high


def _claims(arrays):
    """The leases of arrays, and two numbers for each, as libcaid has them: the bytes that the arrays lie in.
    Views whose bytes overlap, or meet, are one range, and so are more than _RANGES_MAX."""
    spans: dict = {}
    for array in arrays:
        spans.setdefault(array._memory, []).append(_range(array))
    leases: list = []
    ranges: list = []
    for memory, those in spans.items():
        merged: list = []
        for low, high in sorted(those):
            if merged and low <= merged[-1]:
                merged[-1] = max(merged[-1], high)
            else:
                merged += low, high
        if len(merged) > 2 * _RANGES_MAX:
            merged = [merged[0], merged[-1]]
        leases += [memory] * (len(merged) // 2)
        ranges += merged
    return tuple(leases), tuple(number % _ALL for number in ranges)


def _spans(leases, ranges):
    """The same, for _pending: of the leases that are used in part."""
    spans: dict = {}
    for memory, low, high in zip(leases, ranges[::2], ranges[1::2]):
        if high:
            spans.setdefault(memory, []).append((memory.ptr + low, memory.ptr + high))
    return {memory: those.copy for memory, those in spans.items()}


def _check(array, client):
    if not isinstance(array, _array.Array):
        raise TypeError(f"a caid.Array is needed, not {type(array).__name__}")
    array._check()
    if array._memory.pool is None:
        raise unsupported(f"{array._label} is not in the daemon's memory: it has no brackets")
    if array._memory.client is not client:
        raise invalid(f"{array._label} is another client's")


def _arrays(arrays, what, client):
    if isinstance(arrays, _array.Array):
        raise TypeError(f"{what}: a list of arrays is needed, not one array")
    arrays = tuple(arrays)
    for array in arrays:
        _check(array, client)
    return arrays


def _make(client, reads, writes, single, stream, timeout, _new=object.__new__):
    self = _new(Bracket)
    device = max((reads + writes)[0]._memory.mapped_device, 0)
    self._client = client
    self._reads = reads
    self._writes = writes
    self._single = single
    self._stream = _stream.of(stream, client, device)
    self._timeout = timeout
    self._bracket = None
    self._open = False
    return self


def of_array(array, write, stream, timeout):
    """The Bracket of Array.read() and Array.write()."""
    client = array._memory.client
    if hasattr(stream, "__len__"):  # no stream: an array, a list, bytes
        does, copies = ("write", "copy_from") if write else ("read", "copy_to")
        raise TypeError(f"{does}() is a bracket on a stream and takes no data: {copies}() copies")
    _check(array, client)
    arrays = (array,)
    reads, writes = ((), arrays) if write else (arrays, ())
    return _make(client, reads, writes, True, stream, timeout)


def of_client(client, reads, writes, stream, timeout):
    """The Bracket of Client.bracket()."""
    client._check()
    reads, writes = _arrays(reads, "read", client), _arrays(writes, "write", client)
    if not reads + writes:
        raise invalid("bracket() of no arrays")
    return _make(client, reads, writes, False, stream, timeout)
