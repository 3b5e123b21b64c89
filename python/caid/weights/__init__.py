# SPDX-License-Identifier: Apache-2.0
"""Model weights: loaded once, shared by every process, swapped under load. Needs NumPy.

>>> import caid.weights
>>> caid.weights.load("Llama-3-8B", "llama")              # or: caidctl load Llama-3-8B --name llama
1
>>> w = caid.weights.open("llama")                        # in each worker: nothing is copied
>>> model.load_state_dict(w.torch(), assign=True)
>>> newer = w.newer()                                     # between two requests: None, or version 2

A model is a set of arrays (:meth:`caid.Client.publish_many`) under names that begin with its own and a
slash. Its versions replace one another as a whole: a worker has one of them, and the memory of an older
one is given back when the last worker has let go of it. Files are safetensors', as Hugging Face's are.
"""

from __future__ import annotations

try:
    import numpy  # noqa: F401
except ImportError as e:
    raise ImportError("caid.weights needs NumPy: pip install 'caid[weights]'", name="numpy") from e

import os
import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, Mapping, Sequence, Union

from .._base._errors import DroppedError, invalid
from .._session import _default
from .._session._client import Client
from . import _again, _load, _plan, _progress, _publisher, _save
from ._plan import COLUMNS, ROWS
from ._publisher import NewVersion, Publisher
from ._safetensors import FormatError, read_model
from ._weights import Part, Weights, of_set, parse, prefix_of

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

_Path = Union[str, "os.PathLike[str]"]
Progress = Callable[[int, int], None]  # bytes done, bytes in all

__all__ = [
    "COLUMNS", "FormatError", "NewVersion", "Part", "Publisher", "ROWS", "Weights", "async_open", "from_torch", "load",
    "open", "publisher", "save", "unload",
]


def load(
    model: _Path | Iterable[_Path],
    name: str,
    *,
    pool: str | None = None,
    device: int | str | Sequence[int | str] = 0,
    memory: Literal["device", "pinned"] = "device",
    dtype: Any = None,
    only: str | Iterable[str] | None = None,
    shard: tuple | None = None,
    tie: Mapping[str, str] | None = None,
    progress: Progress | bool = False,
    client: Client | None = None,
    comm: MPI.Intracomm | None = None,
    keep: Literal["always", "droppable"] = "always",
    priority: int = 0,
) -> Any:
    """Loads a model from safetensors files into the daemon's memory, and puts it under a name, in one
    step, when it is whole. What had the name lives on as long as somebody holds it.

    Memory for all of it is taken at first, while reading begins. A load that fails, or is interrupted, leaves
    nothing, and the name as it was.

    Parameters
    ----------
    model : path, or several
        A file; an index; or a folder, of which the index is read, or else each ``*.safetensors``.
    name : str
        "llama": the tensors' names are "llama/" and what the files call them.
    pool : str, optional
        The pool whose members may open it; by default the caller's own.
    device : int, str, or several
        Index in ``client.devices``, or a text: see there. With a list, each of these devices gets the whole model, and the
        files are read once: the first has it as "llama.0", the second as "llama.1", and so on. Different parts
        of a model for several devices are several loads with `shard`, which may run beside each other.
    memory : "device" or "pinned"
        "pinned": the model lies in the host's memory, page-locked, for engines that compute on the CPU or copy it
        themselves. `device` is that of whose driver the memory is locked.
    dtype : dtype, optional
        The type to which floating-point tensors are converted, on the host: "bfloat16", "float16",
        "float8_e4m3fn", ... Values that are too large become infinities. Types that NumPy lacks need ml_dtypes.
    only : pattern, or several
        Only tensors whose names match one of these (:mod:`fnmatch`) are loaded.
    shard : (rank, world), (rank, world, rows) or (rank, world, rows, columns), optional
        One of `world` equal parts is loaded, for tensor parallelism: of a tensor whose name matches one of
        the patterns `rows` a part of the first dimension, of `columns` a part of the second, of other tensors
        all. By default `ROWS` and `COLUMNS`, the names in Hugging Face's models.
    tie : mapping of str to str, optional
        Further names of tensors: ``{"lm_head.weight": "model.embed_tokens.weight"}`` gives one array both
        names. By default those that ``safetensors.torch.save_model()`` noted in the files' metadata: lines of
        two parameters' names that end alike.
    progress : bool or callable
        True: a bar on stderr or, if that is no terminal, a line after one second and then every ten. A function is
        called with the bytes read and the bytes to be read, ten times a second.
    client : Client, optional
        By default that of :func:`caid.default_client`.
    comm : mpi4py.MPI.Intracomm, optional
        All its ranks load the model together (:mod:`caid.mpi`): rank 0 reads, and one rank on each other machine
        is sent the bytes. The name appears on all machines, or, if one fails before that, on none. `model` and
        the choice of its tensors are rank 0's.
    keep : "always" or "droppable"
        "droppable": where memory is short, the daemon drops the model if no process has it open, and the next open()
        loads it again (docs/MODELS.md). The set's metadata tell others the paths of `model`.
    priority : int
        Of droppable models in a pool, those of a lower one are dropped first.

    Returns
    -------
    int, or list of int
        The version, on this machine; with several devices, that of each.

    Raises
    ------
    FormatError
        The files are no safetensors files, or not whole; all that their headers say is checked.
    OSError
        A file cannot be read, or has become shorter (ENODATA).
    OutOfMemoryError, QuotaError, LimitError
        There is not enough memory for the model, which shows at first; the message tells which
        processes hold earlier versions.
    InvalidError, InvalidNameError
        No tensors; a tensor that cannot be divided; a name that no array can have.
    AccessError, NotFoundError, ExistsError
        As :meth:`caid.Client.publish_many`.
    """
    prefix = prefix_of(name)
    is_several = isinstance(device, (list, tuple))
    prefixes = [f"{prefix[:-1]}.{i}/" for i in range(len(device))] if is_several else [prefix]
    if memory not in ("device", "pinned"):
        raise invalid(f"memory {memory!r}: weights are in \"device\" or \"pinned\" memory")

    if keep not in ("always", "droppable"):
        raise invalid(f"keep {keep!r}: it is \"always\" or \"droppable\"")
    if type(priority) is not int or not 0 <= priority < 1 << 64:
        raise invalid(f"priority {priority!r}: it is an int of 0 to 2**64 - 1")
    if priority and keep == "always":
        raise invalid(f"priority {priority}: a model that is kept has none; keep=\"droppable\"")
    began = time.monotonic_ns()
    paths = [model] if isinstance(model, (str, os.PathLike)) else model and list(model)  # None: another rank's
    only = [only] if isinstance(only, str) else None if only is None else list(only)
    shard = None if shard is None else _plan.shard_of(*shard)

    def plan():
        return _plan.make(read_model(paths), max(prefixes, key=len, default=prefix), dtype, only, shard, tie)

    show = _shown(progress, f"loading {prefix[:-1]}")
    if comm is not None:
        from . import _across

        if memory != "device" or is_several or keep == "droppable":
            raise invalid("comm: each machine has the model in memory of one device, and keeps it")
        return _across.load(comm, client, plan, prefix, pool=pool, device=device, progress=show)
    client = client or _default.default_client()
    devices = [client._index_of(one) for one in (device if is_several else [device])]
    if not devices or len(set(devices)) < len(devices):
        raise invalid(f"device {device!r}: each once, and one at least")
    if memory == "pinned" and keep == "droppable":
        raise invalid("memory=\"pinned\": the daemon drops models in the memory of devices")
    if memory == "pinned" and is_several:
        raise invalid("memory=\"pinned\" is the host's: of one device's driver")
    made, kept = plan(), None
    if keep == "droppable":
        kept = _again.keep_of(paths, made, priority, began, dtype, only, shard, tie)
    where = {"pool": pool, "devices": devices, "memory": memory}
    with _load.filled(client, made, prefixes, progress=show, keep=kept, **where) as loadings:
        versions = [loading.publish() for loading in loadings]
    return versions if is_several else versions[0]


