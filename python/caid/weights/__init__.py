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
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, Mapping, Union

from .._session import _default
from .._session._client import Client
from . import _load, _plan, _progress, _save
from ._plan import COLUMNS, ROWS
from ._safetensors import FormatError, read_model
from ._weights import Weights, open_weights, prefix_of

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

_Path = Union[str, "os.PathLike[str]"]
Progress = Callable[[int, int], None]  # bytes done, bytes in all

__all__ = ["COLUMNS", "FormatError", "ROWS", "Weights", "from_torch", "load", "open", "save", "unload"]


def load(
    model: _Path | Iterable[_Path],
    name: str,
    *,
    pool: str | None = None,
    device: int | str = 0,
    dtype: Any = None,
    only: str | Iterable[str] | None = None,
    shard: tuple | None = None,
    tie: Mapping[str, str] | None = None,
    progress: Progress | bool = False,
    client: Client | None = None,
    comm: MPI.Intracomm | None = None,
) -> int:
    """Loads a model from safetensors files into the daemon's memory, and puts it under a name, in one
    step, when it is whole. What had the name lives on as long as somebody holds it.

    Memory for all of it is taken before anything is read. A load that fails, or is interrupted, leaves
    nothing, and the name as it was.

    Parameters
    ----------
    model : path, or several
        A file; a folder, of which the index is read, or else each ``*.safetensors``; an index.
    name : str
        "llama": the tensors' names are "llama/" and what the files call them.
    pool : str, optional
        Whose members may open it; without it, the caller's own.
    device : int or str
        Index in ``client.devices``, or UUID.
    dtype : dtype, optional
        What floating-point tensors become, on the host: "bfloat16", "float16", "float8_e4m3fn", ...;
        what is too large for it becomes an infinity. Types that NumPy has not need ml_dtypes.
    only : pattern, or several
        Tensors whose names match one (:mod:`fnmatch`).
    shard : (rank, world), (rank, world, rows) or (rank, world, rows, columns), optional
        One of `world` equal parts, as tensor parallelism has them: of each tensor whose name matches
        one of the patterns `rows` a part of its first dimension, of `columns` of its second, of others
        all. Without them: `ROWS` and `COLUMNS`, the names in Hugging Face's models.
    tie : mapping of str to str, optional
        Further names of tensors: ``{"lm_head.weight": "model.embed_tokens.weight"}``; one array has
        both. Without it, what ``safetensors.torch.save_model()`` noted in the files' metadata: lines of two
        parameters' names that end alike.
    progress : bool or callable
        True: a bar on stderr, or a line after a second and each ten where that is no terminal. A function is
        called with the bytes read and the bytes to be read, ten times a second.
    client : Client, optional
        Without it, :func:`caid.default_client`.
    comm : mpi4py.MPI.Intracomm, optional
        All its ranks load the model together: rank 0 reads, one rank on each other machine is sent the bytes,
        and the name is there on all machines, or, where it fails on one before that, on none
        (:mod:`caid.mpi`). `model` and what is taken of it count at rank 0.

    Returns
    -------
    int
        The version, on this machine.

    Raises
    ------
    FormatError
        No safetensors files, or not whole ones: nothing of a header is believed.
    OSError
        A file cannot be read, or has become shorter (ENODATA).
    OutOfMemoryError, QuotaError, LimitError
        There is no room for it beside what is there, before anything is read: the message tells which
        processes hold earlier versions.
    InvalidError, InvalidNameError
        No tensors; a tensor that cannot be divided; a name that no array can have.
    AccessError, NotFoundError, ExistsError
        As :meth:`caid.Client.publish_many`.
    """
    prefix = prefix_of(name)

    def plan():
        paths = [model] if isinstance(model, (str, os.PathLike)) else model
        return _plan.make(read_model(paths), prefix, dtype, only, shard, tie)

    show = _shown(progress, f"loading {prefix[:-1]}")
    if comm is not None:
        from . import _across

        return _across.load(comm, client, plan, prefix, pool=pool, device=device, progress=show)
    client = client or _default.default_client()
    return _load.load(client, plan(), prefix, pool=pool, device=client._index_of(device), progress=show)


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
) -> Weights:
    """Opens the current version of a model. Nothing is copied.

    Parameters
    ----------
    name : str
        "llama"; "llama@7" if it is version 7 that is current, else StaleError.
    mode, pool, wait, timeout
        As for :meth:`caid.Client.open`, with its errors.
    client : Client, optional
        Without it, :func:`caid.default_client`.
    """
    return open_weights(client or _default.default_client(), name, mode, pool, wait, timeout)


def save(
    weights: Weights | str,
    path: _Path,
    *,
    pool: str | None = None,
    progress: Progress | bool = False,
    client: Client | None = None,
) -> None:
    """Writes a version of a model to one safetensors file, which is there when it is whole. Tensors are
    byte for byte what they are in memory; an array with two names is written once, as
    ``safetensors.torch.save_model()`` does it, where load() will find the other one.

    Parameters
    ----------
    weights : Weights or str
        Or the name of a model, as for open().
    path : path
        Of a file, by links or not, or of a pipe. What it has before is replaced, if the caller may write
        it, and its owner, mode, ACL and attributes stay. Where that cannot be (they are not the caller's to
        give, the folder is not his to change, or the file is mounted), the file is written in place.
    pool, client
        Of a model that is given by its name.
    progress
        As for load().

    Raises
    ------
    TypeError
        safetensors has no type for an array's.
    OSError
        The file cannot be written, or is neither a regular one nor a pipe. It has what it had before, unless the
        error says that it was written in place, and is no longer whole.
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
    """Puts a module's parameters and buffers under a name, as load() does, without a copy: its tensors
    lie in caid's memory (:class:`caid.torch.MemPool`). They are kept until nobody can reach that
    version any more.

    Parameters
    ----------
    module : torch.nn.Module
        Of ``state_dict()``. Tied parameters are one array.
    name : str
        As for load(), in the pool that was given to MemPool.
    metadata : object, optional
        What ``Weights.metadata`` gives.

    Returns
    -------
    int
        The version.

    Raises
    ------
    ValueError
        A tensor lies elsewhere.
    """
    from . import _torch

    return _torch.publish(module.state_dict(), prefix_of(name), metadata)
