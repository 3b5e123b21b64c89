# SPDX-License-Identifier: Apache-2.0
"""Arrays in Dask: within a machine by reference, between machines by value.

>>> import caid.dask
>>> client = distributed.Client(cluster)
>>> client.register_plugin(caid.dask.Plugin())
>>> x = client.submit(make)                    # returns a caid.Array, or a CuPy array in caid's memory
>>> client.submit(use, x, workers=[other])     # of the same daemon: opens it, nothing is copied

Workers known to be at the same daemon get a :class:`caid.Reference`. Other workers, and the scheduler, get
the bytes: in frames on the device if the transport takes those (UCX) and CuPy is installed, else in frames on
the host. Other objects are sent as they are without this module.

Each worker of Dask-CUDA has a GPU of its own, from which it reaches the memory of a reference, over the peer
link if that lies on another GPU.

An array's memory stays as long as Dask has the array's key, or a worker has the array open. Dask counts its
bytes as it counts NumPy's, against the worker's ``memory_limit``, and spills it to disk by the same rules. A
worker that has no room for an array, or may not open it, logs why, and asks for it again: :class:`caid.Error`
is an OSError, which Dask takes for a failed transfer.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import pickle
import sys
import weakref
from typing import Any, Callable

import dask
import dask.array
from dask.base import normalize_token
from dask.sizeof import sizeof
from distributed import Worker, WorkerPlugin
from distributed.protocol import cuda_deserialize, cuda_serialize, dask_deserialize, dask_serialize
from distributed.protocol.serialize import register_serialization_family

from ._base import _errors, _typestr
from ._interfaces._reference import Reference
from ._memory import _cai
from ._memory._array import Array
from ._session import _default

__all__ = ["Plugin", "from_set", "to_set"]

_FAMILY = "caid"


def _place(client):
    """What the two ends of a connection tell each other: machine and daemon."""
    return [client.machine_id, client.daemon_id]


class Plugin(WorkerPlugin):
    """Connects each worker to its daemon, and sends what lies there by reference.

    Register it by ``client.register_plugin()``, with any cluster. A worker's daemon is that of
    :func:`caid.default_client` in its process: ``$CAID_SOCKET`` names it.

    Parameters
    ----------
    cupy : bool
        Whether what CuPy allocates in the workers lies in caid's memory, so that CuPy's arrays go by
        reference, too (:class:`caid.cupy.Allocator`).
    """

    name = "caid"

    def __init__(self, cupy: bool = False):
        self._cupy = cupy

    def setup(self, worker: Worker) -> None:
        client, rpc, args = _default.default_client(), worker.rpc, worker.connection_args
        get_data, before = worker.handlers["get_data"], args.get("handshake_overrides")
        families = rpc.serializers, rpc.deserializers
        with contextlib.ExitStack() as undo:
            if self._cupy:
                undo.callback(_allocate_in(client))
            undo.callback(worker.handlers.update, get_data=get_data)
            worker.handlers["get_data"] = _knowing_its_receiver(get_data)
            undo.callback(args.update, handshake_overrides=before)
            args["handshake_overrides"] = {**(before or {}), _FAMILY: _place(client)}
            undo.callback(_set_families, rpc, *families)
            _set_families(rpc, *[[_FAMILY, *(families[0] or _serializers_of(worker.address))]] * 2)
            self._undo = undo.pop_all()

    def teardown(self, worker: Worker) -> None:
        self._undo.close()

    def __reduce__(self):
        return type(self), (self._cupy,)


def _allocate_in(client):
    """Has CuPy allocate in caid's memory. Returns a function that restores the former allocator."""
    import cupy

    from . import cupy as of_cupy

    former = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(of_cupy.Allocator(client).malloc)
    return functools.partial(cupy.cuda.set_allocator, former)


def _set_families(rpc, serializers, deserializers):
    rpc.serializers, rpc.deserializers = serializers, deserializers
    rpc.collect()  # connections that were made before tell their ends otherwise


def _own_device(client):
    """The device on which a worker opens arrays: of Dask-CUDA, which gives each worker a GPU, the worker's
    first. None: each array's own."""
    return client._find_device(0) if "dask_cuda" in sys.modules else None


def _serializers_of(address):
    device = ["cuda"] if address.startswith("ucx") else []
    return [*device, "dask", "pickle", "error"]


@sizeof.register(Array)
def _size_of(array):
    return array.nbytes


class _Contents:
    """The contents of an array, which anybody may change. It cannot be pickled: so Dask makes no name of it
    that would be used again, and raises with ``tokenize.ensure-deterministic``."""

    def __init__(self, array):
        self._array = array

    def __repr__(self):
        return f"the contents of {self._array._told()}"

    def __reduce__(self):
        raise TypeError(f"{self!r} are in device memory")


@normalize_token.register(Array)
def _token_of(array):
    return normalize_token(_Contents(array))


# --- by reference ---------------------------------------------------------------------------

