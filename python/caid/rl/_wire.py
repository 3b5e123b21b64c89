# SPDX-License-Identifier: Apache-2.0
"""checkpoint-engine's protocol, as its receiver: a ZeroMQ socket on which a sender gives a buffer of the device, by an
IPC handle, and then says, again and again, which tensors lie in it.

Its messages are pickled. Here they are read by names: what a message names is looked up in a short list, and nothing
that it brings is called. Who sends is whoever made the socket: it has to lie in a folder that only this user enters.
"""

from __future__ import annotations

import gc
import io
import math
import os
import pathlib
import pickle
import re
import stat
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_MESSAGE_MAX = 256 << 20  # bytes
_COUNTERS = 10000  # in one piece of shared memory: PyTorch's CUDA_IPC_REF_COUNTER_FILE_SIZE


class Name(NamedTuple):
    """What a message names by a module and a name of it, and does not get."""

    module: str
    name: str


REBUILD = Name("torch.multiprocessing.reductions", "rebuild_cuda_tensor")
_TENSORS = {Name("torch", "Tensor"), Name("torch.nn.parameter", "Parameter")}
_STORAGES = {Name("torch.storage", "TypedStorage"), Name("torch.storage", "UntypedStorage")}
_NAMES = {REBUILD, *_TENSORS, *_STORAGES}
_BUILTINS = {("torch", "Size"): tuple, ("builtins", "RuntimeError"): RuntimeError}  # safe to call with anything


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        asked = Name(module, name)
        if asked in _NAMES:
            return asked
        if asked in _BUILTINS:
            return _BUILTINS[asked]
        value = vars(torch).get(name) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise pickle.UnpicklingError(f"a message names {module}.{name}, which is no part of the protocol")


def loads(data: bytes) -> Any:
    """What a message says. UnpicklingError: it is none of the protocol's."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as e:
        raise pickle.UnpicklingError(f"a message that is not the protocol's: {type(e).__name__}: {e}") from e


# --- where senders are ----------------------------------------------------------------------


def folder() -> str:
    """The folder for this user's sockets, the same in all processes; made if need be."""
    uid = os.geteuid()
    run = f"/run/user/{uid}"
    path = f"{run}/caid-rl" if _is_private(run) else f"/tmp/caid-rl-{uid}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    _check_private(path)
    return path


def check_address(address: str) -> None:
    """PermissionError: somebody else could have made the socket, or could put another in its place."""
    if not isinstance(address, str) or not address.startswith("ipc:///"):
        raise PermissionError(
            f"{address!r}: anyone can make such a socket; one in a folder of mode 0700 is needed, as"
            " caid.rl.checkpoint_engine.private_sockets() makes"
        )
    path = os.path.dirname(address[len("ipc://") :])
    _check_private(path)
    folder = pathlib.Path(path)
    if ".." in folder.parts or not all(map(_is_kept, folder.parents)):
        raise PermissionError(f"{path}: others can put another folder there")


def _is_kept(path):
    """Whether what is this user's in a folder stays there: others neither own it nor, but for a sticky one, write it."""
    status = os.lstat(path)
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid())
    return mine and bool(status.st_mode & stat.S_ISVTX or not status.st_mode & 0o022)


def _is_private(path):
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _check_private(path):
    if not _is_private(path):
        raise PermissionError(f"{path}: not a folder of this user's with mode 0700")


# --- what they send -------------------------------------------------------------------------


def _is_count(value):
    return type(value) is int and 0 <= value < 1 << 62


def _is_shape(value):
    return type(value) is tuple and all(map(_is_count, value))


def _is_bytes(value):
    return type(value) is bytes


def _is_counter(value):
    """Whether it is the name of shared memory of PyTorch's, in which it counts who uses a buffer."""
    return type(value) is bytes and re.fullmatch(rb"/torch_\d+_\d+_\d+", value) is not None


_KINDS: tuple[Callable[[Any], bool], ...] = (
    _TENSORS.__contains__,  # the parameters of rebuild_cuda_tensor(): the tensor's class,
    _is_shape, _is_shape, _is_count,  # shape, strides, offset,
    _STORAGES.__contains__, lambda dtype: dtype is torch.uint8, _is_count,  # the storage's class, type, device,
    _is_bytes, _is_count, _is_count,  # handle, size and offset,
    lambda requires_grad: requires_grad is False,
    _is_counter, lambda at: _is_count(at) and at < _COUNTERS, _is_bytes, lambda is_needed: type(is_needed) is bool,  # its counter of uses, and its event
)  # fmt: skip