def _shown(progress, what):
    if callable(progress):
        return progress
    return _progress.shown(what) if progress else _progress.none


def open(
    name: str,
    mode: Literal["r", "rw"] = "r",
    *,
    pool: str | None = None,
    wait: bool = False,
    timeout: float | None = None,
    client: Client | None = None,
    path: _Path | Iterable[_Path] | None = None,
) -> Weights:
    """Opens the current version of a model. Nothing is copied.

    A droppable model that made room for others is loaded again, by this process, as it was loaded before, or by another one
    that is at it already. It is a new version then.

    Parameters
    ----------
    name : str
        "llama", or "llama@7": StaleError unless version 7 is the current one.
    mode, pool, wait, timeout
        As for :meth:`caid.Client.open`, with its errors. `timeout` is for another process that loads it, too.
    client : Client, optional
        By default that of :func:`caid.default_client`.
    path : path, or several, optional
        From what a model is loaded again that was dropped. By default, what it was loaded from, if a process of the same
        user did that.

    Raises
    ------
    DroppedError
        The model was dropped, and this process does not load it: the pool may not be written, another user loaded it, or its
        set does not tell from what. The message says who can.
    TimedOutError
        Another process, whom the message names, has not loaded it in time.
    caid.Error, OSError, FormatError
        As for load(). The model stays dropped.

    Warns
    -----
    UserWarning
        The files have changed since the version before was loaded.
    """
    client = client or _default.default_client()
    prefix, version = parse(name)
    if version is not None:  # what is loaded again is another one
        return of_set(client, name, client.open_set(prefix, mode, pool=pool, wait=wait, timeout=timeout))
    return of_set(client, name, _again.open_set(client, prefix, mode, pool, wait=wait, timeout=timeout, path=path))


