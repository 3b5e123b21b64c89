# SPDX-License-Identifier: Apache-2.0
"""Client: a connection to the daemon, and all that is done through it."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Iterable, List, Union

from . import _array, _cai, _caid, _geometry, _typestr
from ._errors import invalid
from ._records import Details, Device, Entry, Holder, MemoryInfo, Pool, Status

_CLIENT_NAME_MAX = 64  # bytes

_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Shape = Union[int, Iterable[int]]


def _program_name():
    """What other users see of this process: the script's name."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if not name or name.startswith("-") or not name.isprintable():
        return None
    return name.encode(errors="replace")[:_CLIENT_NAME_MAX].decode(errors="ignore")


class Client(_caid.Client):
    """A connection to the daemon.

    Parameters
    ----------
    address : path, optional
        The daemon's socket. Without it ``$CAID_SOCKET``, then ``$XDG_RUNTIME_DIR/caid.sock`` if
        that is there, then ``/run/caid/caid.sock``.
    name : str, optional
        What the daemon calls this client in front of others; the script's name without it.
    driver : str, optional
        "auto", "cuda", "soft" or the path of a CUDA driver; ``$CAID_CUDA_DRIVER`` without it, or
        else what the daemon uses.

    Raises
    ------
    NoDaemonError
        Nobody listens there; also a ConnectionRefusedError.

    Notes
    -----
    A client and its arrays may be used from any thread. A child made by ``os.fork()`` connects
    anew: in it, all that was inherited raises ForkedError. ``close()`` ends the connection and
    closes the client's arrays; leaving a ``with`` block does the same.
    """

    __slots__ = ("_address", "_device_list", "_host_accessible", "__weakref__")

    def __init__(
        self,
        address: _Path | None = None,
        *,
        name: str | None = None,
        driver: _Path | None = None,
    ):
        self._address = address
        self._device_list: List[Device] | None = None
        super().__init__(address, name=name or _program_name(), driver=driver)
        try:  # asked now: arrays are used after the daemon's death, too
            self._host_accessible = self.status().driver == "soft"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self, _warn=warnings.warn):
        if not self.closed:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __reduce__(self):
        raise TypeError("a caid.Client cannot be copied or pickled: connect anew")

    def __repr__(self):
        at = "" if self._address is None else f" {os.fspath(self._address)!r}"
        return f"<caid.Client{at}{' closed' if self.closed else ''}>"

    # --- making arrays ----------------------------------------------------------------------

    def create(
        self,
        name: str,
        shape: _Shape,
        dtype: Any = "<f8",
        *,
        pool: str | None = None,
        device: int = 0,
        order: str = "C",
        strides: _Shape | None = None,
        exclusive: bool = False,
    ) -> _array.Array:
        """Creates an array under a name. Its contents are undefined until written.

        The array outlives this process: its name keeps it until unlink().

        Parameters
        ----------
        name : str
            1 to 255 bytes of UTF-8 without control characters; "/" is ordinary.
        shape : int or tuple of int
            At most 32 extents, none negative.
        dtype : str, numpy.dtype or anything that numpy.dtype takes
            A typestr ("<f4") needs no NumPy.
        pool : str, optional
            Without it, the caller's own.
        device : int
            Index in `devices`.
        order : {"C", "F"}
            Which dimension is the fastest: the last or the first.
        strides : tuple of int, optional
            Steps in bytes, none negative, in place of `order`.
        exclusive : bool
            Whether to give the array a block of its own, shared with no other array.

        Returns
        -------
        Array
            Writable.

        Raises
        ------
        ExistsError
            The name is taken.
        InvalidNameError, InvalidError
            Name, shape, strides or type are not valid.
        OutOfMemoryError, QuotaError, LimitError
            The device, the pool or the user has not got that much.
        AccessError, NotFoundError
            The pool may not be written; may not be seen, or is not there.
        DeviceError
            No such device.
        """
        if not isinstance(name, str):
            raise TypeError(f"name: a str is needed, not {type(name).__name__}; see empty()")
        return self._make(name, shape, dtype, pool, device, order, strides, exclusive)

    def empty(
        self,
        shape: _Shape,
        dtype: Any = "<f8",
        *,
        pool: str | None = None,
        device: int = 0,
        order: str = "C",
        strides: _Shape | None = None,
        exclusive: bool = False,
    ) -> _array.Array:
        """Creates an array without a name: it ends with its last holder. See create()."""
        return self._make(None, shape, dtype, pool, device, order, strides, exclusive)

    def empty_like(
        self,
        a: Any,
        *,
        pool: str | None = None,
        device: int | None = None,
        exclusive: bool = False,
    ) -> _array.Array:
        """An unnamed array with the shape and type of another: of a caid array, of anything with
        a ``__cuda_array_interface__``, or of anything that NumPy makes an array of. One in
        Fortran order gives one in Fortran order; strides are not taken over. Without `device`, on
        the device of an array of this client, else on the first."""
        shape, element, order = _like(a)
        if device is None:
            own = isinstance(a, _array.Array) and a._memory.client is self
            device = max(a.device, 0) if own else 0
        return self._make_element(
            None, shape, element, pool, device, order, None, exclusive
        )

    def _make(self, name, shape, dtype, pool, device, order, strides, exclusive):
        element, inner = _typestr.of_dtype(dtype)
        shape = _geometry.dims("shape", shape) + inner
        return self._make_element(
            name, shape, element, pool, device, order, strides, exclusive
        )

    def _make_element(self, name, shape, element, pool, device, order, strides, exclusive):
        if order not in ("C", "F"):
            raise invalid(f"order {order!r}: 'C' or 'F'")
        if strides is not None:
            if order == "F":
                raise invalid("order and strides are both given")
            strides = _geometry.dims("strides", strides)
        elif order == "F" and len(shape) > 1 and min(shape) >= 0:
            strides = _geometry.f_strides(shape, element.itemsize)
        lease = self._create(
            name, shape, element.typestr, element.descr, strides, pool, device, exclusive
        )
        return _array.of_lease(lease)

    # --- opening and unlinking --------------------------------------------------------------

    def open(self, name: str, mode: str = "r", *, pool: str | None = None) -> _array.Array:
        """Opens an array by name. Nothing is copied: it is the same memory in every process.

        Parameters
        ----------
        name : str
        mode : {"r", "rw"}
            "r" maps the memory read-only: a write on the GPU fails there.
        pool : str, optional
            Without it, the caller's own.

        Raises
        ------
        NotFoundError
            No such name, or no pool that the caller may see; also a FileNotFoundError.
        AccessError
            Mode "rw" in a pool that may only be read; also a PermissionError.
        """
        return _array.of_lease(self._open(name, mode, pool))

    def open_many(
        self, names: Iterable[str], mode: str = "r", *, pool: str | None = None
    ) -> List[_array.Array]:
        """Opens arrays by their names, in as few messages as they fit in: all or none.

        Returns
        -------
        list of Array
            In the order of `names`.
        """
        if isinstance(names, str):
            raise TypeError("names: a list of str is needed, not one str")
        leases = self._open_many(tuple(names), mode, pool)
        return [_array.of_lease(lease) for lease in leases]

    def unlink(self, name: str, *, pool: str | None = None) -> None:
        """Removes a name. Whoever holds the array keeps it; without holders its memory is freed.
        Raises NotFoundError, AccessError."""
        self._unlink(name, pool)

    def as_array(self, obj: Any, sync: bool = True) -> _array.Array:
        """:func:`caid.as_array` on this client's driver."""
        return _cai.as_array(obj, sync, client=self)

    def from_cuda_array_interface(
        self, desc: dict[str, Any], owner: object = None, sync: bool = True
    ) -> _array.Array:
        """:func:`caid.from_cuda_array_interface` on this client's driver."""
        return _cai.from_cuda_array_interface(desc, owner, sync, client=self)

    # --- what the daemon knows --------------------------------------------------------------

    def list(
        self, *, pool: str | None = None, prefix: str | None = None, all: bool = False
    ) -> List[Entry]:
        """Names, in byte order.

        Parameters
        ----------
        pool : str, optional
            Without it, the caller's own.
        prefix : str, optional
            Only names that start with it.
        all : bool
            Those of every pool that the caller may read, pool by pool.

        Returns
        -------
        list of Entry
        """
        return [Entry._make(entry) for entry in self._list(pool, prefix, all)]

    def show(self, name: str, *, pool: str | None = None) -> Details:
        """What is known of a name, and who holds the array: Details."""
        details = Details._make(self._show(name, pool)[0])
        return details._replace(
            entry=Entry._make(details.entry),
            holders=[Holder._make(holder) for holder in details.holders],
        )

    def pools(self) -> List[Pool]:
        """The pools that the caller may read: list of Pool."""
        return [Pool._make(pool) for pool in self._pools()]

    def memory_info(self, device: int = 0) -> MemoryInfo:
        """Memory of a device, in bytes: MemoryInfo(free, total, used, blocks, arrays)."""
        return MemoryInfo._make(self._memory_info(device))

    def status(self) -> Status:
        """The daemon: Status."""
        return Status._make(self._status())

    @property
    def devices(self) -> List[Device]:
        """list of Device: the daemon's devices; ``device=`` elsewhere is a place in it."""
        if self._device_list is None:
            self._device_list = [Device._make(device) for device in self._devices()]
        return self._device_list.copy()

    @property
    def host_accessible(self) -> bool:
        """bool: whether the host can reach array memory; so it is with the software driver."""
        return self._host_accessible


def _like(a):
    """(shape, element, order) of an array of any kind."""
    if not isinstance(a, _array.Array) and hasattr(a, "__cuda_array_interface__"):
        with _cai.as_array(a, sync=False) as foreign:
            return _like(foreign)
    if isinstance(a, _array.Array):
        f_order = a.is_f_contiguous() and not a.is_c_contiguous()
        return a.shape, a._element, "F" if f_order else "C"
    a = _typestr.numpy().asanyarray(a)
    element, _ = _typestr.of_dtype(a.dtype)
    return a.shape, element, "F" if a.flags.fnc else "C"