def rebuild(handle: Any, device: int) -> torch.Tensor:
    """The buffer of bytes that an IPC handle of PyTorch's stands for. TypeError: it is another thing."""
    if type(handle) is not tuple or len(handle) != 2 or handle[0] != REBUILD or type(handle[1]) is not tuple:
        raise TypeError("the sender's first message has no buffer of a CUDA device")
    args = handle[1]
    if len(args) != len(_KINDS) or not all(is_kind(value) for is_kind, value in zip(_KINDS, args)):
        raise TypeError("the sender's handle is not one of a buffer of bytes")
    _, shape, strides, offset, storage, _, _, _, storage_bytes, *_ = args
    if len(shape) != 1 or strides != (1,) or offset + shape[0] > storage_bytes:
        raise TypeError("the sender's buffer is not in one piece, or not within its memory")
    storage_class = torch.UntypedStorage if storage.name == "UntypedStorage" else torch.storage.TypedStorage
    from torch.multiprocessing import reductions

    checked = (torch.Tensor, torch.Size(shape), strides, offset, storage_class, torch.uint8, device, *args[7:])
    return reductions.rebuild_cuda_tensor(*checked)


def tensors_in(buffer: torch.Tensor, told: list) -> list[tuple[str, torch.Tensor]]:
    """The tensors that a message says lie in the buffer, as views of it."""
    found = []
    for item in told:
        name, shape, dtype, at = (item[key] for key in ("name", "shape", "dtype", "offset"))
        shape = tuple(shape) if type(shape) is list else shape
        if not (type(name) is str and _is_shape(shape) and isinstance(dtype, torch.dtype) and _is_count(at)):
            raise TypeError(f"a message describes no tensor: {item!r}")
        nbytes = math.prod(shape) * dtype.itemsize
        if at + nbytes > buffer.numel():
            raise ValueError(f"{name!r} lies outside of the sender's buffer")
        found.append((name, buffer[at : at + nbytes].view(dtype).view(shape)))
    return found


def receive(
    context: Any, address: str, device: int, run: Callable[[list], None], post_hook: Callable[[], None] | None,
    timeout: float,
) -> None:  # fmt: skip
    """One update. run() is called with [(name, tensor), ...], which must have been read when it returns or, on
    PyTorch's streams of the device, be on the way. TimeoutError: the sender has said nothing for so many seconds."""
    import zmq

    check_address(address)
    with context.socket(zmq.REP) as socket:
        socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_MAX)
        socket.setsockopt(zmq.RCVTIMEO, int(timeout * 1000))
        socket.setsockopt(zmq.LINGER, 1000)  # milliseconds
        socket.connect(address)
        try:
            follow(socket, device, run, post_hook)
        except zmq.Again:
            raise TimeoutError(f"{address}: no word of the sender for {timeout} s") from None


def follow(socket: Any, device: int, run: Callable[[list], None], post_hook: Callable[[], None] | None) -> None:
    """The protocol, on a socket that is connected. The sender says what lies in the buffer, as often as it likes; None,
    when the buffer is not needed any more; None again, when all receivers are so far; or why it gave up."""
    first = socket.recv()
    try:
        buffer = rebuild(loads(first), device)
    except Exception as e:
        _answer(socket, e)
        socket.recv()  # the sender's word that it gives up
        raise
    _answer(socket)
    failure = None
    while (told := loads(socket.recv())) is not None:
        if isinstance(told, RuntimeError):
            raise told from failure
        try:
            run(tensors_in(buffer, told))
            torch.cuda.synchronize()
        except Exception as e:
            failure = e
        _answer(socket, failure)
    del buffer
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    _answer(socket)
    told = loads(socket.recv())
    try:
        if told is not None:
            raise TypeError("the sender goes on behind the end of its update")
        if failure is not None:  # of the last tensors, for which checkpoint-engine does not look at the answer
            raise failure
        if post_hook is not None:
            post_hook()
        torch.cuda.synchronize()
    except Exception as e:
        _answer(socket, e)
        raise
    _answer(socket)


def _answer(socket, failure=None):
    socket.send(b"" if failure is None else "".join(traceback.format_exception(failure)).encode())


def handle_for(handles: Any, uuid: str) -> str:
    """The address for a GPU in what a sender's request has."""
    try:
        return handles[uuid]
    except (TypeError, KeyError):
        raise ValueError(f"the request has no socket for this process's {uuid}") from None


def uuid_of(device: int) -> str:
    """A GPU as checkpoint-engine calls it."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid!s}"