_receiver: contextvars.ContextVar = contextvars.ContextVar("receiver", default=None)  # its _place()


def _knowing_its_receiver(get_data):
    """Wraps a worker's get_data, so that serialisers know their receiver: only some transports tell it."""

    @functools.wraps(get_data)
    async def handler(comm, *args, **options):
        token = _receiver.set(comm.remote_info.get(_FAMILY))
        try:
            return await get_data(comm, *args, **options)
        finally:
            _receiver.reset(token)

    return handler


_references: dict = {}  # id of an object that was sent: its Reference, as long as it lives


def _reference_to(x, array):
    """The Reference to the array that x is, or lies in. Any number of receivers may open it while x lives: a
    worker keeps its key as long as a message is under way."""
    reference = _references.get(id(x))
    if reference is None:
        made = Reference(array)
        reference = _references.setdefault(id(x), made)
        if reference is made:
            weakref.finalize(x, lambda key: _references.pop(key).close(), id(x))
        else:
            made.close()
    return reference


_received: dict = {}  # id of a CuPy array that came by reference: the Array whose memory it has, as long as it lives


def _lying(x):
    """An Array of the same memory. Of a CuPy array it keeps the memory, not the array itself, with which the
    reference ends."""
    if isinstance(x, Array):
        return x.view()
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(x, cupy.ndarray):
        raise NotImplementedError(type(x).__name__)
    with _cai.as_array(x):  # waits for its stream
        if id(x) in _received:
            return _received[id(x)].view()
        return _cai.from_cuda_array_interface(x.__cuda_array_interface__, x.data.mem, False)


def _to_cupy(array):
    import cupy

    return cupy.from_dlpack(array)  # asarray() copies from the device that the memory lies on


# Why memory is not sent by reference: it is not the daemon's, its layout is one that no name shows, or no
# lease is left.
_NOT_SENT = TypeError, _errors.InvalidError, _errors.LimitError, _errors.QuotaError


def _dump_reference(x):
    to, reference = _receiver.get(), None
    if to:
        with contextlib.suppress(*_NOT_SENT), _lying(x) as array:
            reference = _reference_to(x, array)
    if not reference or list(to) != [reference.machine_id, reference.daemon_id]:
        raise NotImplementedError(type(x).__name__)
    return {"cupy": not isinstance(x, Array), "reference": pickle.dumps(reference)}, []


def _load_reference(header, _frames):
    reference = pickle.loads(header["reference"])
    client = _default.client_at(reference.daemon_id)
    with reference.open(client, device=_own_device(client)) as array:
        view = array.view()
    if not header["cupy"]:
        return view
    x = _to_cupy(view)
    _received[id(x)] = view
    weakref.finalize(x, _received.pop, id(x))
    return x


register_serialization_family(_FAMILY, _dump_reference, _load_reference)

# --- by value -------------------------------------------------------------------------------

_SPARE = 64 << 20  # bytes of frames that are kept in any case


def _describe(array):
    element = array._layout.element
    f_order = array.is_f_contiguous() and not array.is_c_contiguous()
    return {
        "shape": array.shape,
        "element": (element.type_name, element.itemsize, element.descr),
        "order": "F" if f_order else "C",
    }


def _like(header):
    element = _typestr.element_of(*header["element"])
    client = _default.default_client()
    device = _own_device(client) or 0
    return client.empty(tuple(header["shape"]), element, order=header["order"], device=device)


@dask_serialize.register(Array)
def _to_host(array):
    header = _describe(array)
    host = (array.T if header["order"] == "F" else array).copy_to_host()
    return header, [memoryview(host.reshape(-1).view("u1"))]


@dask_deserialize.register(Array)
def _from_host(header, frames):
    """The array; a NumPy array in a process without a daemon, such as a user's."""
    dtype = _typestr.to_numpy(_typestr.element_of(*header["element"]))
    frame = frames[0] if len(frames) == 1 else b"".join(frames)
    host = _typestr.numpy().ndarray(header["shape"], dtype, frame, order=header["order"])
    try:
        array = _like(header)
    except _errors.NoDaemonError:
        return host
    with array:
        if array.nbytes:
            array.copy_from_host(host)
        return array.view()


@functools.lru_cache(maxsize=None)
def _frames():
    """A pool of memory that transports can map in another process, which they cannot do with caid's. The same
    memory again is mapped there already: cudaMalloc() and its mapping take longer than the copy."""
    try:
        import cupy
    except ImportError:
        raise NotImplementedError("frames on the device need CuPy") from None
    return cupy.cuda.MemoryPool()


def _device_frame(nbytes):
    pool = _frames()
    if pool.free_bytes() > 2 * nbytes + _SPARE:  # of frames that were larger
        pool.free_all_blocks()
    import cupy

    return cupy.ndarray(nbytes, "u1", pool.malloc(max(nbytes, 1)))