async def async_open(
    name: str,
    mode: Literal["r", "rw"] = "r",
    *,
    pool: str | None = None,
    timeout: float | None = None,
    client: Client | None = None,
    path: _Path | Iterable[_Path] | None = None,
) -> Weights:
    """open(wait=True), for asyncio. Parameters and errors as for open(). What was dropped is loaded in a thread."""
    client = client or _default.default_client()
    prefix, version = parse(name)
    try:
        opened = await client.async_open_set(prefix, mode, pool=pool, timeout=timeout)
    except DroppedError:
        if version is not None:
            raise
        opened = await _again.async_reopen(client, prefix, mode, pool, timeout, path)
    return of_set(client, name, opened)


def save(
    weights: Weights | str,
    path: _Path,
    *,
    pool: str | None = None,
    progress: Progress | bool = False,
    client: Client | None = None,
) -> None:
    """Writes a version of a model to one safetensors file, which appears when it is whole. Tensors are
    byte for byte what they are in memory. An array with two names is written once, and load() finds the
    second name where ``safetensors.torch.save_model()`` would note it.

    Parameters
    ----------
    weights : Weights or str
        A version, or the name of a model, as for open().
    path : path
        A file, also through symbolic links, or a pipe. An existing file is replaced, if the caller may write
        it, and keeps its owner, mode, ACL and extended attributes. If it cannot be replaced so (the caller may
        not set these, or may not change the folder, or the file is mounted), it is written in place.
    pool, client
        Those of a model that is given by its name.
    progress
        As for load().

    Raises
    ------
    TypeError
        safetensors lacks the type of an array.
    OSError
        The file cannot be written, or is neither a regular file nor a pipe. Its contents are as before, unless the
        error says that it was written in place and is no longer whole.
    """
    if isinstance(weights, str):
        with open(weights, pool=pool, client=client) as opened:
            return save(opened, path, progress=progress)
    _save.save(weights, path, _shown(progress, f"saving {weights.name}"))


def unload(name: str, *, pool: str | None = None, client: Client | None = None) -> None:
    """Takes a model's name away. Its memory is given back when no worker holds it any more.
    NotFoundError, AccessError."""
    (client or _default.default_client()).unlink(prefix_of(name), pool=pool)


def from_torch(module: torch.nn.Module, name: str, *, metadata: Any = None) -> int:
    """Puts a module's parameters and buffers under a name, as load() does, but without a copy: its tensors
    have to lie in caid's memory (:class:`caid.torch.MemPool`). They are kept until nobody can reach that
    version any more.

    Parameters
    ----------
    module : torch.nn.Module
        The module, whose ``state_dict()`` is published. Tied parameters are one tensor to readers.
    name : str
        As for load(), in the pool that was given to MemPool.
    metadata : object, optional
        The later ``Weights.metadata``.

    Returns
    -------
    int
        The version.

    Raises
    ------
    ValueError
        A tensor is not in caid's memory.
    """
    from . import _torch

    return _torch.publish(module.state_dict(), prefix_of(name), metadata)


def publisher(
    name: str,
    like: Any,
    *,
    versions: int = 2,
    pool: str | None = None,
    device: int | str | None = None,
    timeout: float | None = None,
    client: Client | None = None,
) -> Publisher:
    """What publishes versions of a model again and again, as a training loop does for its inference workers::

        with caid.weights.publisher("actor", like=model) as p:
            for batch in batches:
                train(model, batch)
                p.publish(model.state_dict())    # returns at once; workers find it when it is whole

    A version has one block of memory. So many of them are made once, and written in turn, each when nobody has the
    version any more that lies there: no memory is taken, and no array made, for a new version, and workers that have
    the blocks mapped map nothing. A name has one publisher at a time, which it has to itself until that is closed, or
    its process has exited. The next goes on with the current version, and makes the others anew; where that has other
    tensors than `like`, or was not made by a publisher, all of them.

    Parameters
    ----------
    name : str
        "actor": workers open it by :func:`open`. What has the name is displaced by the first version.
    like : torch.nn.Module, Weights, or mapping of str to tensors, arrays or pairs
        The tensors of each version: what has a shape and a dtype, or (shape, dtype). Of a module, those of its
        ``state_dict()``. What is one tensor under two keys is one in each version. They may be on device "meta".
    versions : int
        How many there may be at a time, 2 or more: the current one, the one that is written, and, from 3 on, such
        that workers have longer.
    pool : str, optional
        The pool whose members may open it; by default the caller's own.
    device : int or str, optional
        Index in ``client.devices``, or a text: see there. Without it the one on which the tensors of `like` are, or the first.
    timeout : float, optional
        Seconds to wait for another publisher of the name; 0: not at all. Without it, without end.
    client : Client, optional
        By default that of :func:`caid.default_client`.

    Returns
    -------
    Publisher
        To be closed.

    Raises
    ------
    TimedOutError, DeadlockError
        Another publisher, whom the message names, has not closed in time; it is this thread's own.
    InvalidError, InvalidNameError
        No tensors; what has no shape or no type; a name that no array can have: the message says which.
    OutOfMemoryError, QuotaError, LimitError
        There is no memory for so many versions.
    AccessError, NotFoundError
        The pool may not be written; may not be seen.
    """
    return _publisher.create(client or _default.default_client(), name, like, versions, pool, device, timeout)
