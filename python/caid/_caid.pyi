# SPDX-License-Identifier: Apache-2.0
"""libcaid, thin. For use by the package: see caid/__init__.py for the interface.

Every failure of libcaid raises the class of ``caid._errors`` for its code. Calls give up the GIL.
"""

from os import PathLike
from typing import Any, Optional, Union

from typing_extensions import Buffer, Self

_Path = Union[str, bytes, PathLike[str], PathLike[bytes]]
_Dims = tuple[int, ...]
_Entry = tuple[str, str, str, _Dims, int, int, int, int, int, str]
_Holder = tuple[Optional[str], int, int, bool, bool]
_Details = tuple[
    _Entry, Optional[_Dims], Optional[str], int, int, int, int, list[_Holder], Optional[str]
]

class Client:
    """One ``struct caid_client``. Ends with close() or with the object; leases hold it.

    What has an underscore is for ``caid.Client``, which is derived from this.
    """

    def __init__(
        self,
        address: Optional[_Path] = None,
        *,
        name: Optional[str] = None,
        driver: Optional[_Path] = None,
    ) -> None: ...
    @classmethod
    def _local(cls, driver: Optional[_Path], /) -> Client: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def dispatch(self) -> None: ...
    def ping(self) -> None: ...
    _host_accessible: bool
    def _create(
        self,
        name: Optional[str],
        shape: _Dims,
        typestr: str,
        descr: Optional[str],
        strides: Optional[_Dims],
        pool: Optional[str],
        device: int,
        flags: int,
        memory: Optional[str],
        alignment: int,
        metadata: Optional[str],
        /,
    ) -> Lease: ...
    def _open(
        self,
        name: str,
        mode: Optional[str],
        pool: Optional[str],
        generation: int,
        access: Optional[str],
        /,
    ) -> Lease: ...
    def _open_many(
        self,
        names: tuple[str, ...],
        mode: Optional[str],
        pool: Optional[str],
        access: Optional[str],
        /,
    ) -> list[Lease]: ...
    def _unlink(self, name: str, pool: Optional[str], /) -> None: ...
    def _watch(self, name: str, pool: Optional[str], /) -> Watch: ...
    def _list(self, pool: Optional[str], prefix: Optional[str], all: bool, /) -> list[_Entry]: ...
    def _show(self, name: str, pool: Optional[str], /) -> list[_Details]: ...
    def _unnamed(self, pool: Optional[str], all: bool, /) -> list[_Details]: ...
    def _users(self) -> list[tuple[int, ...]]: ...
    def _pools(self) -> list[tuple[Any, ...]]: ...
    def _memory_info(self, device: int, /) -> tuple[Any, ...]: ...
    def _flush(self, device: int, /) -> tuple[int, int, int]: ...
    def _defer_begin(self) -> None: ...
    def _defer_end(self) -> None: ...
    def _status(self) -> tuple[Any, ...]: ...
    def _devices(self) -> list[tuple[str, str, int, int]]: ...
    def _host_alloc(self, device: int, nbytes: int, flags: int, /) -> HostMemory: ...
    def _host_register(self, device: int, ptr: int, nbytes: int, flags: int, /) -> int: ...
    def _host_unregister(self, device: int, ptr: int, /) -> None: ...
    def _copy(
        self,
        dst: Union[int, Buffer],
        src: Union[int, Buffer],
        shape: _Dims,
        itemsize: int,
        *,
        dst_strides: Optional[_Dims] = None,
        src_strides: Optional[_Dims] = None,
        dst_on_host: bool = False,
        src_on_host: bool = False,
        device: int = 0,
        leases: tuple[Lease, ...] = (),
    ) -> None: ...
    def _pointer_resolve(self, ptr: int, /) -> tuple[int, int]: ...
    def _stream_synchronize(self, stream: int, device: int, /) -> None: ...

class Lease:
    """One ``struct caid_array``. Ends with its last share; what it knows outlives it, but ptr."""

    client: Client
    shape: _Dims
    strides: _Dims
    typestr: str
    descr: Optional[str]
    itemsize: int
    nbytes: int
    device: int
    access: int
    access_device: int
    readonly: bool
    memory: str
    metadata: Optional[str]
    name: Optional[str]
    pool: Optional[str]
    generation: int
    block: int
    offset: int
    host: int
    @property
    def ptr(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def share(self) -> Self: ...
    def close(self, stream: Optional[int] = None, /) -> None: ...
    def host_view(self, offset: int, nbytes: int, readonly: bool, /) -> HostView: ...
    def ipc_handle(self) -> tuple[bytes, int, int]: ...
    def publish(self, name: str, metadata: Optional[str], stream: int, /) -> int: ...

class HostView:
    """A range of a lease's memory as a buffer; has a share of the lease."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Watch:
    """One ``struct caid_watch``. Ends with close() or with the object."""

    @property
    def closed(self) -> bool: ...
    def next(self, timeout: Optional[float], /) -> int: ...
    def close(self) -> None: ...

class HostMemory:
    """Page-locked memory of this process as a buffer; freed with the object."""

    nbytes: int
    device_ptr: int
    def __buffer__(self, flags: int, /) -> memoryview: ...

def softcuda_path() -> str: ...
def version() -> str: ...
def code_name(code: int, /) -> Optional[str]: ...
