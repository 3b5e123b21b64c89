# SPDX-License-Identifier: Apache-2.0
"""Array: elements in memory that a device reaches, by address, shape and byte strides.

An Array looks at a memory, which is one of

* ``_caid.Lease``: an array that a client holds at the daemon, or managed memory of its own,
* ``_cai.ForeignMemory``: memory that another library owns.

Views look at the memory of the array that they were made from. Each Array has one share of its
memory, from when it is made until ``close()`` or until it is collected; the memory ends with
its last share. A NumPy array that sees the memory has a share, too.

The Array of a lease asks for its layout when it is first needed: opening many costs little.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._base import _metadata, _typestr
from .._base._errors import Error, InvalidError, closed as closed_error, corrupt, unsupported
from .._base._lifetime import Closing, NotCompared, OfProcess, attributes
from .._handoff import _any_stream, _pending
from . import _bracket, _cai, _copy, _dlpack_export, _dmabuf, _export, _names, _parts, _values
from ._elements import Elements
from ._layout import Layout

if TYPE_CHECKING:
    import numpy

    from ._bracket import Bracket
    from ._dmabuf import DmaBuf

_Host = TypeVar("_Host")


def make(memory, layout, *, root, stream=None, _new=object.__new__) -> Array:
    """An Array that takes over one share of a memory. A root warns when it is left open. A stream is
    that of the bracket that the array belongs to, or of the interface that it was taken from."""
    self = _new(Array)
    self._memory = memory
    self._known = layout
    self._root = root
    self._stream = stream
    self._share = [True]
    return self


def writable(array) -> Array:
    """A view that says it is writable, for a consumer that refuses read-only memory and does not write."""
    layout = array._layout._replace(readonly=False)
    return make(array._memory.share(), layout, root=False, stream=array._stream)


def of_leases(leases, root=True) -> list[Array]:
    """The Arrays for new leases. Where one is corrupt, closes all and raises."""
    _check(leases)
    return [make(lease, None, root=root) for lease in leases]


def of_lease(lease) -> Array:
    """The Array for a new lease. Where it is corrupt, closes it and raises CorruptError."""
    if lease.descr is not None:
        _check((lease,))
    return make(lease, None, root=True)


def _check(leases):
    """Checks what the creator of an array, any user, has written and the daemon passes on unread."""
    try:
        for lease in leases:
            if lease.descr is not None:
                _typestr.element_of(lease.typestr, lease.itemsize, lease.descr)
    except BaseException as e:
        for new in leases:
            new.close()
        if isinstance(e, InvalidError):
            e = corrupt(f"array {lease.name!r}, created by uid {lease.uid}: {e}")
        raise e from None


@attributes
class Array(Elements, OfProcess, NotCompared, Closing):
    """An n-dimensional array in memory that a device reaches.

    Arrays come from a :class:`caid.Client` or from :func:`caid.as_array`. They have a geometry
    and can be copied; elements are not computed with or compared here: hand the array to any library
    that knows the CUDA Array Interface. Indexing gives views; item() and tolist() give values; assignment
    copies.

    An array is closed by ``close()``, by leaving its ``with`` block, or when it is collected (then with a
    ResourceWarning, views excepted). The lease ends when the array and all its views are closed; a view's
    ``close()`` gives up that view alone. Closing a client closes its arrays. Methods of a closed array that
    need its memory raise ClosedError, and in a child made by ``os.fork()`` ForkedError; shape, type and names
    stay known. Attributes raise UnavailableError, an AttributeError, from these errors.

    :mod:`multiprocessing` sends arrays and views of them without a copy, to one receiver, who opens them in
    the same mode. The receiver's use comes after the sender's work on the array that caid knows of. The
    memory stays until the array has arrived, even if the sender closes it; or until 10 minutes
    (``ticket_ttl`` of caid.conf(5)) after the sender's client was closed or its process has ended; or until
    :meth:`Client.withdraw`. A Queue pickles in a thread, after ``put()`` has returned, and the array has to
    be open then (``put(a.view())`` sees to that): else an array arrives that raises the reason. A process
    that ends waits, a minute at most, until the work on what it has sent is done. Where others are in
    brackets on an array, pickling it waits for the work. Allocations of an arena are sent in the same way, as
    bytes, and so are arrays that lie in an arena. All of them arrive as arrays of
    :func:`caid.default_client`, or of a client for the sender's daemon where root or the same user runs that.
    ``pickle`` alone sends the name and its generation, and keeps nothing. An array that cannot be opened
    where it arrives is an Array all the same: its shape, type and name are known, it can be closed and sent
    on, and what needs its memory raises the reason (NotFoundError, AccessError, NoDaemonError, CorruptError,
    …).
    """

    __slots__ = (
        "_memory",
        "_known",
        "_root",
        "_stream",
        "_share",
        "__weakref__",
    )
    _comes_from = "Client.create(), Client.open() or caid.as_array()"

    _root: bool
    _stream: Any  # its bracket's, its producer's, the one that it is bound to, or None
    _share: list  # empty: given up

    # --- life -------------------------------------------------------------------------------

    def close(self, stream: Any = None) -> None:
        """Gives this array's share of the memory up. Idempotent. Waits for nothing.

        Parameters
        ----------
        stream : int or stream object, optional
            The CUDA stream on which the memory was last used: 1 (legacy default), 2 (per-thread default), a
            CUstream, or an object of CuPy, Numba, PyTorch or cuda.core. The memory is given to others when
            all work is done that is on this stream by now. Without it, when all work is done that is by now
            on any stream of the device's primary context or of the thread's current one.

        Raises
        ------
        ValueError
            Stream 0, which is ambiguous. The array stays open, as with all errors.
        DriverError
            The driver knows no such stream.

        Notes
        -----
        No work may be started on the memory through this array afterwards. The lease ends when the array and
        all its views are closed: where they were closed with different streams, or without one, all streams
        are waited for. The given stream waits for caid's own work on other streams.
        """
        if stream is not None and not (self._memory._live or self._memory.closed):
            stream = None  # a forked child waits for nothing
        number = None if stream is None else _any_stream.handle(stream)
        try:
            self._share.pop()  # of several threads, one gets past this
        except IndexError:
            return
        try:
            if number is not None and not self._memory.closed:
                _pending.order(self._memory, stream)
            if self._stream is not None:
                self._unbind()
            self._memory.close(number)
        except BaseException:
            self._share.append(True)
            raise

    def __del__(self, _warn=warnings.warn):
        if not getattr(self, "_share", None):  # None: it was not made yet
            return
        if self._root and self._memory._live:
            _warn(f"unclosed {self._told()}", ResourceWarning, source=self)
        self.close()

    @property
    def closed(self) -> bool:
        """bool: whether this array, or its client, is closed."""
        return not self._share or self._memory.closed

    def _check(self):
        if not self._share:
            raise closed_error(f"{self._label} is closed")
        self._memory.check()

    def __repr__(self):
        return self._told(_values.shown)

    def _told(self, values=lambda _array: ""):
        """What it is, and what values() gives of it where its memory is there."""
        name = "" if self.name is None else f" {self.name!r}"
        if self.closed:
            return f"<caid.Array{name} closed>"
        mode = "r" if self.readonly else "rw"
        what = f"{name} shape={self.shape} typestr={self._layout.element.type_name!r}"
        why = getattr(self._memory, "error", None)  # of memory that could not be opened where it arrived
        if why is not None:
            return f"<caid.Array{what} missing: {type(why).__name__}: {why}>"
        memory = "" if self.memory in ("device", None) else f" memory={self.memory!r}"
        return f"<caid.Array{what} device={self.device}{memory} mode={mode!r}{values(self)}>"

    # --- other processes --------------------------------------------------------------------

    def __copy__(self, _memo=None):
        raise TypeError("a caid.Array is not copied so: view() looks at the same elements")

    __deepcopy__ = __copy__

    def _view(self, offset, shape, strides, element=None):
        self._check()
        layout = self._layout
        element = element or layout.element
        layout = Layout(layout.ptr + offset, shape, strides, element, layout.readonly)
        return make(self._memory.share(), layout, root=False, stream=self._stream)

    # --- copies -----------------------------------------------------------------------------
    #
    # `stream` is the same for all: 0 or None, Numba's default, makes the copy here and now, after all
    # work on the arrays that caid knows of.

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copies a value to all elements of a view, after all work on them that caid knows of, and
        is done on return.

        Values of the host, scalars and lists among them, are converted and broadcast as NumPy does on
        assignment. That needs NumPy, except for ints and floats to types of the same kinds. An array in
        device memory needs the type of this one; where it has to be broadcast, it is copied by way of the
        host.

        Raises
        ------
        ReadOnlyError
            The array is read-only.
        ValueError, TypeError, OverflowError
            A shape that cannot be broadcast; a value that NumPy does not convert; another type of
            what is in device memory.
        """
        with self[key] as view:
            _values.assign(view, value)

    @overload
    def copy_to_host(
        self, ary: None = None, stream: Any = 0, *, out: None = None
    ) -> numpy.ndarray[Any, Any]: ...

    @overload
    def copy_to_host(self, ary: _Host, stream: Any = 0) -> _Host: ...

    @overload
    def copy_to_host(self, ary: None = None, stream: Any = 0, *, out: _Host) -> _Host: ...

    def copy_to_host(self, ary: Any = None, stream: Any = 0, *, out: Any = None) -> Any:
        """Copies the elements to the host.

        Parameters
        ----------
        ary : numpy.ndarray or writable buffer, optional
            Where to: an array of equal shape and dtype, with any strides, or a contiguous buffer
            (bytearray, memoryview of bytes, ...) of `nbytes` bytes. Without it, a new NumPy array
            in C order. ``out=`` is the same.
        stream : int or stream object
            Without one (0 or None) the copy is done on return. With one, as for close(), it is
            enqueued there, and `ary` holds the elements when the stream has come past it: after
            ``stream.synchronize()``.

        Returns
        -------
        ary

        Notes
        -----
        A copy on a stream comes after the work on that stream, and after nothing else: it is for programs
        that order their streams themselves. caid keeps the host's memory alive until the copy is done, and
        drops it when it next looks: at a later copy, at the end of a bracket, or when an array, a
        :class:`caid.Stream` or a :class:`caid.Event` is waited for. The driver may make the call wait for the
        copy: it does so for copies to memory that is not page-locked (:func:`caid.pinned_array`), for large
        copies from such memory, and for copies within the host's memory, "pinned" and "mapped" arrays
        included.
        """
        self._check()
        ary = out if ary is None else ary
        if ary is None:
            ary = _typestr.numpy().empty(self.shape, self.dtype)
        _copy.copy(_copy.host(ary, target=True), _copy.device(self), stream)
        return ary

    def copy_from_host(self, x: Any, stream: Any = 0) -> None:
        """Copies elements from the host.

        Parameters
        ----------
        x : array_like or buffer
            An array of equal shape and dtype, with any strides, or `nbytes` bytes. Lists and scalars
            get the array's type.
        stream : int or stream object
            As for copy_to_host(): with one the copy is enqueued, and `x` is not to be changed before
            the stream has come past it.

        Raises
        ------
        ReadOnlyError
            The array is read-only.
        ValueError, TypeError
            Another shape; another type. Nothing is broadcast or converted: see ``a[...] = x``.
        """
        _copy.copy(_copy.device(self), _copy.host(x, element=self._layout.element), stream)

    def fill(self, value: Any, stream: Any = 0) -> None:
        """Sets all elements to a value.

        Parameters
        ----------
        value : scalar
            Any value that NumPy converts to the array's type; a tuple for a record. It needs NumPy, except
            for ints and floats to types of the same kinds.
        stream : int or stream object
            As for copy_from_host(): with one the fill is enqueued there.

        Raises
        ------
        ReadOnlyError
            The array is read-only.
        ValueError, TypeError, OverflowError
            What NumPy raises for the value.
        """
        _values.fill(self, value, stream)

    def copy_from(self, obj: Any, stream: Any = 0) -> None:
        """Copies elements from `obj`: a caid array, anything with a
        ``__cuda_array_interface__`` (0 to 3), or what copy_from_host() takes. Shapes and types
        are equal. Overlapping arrays are copied as if by way of a third, and are waited for.
        `stream` is as for copy_to_host(); that of an interface is waited for."""
        with _cai.side(obj, element=self._layout.element) as source:
            _copy.copy(_copy.device(self), source, stream)

    def copy_to(self, obj: Any, stream: Any = 0) -> None:
        """Copies this array's elements to `obj`: like copy_from(), the other way."""
        with _cai.side(obj, target=True) as target:
            _copy.copy(target, _copy.device(self), stream)

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copies elements from `ary` **into this array**: copy_from() by Numba's name. copy_to() copies this
        array to another.

        Parameters
        ----------
        ary : object
            What copy_from() takes: on the host or on a device, of equal shape and type.
        stream : int or stream object
            As for copy_to_host().
        """
        self.copy_from(ary, stream)

    def synchronize(self) -> None:
        """Waits on the host for the work on the memory that caid knows of: copies that were given a stream,
        brackets of this process that have ended, all that is on streams that arrays are bound to, and, for a
        view of a bracket, all that is on the bracket's stream. Afterwards a consumer that uses no stream may
        take the array.

        Raises
        ------
        AbandonedError
            The bracket's stream has waited for a process that died before its work was done.
        """
        self._check()
        if self._memory.client is not None:
            _copy.settle(self)

    async def async_done(self) -> None:
        """synchronize(), for asyncio, in a thread: a per-thread default stream is that thread's."""
        from .._base import _away

        await _away.once(self.synchronize)

    # --- hand-off ---------------------------------------------------------------------------

    def read(self, stream: Any = None, timeout: float | None = None) -> Bracket[Array]:
        """A bracket in which the array is read, on a stream: after whoever writes it, before who
        writes it next, in any process::

            with a.read(s) as v:
                consume(v, stream=s)

        Parameters
        ----------
        stream : int or stream object, optional
            As for close(). Without it, the host reads.
        timeout : float, optional
            Seconds that entering may wait for others; 0 is a try. Without it, without end.

        Returns
        -------
        Bracket
            A context manager that gives a view. Its errors are those of :meth:`caid.Bracket.begin`
            and :meth:`caid.Bracket.end`.

        Raises
        ------
        ValueError, TypeError
            Stream 0, which is ambiguous; no stream.
        UnsupportedError, ClosedError
            Memory that is not the daemon's; the array is closed.
        """
        return _bracket.of_array(self, False, stream, timeout)

    def write(self, stream: Any = None, timeout: float | None = None) -> Bracket[Array]:
        """A bracket in which the array is written: after whoever writes or reads its bytes, and alone.
        A block that is left by an exception leaves the array abandoned. See read(). It takes no data:
        that does copy_from()."""
        return _bracket.of_array(self, True, stream, timeout)

    def discard(self) -> None:
        """Accepts the contents of an abandoned array as they are: later readers get no AbandonedError.

        Raises
        ------
        ReadOnlyError
            The array was opened with mode "r".
        UnsupportedError
            Memory that is not the daemon's.
        """
        self._check()
        if self._memory.pool is None:
            raise unsupported(f"{self._label} is not in the daemon's memory: it has no brackets")
        self._memory.discard()

    def dmabuf(self) -> DmaBuf:
        """The array's memory as a dma-buf: for a network card (``ibv_reg_dmabuf_mr()``), or another driver::

            with a.dmabuf() as d:
                register(d.fd, d.offset, d.nbytes)

        Whoever has the fd, or what was made of it, may read and write the memory for as long as he likes,
        whatever becomes of the array, of this process and of the daemon. So the daemon notes it first: the
        memory serves no other array any more, goes back to the driver when the array ends, and is not charged
        from then on. caid orders nothing of what a card does: write in a bracket, and read after it is done.

        Raises
        ------
        InvalidError
            The array is small and was not made with ``exclusive=True``; or it lies in another one's memory.
        ReadOnlyError
            The array was opened with mode "r": a card does not know read-only.
        UnsupportedError
            Memory that is no device's, or not the daemon's; the driver makes no dma-buf, and says why.
        """
        self._check()
        if self._memory.pool is None:
            raise unsupported(f"{self._label} is not in the daemon's memory: no dma-buf is made of it")
        return _dmabuf.make(self._memory, self._layout)

    def bind(self, stream: Any = 0) -> Array:
        """Says on which stream the array's data is being made, by kernels launched before or after::

            kernel[grid, block, s](a.bind(s))
            consume(a)                   # its __cuda_array_interface__ names s

        Returns a view that is bound to the same stream. Until both are closed, or bound to another stream,
        each use of their memory by caid, also through other arrays, comes after the work that is then on that
        stream.

        Parameters
        ----------
        stream : int or stream object
            As for close(); it replaces the stream that the array had, a bracket's or its producer's. A stream
            object is kept alive. The stream of a number has to exist until then; work that is enqueued there
            after caid's last use of the array is not waited for at its end. 2 is this thread's stream, and
            other threads do not know it. 0 or None: no stream.
        """
        return self._bind(stream).view()

    def _bind(self, stream):
        self._check()
        bound = None if _any_stream.is_default(stream) else _any_stream.Bound(stream)
        self._note_stream()
        self._stream = bound
        if bound is not None:
            _pending.bind(self._memory, bound)
        return self

    def _unbind(self):
        """Gives up the array's stream as the array ends, whatever errors the stream has."""
        bound = self._stream
        if not isinstance(bound, _any_stream.Bound):
            return
        if bound.kept:
            with contextlib.suppress(Error):
                self._note_stream()
        self._stream = None

    def _note_stream(self):
        """Notes what is on the array's stream by now as work on its memory."""
        stream = self._live_stream
        if stream is not None:
            _pending.note((self._memory,), stream)

    # --- publishing -------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        *,
        metadata: Any = None,
        stream: Any = None,
        replace: bool = True,
        companion: Array | None = None,
        ttl: float | None = None,
    ) -> int:
        """Puts the array under a name of its pool, at once and as a whole.

        Whoever opens the name before gets what was there, whoever opens it after gets this array, complete:
        the work that writes it is waited for, here on the host. The array that had the name lives on without
        it as long as somebody holds it. The name that this array had before, if any, is given up.

        A view is published as an array of its own over the same bytes, in the memory of the array that it was
        made from, which stays as long as one of them does, and keeps its name. Brackets on the one know nothing of
        those on the other.

        Parameters
        ----------
        name : str
            It need not exist.
        metadata : object, optional
            Anything that JSON can tell, in place of the array's own, which else stays.
        stream : int or stream object, optional
            The CUDA stream on which the array is written, as for close(); without it, all work of
            the device's context is waited for.
        replace : bool
            False: the name must be free.
        companion : Array, optional
            An array without a name, of the same pool and creator, that this one keeps from now on:
            whoever opens the name can open it, too (:meth:`open_companion`), and it ends with this
            one. An array has one at most, and keeps it under each name.
        ttl : float, optional
            Seconds, more than 0, that the name has to live: see :meth:`caid.Client.expire`. Without it the
            name stays, even if it had a time to live before.

        Returns
        -------
        int
            The name's new generation: one more than before. The array's `name`, `generation` and
            `metadata` follow, a view's do not.

        Raises
        ------
        AccessError, InvalidNameError, LimitError
            The pool may not be written, or another uid created the array of a view; no name; more names than the
            user may have.
        ExistsError
            The name is taken, and not to be replaced.
        InvalidError
            What is no companion of this array; the array is a companion itself; no time to live. A view with
            negative strides, that is misaligned, or of what was a view when it was published.
        ReadOnlyError
            A view of an array that was opened with mode "r".
        UnsupportedError
            A view as a companion, or memory that is not the daemon's.
        """
        ttl_ns, text = _names.ttl_ns(ttl), _metadata.encode(metadata)
        number = 0 if stream is None else _any_stream.handle(stream)
        if companion is not None and not companion._root:
            raise unsupported("a view is no companion: copy it to an array of its own")
        with contextlib.ExitStack() as parts:
            lease = self._to_publish(number, parts)
            beside = None if companion is None else companion._to_publish(number, parts)
            return lease.publish(name, text, number, not replace, beside, ttl_ns)

    def _to_publish(self, number, parts):
        """The Lease that is published: the array's or, until `parts` are closed, one of the view alone. The work on
        it that is known of is waited for."""
        self._check()
        if self._memory.pool is None:
            raise unsupported(f"{self._label} is not in the daemon's memory: it has no name")
        _copy.settle(self)
        if self._root:
            return self._memory
        return parts.enter_context(contextlib.closing(_parts.of_view(self, number)))

    def open_companion(self) -> Array:
        """The array that this one was published with as its `companion`, in the mode in which this
        one is open. NotFoundError: it has none."""
        self._check()
        return of_lease(self._memory.open_companion())

    # --- interfaces -------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """dict: version 3 of the interface; with CAID_CAI_EXPORT_VERSION=2 version 2. "pinned"
        memory has none: it is the host's, whose device address is `device_ptr`.

        ``stream`` is one on which to wait for the work that synchronize() waits for: the one that
        the array is bound to, that of the bracket, for its views, that of another library, for its
        arrays, else one of caid's own, which lives as long as the memory. What is enqueued there
        comes before caid's own next use. None when there is no such work, or with CAID_CAI_SYNC=0.
        Version 2 knows no streams: there the work is waited for here.

        The dict keeps nothing alive: who uses it keeps the array.
        """
        self._check()
        return _export.cuda(self)

    @property
    def _live_stream(self):
        """The array's stream, as this thread can use it now, or None. Uses of the array come after what is on
        the stream, and before what is enqueued there later."""
        return _any_stream.live(self._stream)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """dict: NumPy's array interface, where the host reaches the memory: "pinned", "mapped" and
        "managed", and with the software driver all. The work that synchronize() waits for is waited
        for, except with CAID_CAI_SYNC=0.

        ``data`` is a buffer, which NumPy keeps: it holds the lease even if this array is closed.
        """
        self._check()
        return _export.numpy(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, id) of DLPack: kDLCUDA (2) and the device's ordinal in this process, kDLCUDAManaged (13)
        for "managed" memory; kDLCPU (1) for "pinned" and "mapped" memory, and with the software driver for
        all, but for what :func:`caid.strict_device` keeps from the host."""
        self._check()
        return _dlpack_export.device_of(self)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A tensor in a capsule, for ``from_dlpack()`` of other libraries. The memory stays mapped until the
        consumer releases the tensor, even if this array or its client is closed.

        Parameters
        ----------
        stream : int, optional
            The stream on which it will be used: it waits for the work that synchronize() waits for,
            the host does not. None is the legacy default stream (1); of memory that the host
            reaches, the host, which then does wait. -1: nothing is waited for. 0 is refused.
        max_version : tuple of int, optional
            The newest version of DLPack that is understood. Without it, or below 1.0, the capsule
            is of the kind that cannot tell of read-only memory.
        dl_device : tuple of int, optional
            The array's own device; (1, 0), the host; or what CUDA calls memory that is told as the host's:
            kDLCUDAHost (3) of "pinned" and "mapped" memory, kDLCUDA with the software driver. For the host,
            memory that the host does not reach is copied, which is done when this returns.
        copy : bool, optional
            True: a copy, in memory of the same kind, or on the host. False: none, or BufferError.

        Raises
        ------
        BufferError
            DLPack, or that version of it, cannot tell of this array: its type has fields, or is no
            number; its bytes are swapped; its strides are no multiples of the itemsize; it is
            read-only; it has fewer than 8 bits (before 1.1). Or another device was asked for.
        ValueError
            Stream 0.

        Notes
        -----
        The tensor says whether it is read-only, which many consumers ignore. A kernel that writes to memory
        that was opened "r" faults, and ends its CUDA context.
        """
        self._check()
        return _dlpack_export.export(self, stream, max_version, dl_device, copy)

    def __array__(self, *_args, **_kwargs):
        # NumPy calls this where __array_interface__ raises, for whatever reason. Without it, NumPy would take
        # the array for a sequence and make an array of views.
        self._check()
        with contextlib.suppress(AttributeError):
            _export.numpy(self)
        raise TypeError("a caid.Array is in device memory: use copy_to_host()")
