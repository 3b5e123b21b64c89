# SPDX-License-Identifier: Apache-2.0
"""The part of a client that goes by names: opens, publishes, renames, unlinks and watches."""

from __future__ import annotations

from typing import Any, Iterable, List, Literal, Mapping

from .._base._errors import DroppedError, NotFoundError, check_timeout, invalid
from .._memory import _array, _names, _set
from .._memory._array import Array
from .._memory._set import Set
from . import _watch
from ._making import Making
from ._queries import _Device
from ._watch import Watch


class Naming(Making):
    """The part of :class:`caid.Client` that goes by names."""

    __slots__ = ()

    # --- opening ----------------------------------------------------------------------------

    def open(
        self,
        name: str,
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        generation: int | None = None,
        device: _Device | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Opens an array by name. Nothing is copied: it is the same memory in every process.

        Parameters
        ----------
        name : str
        mode : {"r", "rw"}
            "r" maps the memory read-only: a write on the GPU fails there ("legacy" memory: only
            here).
        pool : str, optional
            Without it, the caller's own.
        generation : int, optional
            The array that had the name in this generation, and no other: the current one, or an
            older one that somebody still holds. Without it, or with 0, the current one.
        device : int or str, optional
            Index in `devices`, or a text (see there), of the device of this process that is to reach the memory,
            over the peer link where the memory lies on another. Without it, the memory's own or,
            where this process does not see that one (CUDA_VISIBLE_DEVICES), the first that it
            sees.
        wait : bool
            Whether to wait until the name is there; not with `generation`. One that has gone again
            before it could be opened is waited for anew. Ctrl-C ends the wait.
        timeout : float, optional
            Seconds to wait; 0 only looks. Without it, without end.

        Raises
        ------
        NotFoundError
            No such name, or no pool that the caller may see; also a FileNotFoundError.
        DroppedError
            The set of that name made room for others; also a NotFoundError. It is not waited for.
        TimedOutError, CancelledError
            The name did not come in time; the client was closed meanwhile.
        StaleError
            The name has that generation no more, or not yet.
        AccessError
            Mode "rw" in a pool that may only be read; also a PermissionError.
        DeviceError
            This process does not see that device.
        CorruptError
            Its creator has described elements that cannot be: the message names the creator.
        """
        if wait or timeout is not None:
            if not wait or generation:
                raise invalid("open: timeout needs wait=True, which does not go with a generation")
            check_timeout(timeout)
        uuid = None if device is None else self._uuid_of(device)
        try:
            return _array.of_lease(self._open(name, mode, pool, generation or 0, uuid))
        except NotFoundError as e:
            if not wait or isinstance(e, DroppedError):
                raise
        return _names.open_when_there(self, name, mode, pool, device, timeout)

    async def async_open(
        self,
        name: str,
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        device: _Device | None = None,
        timeout: float | None = None,
    ) -> Array:
        """open(wait=True), for asyncio. Parameters and errors as for open()."""
        check_timeout(timeout)
        return await _names.async_open_when_there(self, name, mode, pool, device, timeout)

    def open_many(
        self,
        names: Iterable[str],
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        device: _Device | None = None,
    ) -> List[Array]:
        """Opens arrays by their names, in as few messages as they fit in: all or none.

        Returns
        -------
        list of Array
            In the order of `names`.
        """
        if isinstance(names, str):
            raise TypeError("names: a list of str is needed, not one str")
        leases = self._open_many(tuple(names), mode, pool, self._uuid_of(device), None)
        return _array.of_leases(leases)

    # --- sets -------------------------------------------------------------------------------

    def publish_many(
        self,
        name: str,
        arrays: Mapping[str, Any],
        *,
        metadata: Any = None,
        stream: Any = None,
        replace: bool = True,
    ) -> int:
        """Puts arrays under names that change in one step, all or none: a set of them.

        Nobody sees a mixture: who opens ``name + key`` before gets what was there, who opens one
        after gets the new one, and open_set() gives one version of all of them. What had the name
        lives on without it as long as somebody holds it; names that a set had and the new one lacks
        are gone. A watch of `name` tells of the set.

        Parameters
        ----------
        name : str
            What all names begin with, "llama/": it ends in "/". As long as the set has it, all names that begin so
            are its own: none can be created, published or renamed there, and unlink() and rename()
            take the set as a whole. Sets are not nested.
        arrays : mapping of str to Array, or to arrays or tensors of NumPy, PyTorch, CuPy, ...
            1 to 262,144 arrays of this client and of one pool, by what follows in their names; name
            and key are 255 bytes together at most. An array may be in several sets, and have a name
            of its own besides. What a :class:`caid.Set` gives may go into the next one, and a view of a part of an
            array, as :meth:`caid.Array.publish` has it. Of what is not caid's, new arrays are made, as :meth:`array` makes them, in that pool, or in the caller's own.
        metadata, stream, replace
            As for :meth:`caid.Array.publish`, of all of them.

        Returns
        -------
        int
            The generation of the set, and of all of its names.

        Raises
        ------
        ExistsError
            An array has a name that begins so; or `name` is taken, and not to be replaced.
        InvalidError, InvalidNameError
            No arrays, or too many; arrays of two pools; a set among them, or over the name.
        AccessError, LimitError, QuotaError
            The pool may not be written; each array is charged as a name, to this user.
        UnsupportedError
            Memory that is not the daemon's.
        """
        return _set.publish(self, name, arrays, metadata, stream, replace)

    def open_set(
        self,
        name: str,
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Set:
        """Opens the set that has the name: one version of its arrays, which are opened when they are
        asked for. Parameters and errors as for open(); InvalidError: it is an array."""
        return _set.of_array(self.open(name, mode, pool=pool, wait=wait, timeout=timeout))

    async def async_open_set(
        self,
        name: str,
        mode: Literal["r", "rw"] = "r",
        *,
        pool: str | None = None,
        timeout: float | None = None,
    ) -> Set:
        """open_set(wait=True), for asyncio."""
        return _set.of_array(await self.async_open(name, mode, pool=pool, timeout=timeout))

    # --- names ------------------------------------------------------------------------------

    def unlink(
        self,
        name: str | None = None,
        *,
        pool: str | None = None,
        prefix: str | None = None,
        missing_ok: bool = False,
    ) -> int:
        """Removes a name, or all that start alike. Whoever holds an array keeps it; without holders
        its memory is freed.

        Parameters
        ----------
        name : str
            Or `prefix`.
        pool : str, optional
            Without it, the caller's own.
        prefix : str
            In place of `name`: every name that starts with it, one by one, a set as a whole; there
            need be none, and what others remove meanwhile is passed over. Not "": that would be all.
        missing_ok : bool
            Whether a name that is not there is no error.

        Returns
        -------
        int
            How many names were removed.

        Raises
        ------
        NotFoundError, AccessError
            No such name, no pool that the caller may see; one that may not be written.
        """
        if (name is None) == (prefix is None):
            raise TypeError("unlink: either a name or a prefix is needed")
        names = _names.starting_with(self, prefix, pool) if name is None else [name]
        removed = 0
        for each in names:
            try:
                self._unlink(each, pool)
                removed += 1
            except NotFoundError:
                if not (missing_ok or name is None):
                    raise
        return removed

    def rename(
        self, old: str, new: str, *, pool: str | None = None, replace: bool = False
    ) -> int:
        """Gives an array another name of its pool, at once: nobody sees both names, or neither.

        Whoever has it open keeps it, by the name that it was opened by; its metadata stays. Nothing
        is copied, and no work is waited for: what this process writes is named when it is whole by
        :meth:`caid.Array.publish`, and an array whose writer died stays abandoned.

        Parameters
        ----------
        old, new : str
        pool : str, optional
            Without it, the caller's own.
        replace : bool
            Whether `new` may be taken: what has it lives on as long as somebody holds it.

        Returns
        -------
        int
            The generation of `new`.

        Raises
        ------
        NotFoundError, AccessError
            No such name, no pool that the caller may see; one that may not be written.
        ExistsError, InvalidNameError
            `new` is taken; is no name.
        """
        return self._rename(old, new, pool, replace)

    def expire(
        self,
        name: str,
        ttl: float | None,
        *,
        pool: str | None = None,
        generation: int | None = None,
    ) -> int:
        """Gives a name a time to live: when it is over, the daemon unlinks the name as unlink() does,
        whether or not this process is still there. It is the name's as long as that shows this
        array: rename() keeps it, and publishing over the name ends it, unless that gives another
        one. Time that the machine sleeps counts.

        Parameters
        ----------
        name : str
        ttl : float or None
            Seconds from now on, more than 0; None: the name stays.
        pool : str, optional
            Without it, the caller's own.
        generation : int, optional
            The name's, which has to be the current one. Without it, or with 0, whichever it is.

        Returns
        -------
        int
            The name's generation. What is left of its time is `ttl_ns` of list() and show().

        Raises
        ------
        NotFoundError, AccessError
            No such name, no pool that the caller may see; one that may not be written.
        StaleError
            The name has another generation.
        InvalidError, QuotaError
            No time to live; the user has as much of the daemon's memory as there may be.
        """
        return self._expire(name, pool, generation or 0, _names.ttl_ns(ttl))

    def watch(
        self,
        name: str | None = None,
        *,
        prefix: str | None = None,
        pool: str | None = None,
        timeout: float | None = None,
    ) -> Watch:
        """Watches a name, which need not exist, or all names that start alike: an iterator over their changes, for
        threads and for asyncio. A "*" in the name is a letter: where there is no such name, a UserWarning says so.

        Parameters
        ----------
        name : str
            Or `prefix`.
        prefix : str
            In place of `name`: all names that start with it, members of sets among them; "" is all of the pool.
        pool : str, optional
            Without it, the caller's own.
        timeout : float, optional
            Seconds that the iterator waits for each change before it raises TimedOutError.

        Returns
        -------
        Watch
            To be closed: it is a context manager.

        Raises
        ------
        InvalidNameError, NotFoundError, LimitError
            No name; no pool that the caller may see; more watches than the user may have.
        """
        return _watch.create(self, name, prefix, pool, timeout)