@cuda_serialize.register(Array)
def _to_device(array):
    header = _describe(array)
    frame = _device_frame(array.nbytes)
    if array.nbytes:
        with _cai.as_array(frame) as lent, _unflattened(lent, header) as target:
            target.copy_from(array)
    return header, [frame]


@cuda_deserialize.register(Array)
def _from_device(header, frames):
    with _like(header) as array:
        if array.nbytes:
            with _cai.as_array(frames[0]) as lent, _unflattened(lent, header) as source:
                array.copy_from(source)
        return array.view()


def _unflattened(flat, header):
    """The bytes of a frame, as an array of the sent shape and type."""
    shape, element = header["shape"], _typestr.element_of(*header["element"])
    typed = flat.view(element)
    return typed.reshape(tuple(shape)[::-1]).T if header["order"] == "F" else typed.reshape(tuple(shape))


# --- dask.array -----------------------------------------------------------------------------


def from_set(name: str, *, pool: str | None = None, asarray: Callable | None = None) -> dask.array.Array:
    """A dask.array whose chunks are the arrays of a set, as :func:`to_set` has made it: their keys are
    their places in it, ``"0.1"`` (as Zarr has them).

    Parameters
    ----------
    name : str
        The set's whole name: ``"field/"``.
    asarray : callable, optional
        Makes what is computed with from a caid.Array. Default: a CuPy array, or a NumPy array on the software
        driver, without a copy.

    Notes
    -----
    The chunks are of the set's present version: if that has gone when a chunk is computed, StaleError is raised.
    A worker at another daemon raises NotFoundError: choose workers at this one by ``compute(workers=)``.

    Raises
    ------
    NotFoundError, AccessError
    ValueError
        The keys form no grid, or the shapes do not fit together.
    """
    client = _default.default_client()
    with client.open_set(name, pool=pool) as opened:
        keys = {_place_of(key): key for key in opened}
        chunks = _chunks_of({_place_of(key): entry.shape for key, entry in opened.entries().items()})
        with next(iter(opened.values())) as array:
            dtype, label = array.dtype, "caid-" + dask.base.tokenize(array)
        generation = opened.generation
    asarray = asarray or (_typestr.numpy().asarray if client.host_accessible else _to_cupy)
    task = _open_chunk, client.daemon_id, generation, pool, asarray
    graph = {(label, *place): (*task, name + key) for place, key in keys.items()}
    return dask.array.Array(graph, label, chunks, dtype=dtype)


def _place_of(key):
    try:
        return tuple(int(index) for index in key.split(".")) if key != "-" else ()
    except ValueError:
        raise ValueError(f"key {key!r} is no place of a chunk, as '0.1'") from None


def _chunks_of(shapes):
    """The extents of chunks along each axis, from the chunks' shapes by place."""
    along: list[dict] = [{} for _ in next(iter(shapes))]
    for place, shape in shapes.items():
        for extents, i, extent in zip(along, place, shape):
            extents[i] = extent
    chunks = tuple(tuple(extents[i] for i in sorted(extents)) for extents in along)
    grid = itertools.product(*(range(len(extents)) for extents in chunks))
    if shapes != {place: tuple(c[i] for c, i in zip(chunks, place)) for place in grid}:
        raise ValueError("the arrays of the set are no chunks of one array")
    return chunks


def _open_chunk(daemon_id, generation, pool, asarray, name):
    client = _default.client_at(daemon_id)
    if client.daemon_id != daemon_id:
        raise _errors.not_found(f"{name!r} is at daemon {daemon_id}, this worker at {client.daemon_id}")
    with client.open(name, pool=pool, generation=generation, device=_own_device(client)) as array:
        return asarray(array.view())


def to_set(x: dask.array.Array, name: str, *, metadata: Any = None) -> Any:
    """Puts a dask.array under a name, one array for each chunk, in one step: a set, which
    :func:`from_set` reads. Returns a :class:`dask.delayed.Delayed` of its generation.

    Chunks that lie in the memory of the daemon of the worker that publishes are not copied: caid.Arrays,
    and CuPy's arrays in memory of an Arena.
    """
    places = ["-"] if x.ndim == 0 else [".".join(map(str, place)) for place in itertools.product(*map(range, x.numblocks))]
    blocks = x.to_delayed().ravel().tolist()
    arrays = [dask.delayed(_to_caid)(block) for block in blocks]
    return dask.delayed(_publish)(name, places, arrays, metadata)


def _to_caid(x):
    if isinstance(x, Array):
        return x
    client = _default.default_client()
    with contextlib.suppress(*_NOT_SENT, NotImplementedError, _errors.NotFoundError):
        with _lying(x) as array, Reference(array) as reference:
            return reference.open(client)
    with client.empty(x.shape, x.dtype, device=_own_device(client) or 0) as array:
        array.copy_from(x)
        return array.view()


def _publish(name, places, arrays, metadata):
    client = _default.default_client()
    return client.publish_many(name, dict(zip(places, arrays)), metadata=metadata)
