# SPDX-License-Identifier: Apache-2.0
"""Named arrays in GPU memory, shared between processes by the daemon caid(8).

>>> import caid
>>> d = caid.LocalDaemon()                           # a private daemon, if none runs as a service
>>> c = d.connect()                                  # of the service: caid.connect()
>>> a = c.create("weights", (1024, 768), "<f4")      # in one process
>>> b = c.open("weights")                            # in another: the same memory

Arrays have a ``__cuda_array_interface__`` and a ``__dlpack__``: hand them to CuPy, Numba, PyTorch,
JAX, ...

>>> c.empty((1024, 768), "<f4").publish("weights")   # replaces it, at once and as a whole
>>> for change in c.watch("weights"): ...            # waits for that

>>> with b.read(s) as v: ...                         # on a stream, after whoever writes it

>>> arena = c.arena()                                # allocates for other libraries, and publishes
>>> arena.publish("weights", tensor)                 # what they have made there, without a copy

Where to look next, by ``help()``:

LocalDaemon              a daemon of one's own: for a notebook or a test
Client                   names, sets, memory, figures: what connect() gives
Array, Set               what has a name: shape, copies, publishing
Bracket                  Array.read() and Array.write(): hand-off between streams
Stream, Event, Timeline  the order of work on devices
Channel, Frame           frames from one process to many, with nobody on the way
Watch, Reference         changes of a name; an array as a few bytes, for other processes
Arena, Allocation        memory for other libraries' allocators
Error                    what every refusal is: NotFoundError, QuotaError, NoDaemonError, ...

Modules, which are imported when they are named:

caid.weights             model weights from safetensors files, loaded once, swapped under load
caid.storage             fields of weather and climate codes, on the host and the device
caid.torch, caid.cupy, caid.numba, caid.cuda_core, caid.rmm
                         other libraries' arrays in caid's memory
caid.dask, caid.mpi, caid.ray, caid.vllm
                         arrays between workers, ranks and actors

What users of Numba know is here by its names: ``to_device()``, ``pinned_array()``, ``mapped()``, ...
"""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from . import storage, weights  # noqa: F401
    from ._session._daemon import LocalDaemon

from . import _caid, _reference  # noqa: F401
from ._base import _errors, _records  # noqa: F401
from ._base._errors import *  # noqa: F403
from ._base._records import *  # noqa: F403
from ._base._strict import strict_device
from ._handoff._event import Event
from ._handoff._stream import Stream
from ._handoff._timeline import Timeline
from ._interfaces import _numba  # noqa: F401
from ._interfaces._numba import *  # noqa: F403
from ._interfaces._reference import Reference
from ._memory._arena import Allocation, Arena
from ._memory._array import Array
from ._memory._bracket import Bracket
from ._memory._cai import as_array, from_cuda_array_interface
from ._memory._dlpack import from_dlpack
from ._memory._dmabuf import DmaBuf
from ._memory._set import Reservation, Set
from ._session._channel import Channel, Frame
from ._session._client import Client
from ._session._default import default_client
from ._session._watch import Watch

if _typing.TYPE_CHECKING:
    import os

__version__ = _caid.version()

as_cuda_array = as_array  # Numba's name
TimeoutError = _errors.TimedOutError  # not in __all__: the built-in one is its base


def connect(
    address: str | bytes | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    driver: str | None = None,
    timeout: float | None = None,
    call_timeout: float | None = None,
    reconnect_timeout: float | None = None,
) -> Client:
    """Connects to the daemon: a :class:`Client`, whose parameters these are."""
    return Client(
        address,
        name=name,
        driver=driver,
        timeout=timeout,
        call_timeout=call_timeout,
        reconnect_timeout=reconnect_timeout,
    )


async def async_connect(
    address: str | bytes | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    driver: str | None = None,
    timeout: float | None = None,
    call_timeout: float | None = None,
    reconnect_timeout: float | None = None,
) -> Client:
    """connect(), for asyncio, in a thread. Where the task is cancelled, the client is closed again."""
    from ._base import _away

    made: list[Client] = []

    def make():
        made.append(
            connect(
                address,
                name=name,
                driver=driver,
                timeout=timeout,
                call_timeout=call_timeout,
                reconnect_timeout=reconnect_timeout,
            )
        )

    await _away.once(make, lambda: made[0].close())
    return made[0]


def softcuda_path() -> str:
    """Where the software CUDA driver of this installation is: a path for NUMBA_CUDA_DRIVER and
    the like. Raises Error where it is not installed."""
    return _caid.softcuda_path()


__all__ = [
    "Allocation",
    "Arena",
    "Array",
    "Bracket",
    "Channel",
    "Client",
    "DmaBuf",
    "Event",
    "Frame",
    "LocalDaemon",
    "Reference",
    "Reservation",
    "Set",
    "Stream",
    "Timeline",
    "Watch",
    "as_array",
    "as_cuda_array",
    "async_connect",
    "connect",
    "default_client",
    "from_cuda_array_interface",
    "from_dlpack",
    "softcuda_path",
    "strict_device",
    *_errors.__all__,
    *_numba.__all__,
    *_records.__all__,
]


def _show(what):
    """By the names that users know, and of no private module: in tracebacks, pickles and help()."""
    for part in getattr(what, "__mro__", (what,)):
        if part.__module__.startswith("caid."):
            part.__module__ = __name__


for _name in set(__all__) - {"LocalDaemon"}:
    _show(globals()[_name])
del _name

_OURS = ("storage", "weights")
_OTHERS = ("cuda_core", "cupy", "dask", "mpi", "numba", "ray", "rmm", "torch")  # want their libraries

if not _typing.TYPE_CHECKING:  # which would take every name for one that is there

    def __getattr__(name: str) -> object:
        if name == "LocalDaemon":  # a third of the time that importing all would take
            from ._session import _daemon

            _show(_daemon.LocalDaemon)
            globals()[name] = _daemon.LocalDaemon
            return _daemon.LocalDaemon
        if name not in _OURS + _OTHERS:
            raise AttributeError(f"module 'caid' has no attribute {name!r}")
        import importlib

        try:
            return importlib.import_module(f"caid.{name}")
        except ImportError as e:  # hasattr() and completion take no other error
            raise AttributeError(f"caid.{name}: {e}") from e

    def __dir__() -> list[str]:
        """No module that imports another library: completion looks at all that is named here."""
        return [*(name for name in globals() if name.startswith("__")), *__all__, "TimeoutError", *_OURS]
