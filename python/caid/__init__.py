# SPDX-License-Identifier: Apache-2.0
"""Named arrays in GPU memory, shared between processes by the daemon caid(8).

>>> import caid
>>> c = caid.connect()
>>> a = c.create("weights", (1024, 768), "<f4")      # in one process
>>> b = caid.connect().open("weights")               # in another: the same memory

Arrays have a ``__cuda_array_interface__`` and a ``__dlpack__``: hand them to CuPy, Numba, PyTorch,
JAX, ...

>>> c.empty((1024, 768), "<f4").publish("weights")   # replaces it, at once and as a whole
>>> for change in c.watch("weights"): ...            # waits for that

>>> with b.read(s) as v: ...                         # on a stream, after whoever writes it

>>> arena = c.arena()                                # allocates for other libraries, and publishes
>>> arena.publish("weights", tensor)                 # what they have made there, without a copy

What users of Numba know is here by its names: ``to_device()``, ``pinned_array()``, ``mapped()``, ...
"""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
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
from ._memory._set import Reservation, Set
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


def softcuda_path() -> str:
    """Where the software CUDA driver of this installation is: a path for NUMBA_CUDA_DRIVER and
    the like. Raises Error where it is not installed."""
    return _caid.softcuda_path()


__all__ = [
    "Allocation",
    "Arena",
    "Array",
    "Bracket",
    "Client",
    "Event",
    "LocalDaemon",
    "Reference",
    "Reservation",
    "Set",
    "Stream",
    "Timeline",
    "Watch",
    "as_array",
    "as_cuda_array",
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

if not _typing.TYPE_CHECKING:  # which would take every name for one that is there

    def __getattr__(name: str) -> object:
        if name == "LocalDaemon":  # a third of the time that importing all would take
            from ._session import _daemon

            _show(_daemon.LocalDaemon)
            globals()[name] = _daemon.LocalDaemon
            return _daemon.LocalDaemon
        raise AttributeError(f"module 'caid' has no attribute {name!r}")
