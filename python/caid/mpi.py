# SPDX-License-Identifier: Apache-2.0
"""Arrays between the ranks of MPI: on one machine by reference, between machines by value. Needs mpi4py.

>>> import caid.mpi
>>> from mpi4py import MPI
>>> comm = MPI.COMM_WORLD
>>> a = caid.mpi.bcast_by_reference(comm, a if comm.rank == 0 else None)
>>> with caid.mpi.Halo(u, comm.Create_cart([2, 2])) as halo:      # of a caid.storage
...     halo.exchange()

A CUDA-aware MPI takes a caid array as it is; with any other, the bytes go by page-locked memory. An error at
one rank is raised at all ranks of the communicator, and no rank waits for one that has failed.
"""

from __future__ import annotations

import contextlib
import errno
import math
import pickle
from typing import TYPE_CHECKING, Any, Iterator

from mpi4py import MPI

from ._base._errors import CancelledError, closed, invalid
from ._base._lifetime import Closing
from ._interfaces._reference import Reference
from ._interfaces._staging import Lane
from ._memory import _array, _cai
from ._session import _default

if TYPE_CHECKING:
    from ._memory._array import Array
    from ._session._client import Client
    from .storage import Storage

__all__ = ["Halo", "bcast_by_reference", "machine_comm"]

CHUNK = 4 << 20  # bytes that are sent at a time


def machine_comm(comm: MPI.Intracomm, client: Client | None = None) -> MPI.Intracomm:
    """A communicator of the ranks at this rank's daemon: they open each other's arrays without a copy. MPI's
    split by shared memory would not do: containers on one machine may share a daemon, and users on one
    machine may have daemons of their own. Collective. `client`: by default that of :func:`caid.default_client`."""
    with Phase(comm) as phase:
        phase.value = place(client or _default.default_client())
    return comm.Split(phase.values.index(phase.value), comm.rank)


def bcast_by_reference(
    comm: MPI.Intracomm, a: Any, root: int = 0, *, client: Client | None = None, pool: str | None = None,
    device: int | str = 0, cuda_aware: bool | None = None,
) -> Array:
    """Gives an array to all ranks: those at its daemon open it, without a copy. Each other machine is sent
    the bytes once, to a rank that makes an array of them, which the others there open. Collective.

    Parameters
    ----------
    a : Array, or any object in memory of an Arena
        Used at `root` only. Work on it that caid knows of is waited for.
    client : Client, optional
        By default that of :func:`caid.default_client`; at `root` the array's own.
    pool, device : optional
        Where the array on another machine is made.
    cuda_aware : bool, optional
        Whether MPI takes device memory. By default what MPI says (``mpi_memory_alloc_kinds`` of MPI 4.1), and no
        if it says nothing.

    Returns
    -------
    Array
        Of the same type and shape, dense on other machines with the dimensions in the same order; in the mode of
        `a`. It is the caller's to close, and lives as long as a rank of that machine has it.

    TypeError: `a` is not in a daemon's memory. CancelledError: another rank has failed, which the message names.
    """
    with contextlib.ExitStack() as stack:
        with Phase(comm) as phase:
            if comm.rank == root:
                a = a if isinstance(a, _array.Array) else _cai.as_array(a)
                a.synchronize()
                phase.value = stack.enter_context(Reference(a))
                client, device = phase.value._kept[0][0], max(a._memory.mapped_device, 0)
            else:
                client = client or _default.default_client()
                phase.value = place(client)
        first = phase.values[root]
        machines = Machines(phase.values, root)
        references = [first] * comm.size
        if machines.several:
            with Phase(comm) as phase:
                direct = is_cuda_aware(comm, cuda_aware)
                if machines.leads(comm.rank):
                    array = a if comm.rank == root else stack.enter_context(_like(first, client, pool, device))
                    ordered = array.transpose(_order(first.strides)) if array.ndim else array
                    lane = stack.enter_context(Lane(client, client._index_of(device), CHUNK))
                    phase.value = stack.enter_context(Reference(array))
            references = phase.values
            with Phase(comm) as phase, machines.between(comm) as leaders:
                if leaders:
                    send(phase, leaders, lane, ordered, direct)
        with contextlib.ExitStack() as opened:
            with Phase(comm):
                reference = references[machines.leader_of(comm.rank)]
                got = a.view() if comm.rank == root else reference.open(client, first.mode)
                opened.enter_context(got)
            opened.pop_all()
            return got


def is_cuda_aware(comm, asked):
    """Whether MPI takes addresses of a device: as `asked`, or else as MPI says."""
    info = comm.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds") or ""
    info.Free()
    return "cuda" in kinds if asked is None else asked


def place(at):
    return at.machine_id, at.daemon_id


def _like(like, client, pool, device):
    """A dense array of a reference's shape and type."""
    order = _order(like.strides)
    shape = [like.shape[axis] for axis in order]
    with client.empty(shape, like._element(), pool=pool, device=device) as root:
        return root.transpose([order.index(axis) for axis in range(len(order))]) if order else root.view()


def _order(strides):
    """The axes, in the order of falling steps."""
    return sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))


# --- what all ranks do together -------------------------------------------------------------


class Phase:
    """A block that every rank of a communicator runs. After it each rank has the `value` of all ranks, in
    `values`. An error in the block at one rank is raised at all. The block may wait for other ranks only if
    they get there even after an error: so what may fail is done in ``trying()``.
    """

    def __init__(self, comm: MPI.Intracomm):
        self._comm, self._error = comm, None
        self.value: Any = None
        self.values: list = []

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            self._error = self._error or e

    def __enter__(self) -> Phase:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        error, self._error = error or self._error, None
        data = None
        if error is None:
            try:  # here, since an error in allgather() would be this rank's alone
                data = pickle.dumps(self.value)
            except Exception as e:
                error = e
        text = None if error is None else f"{type(error).__name__}: {error}"
        answers = self._comm.allgather((text, data))
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame, and what the block's frames hold
        for rank, (text, _) in enumerate(answers):
            if text is not None:
                raise CancelledError(errno.ECANCELED, f"it failed at rank {rank}: {text}")
        self.values = [pickle.loads(data) for _, data in answers]


class Machines:
    """Which ranks are at which daemon. The ranks at one daemon have a leader: the root, or else the first."""

    def __init__(self, places: list, root: int):
        self._places = [at if isinstance(at, tuple) else place(at) for at in places]
        self._root, self._leaders = root, {self._places[root]: root}
        for rank, at in enumerate(self._places):
            self._leaders.setdefault(at, rank)

    @property
    def several(self) -> bool:
        return len(self._leaders) > 1

    def leader_of(self, rank: int) -> int:
        return self._leaders[self._places[rank]]

    def leads(self, rank: int) -> bool:
        return self.leader_of(rank) == rank

    @contextlib.contextmanager
    def between(self, comm: MPI.Intracomm) -> Iterator[MPI.Intracomm]:
        """The communicator of the leaders, in which the root is rank 0; a null one at other ranks. Collective."""
        leads = self.leads(comm.rank)
        leaders = comm.Split(0 if leads else MPI.UNDEFINED, comm.rank != self._root)
        try:
            yield leaders
        finally:
            if leads:
                leaders.Free()


# --- bytes ----------------------------------------------------------------------------------


def send(phase: Phase, leaders: MPI.Intracomm, lane: Lane, array: Array, direct: bool = False) -> None:
    """Sends an array's bytes from rank 0 to the others, which have an array like it, through a lane's
    page-locked memory: a received chunk is copied while the next comes. All ranks go on to the end, even
    after a copy has failed."""
    for turn, key in enumerate(_pieces(array.shape, array.itemsize)):
        piece, slot = array[key], lane.slots[turn % 2]
        as_it_is = direct and piece.is_c_contiguous()
        buffer = _at(piece.ptr, piece.nbytes) if as_it_is else memoryview(slot.memory)[: piece.nbytes]
        if not as_it_is:
            with phase.trying():
                slot.copied.synchronize()
                if leaders.rank == 0:
                    piece.copy_to_host(buffer)
        leaders.Bcast([buffer, MPI.BYTE])
        if not as_it_is and leaders.rank:
            with phase.trying():
                piece.copy_from_host(buffer, stream=slot.stream)
                slot.copied.record(slot.stream)
    with phase.trying():
        lane.stream.synchronize()


def _at(address, nbytes):
    return MPI.buffer.fromaddress(address, nbytes)


def _pieces(shape, itemsize):
    """The keys of parts of an array that have CHUNK bytes at most, or one element."""
    if 0 in shape:
        return
    row = math.prod(shape[1:]) * itemsize
    if not shape:
        yield ()
    elif row <= CHUNK:
        step = CHUNK // row
        for start in range(0, shape[0], step):
            yield (slice(start, min(start + step, shape[0])),)
    else:
        for i in range(shape[0]):
            for key in _pieces(shape[1:], itemsize):
                yield (i, *key)


# --- halos ----------------------------------------------------------------------------------


class Halo(Closing):
    """Brings a storage's halo up to date from the neighbours in a Cartesian communicator, dimension by
    dimension, so that corners are right, too. Neighbours at the same daemon copy from each other's memory,
    device to device; for others MPI sends the bytes. Collective; the storage is kept until close(). During
    exchange() no other receive on `cart` may take its messages, whose tags are below 2 * ``cart.ndim``.

    Parameters
    ----------
    storage : caid.storage.Storage
        It has a buffer on a device, which is used.
    cart : mpi4py.MPI.Cartcomm
        Its dimensions are the storage's first ones. At an end that is not periodic the halo stays.
    client, cuda_aware : optional
        As for :func:`bcast_by_reference`; by default the storage's own client.

    InvalidError: the storage has no buffer on a device, or fewer dimensions than `cart`, or a neighbour's shape
    or halo does not fit.
    """

    def __init__(
        self, storage: Storage, cart: MPI.Cartcomm, *, client: Client | None = None, cuda_aware: bool | None = None
    ):
        self._storage, self._cart, self._stack = storage, cart, contextlib.ExitStack()
        self._sides: list[_Side] = []
        self._closed = False
        with contextlib.ExitStack() as stack:
            with Phase(cart) as phase:
                if storage.device is None or storage.ndim < cart.ndim:
                    raise invalid(f"{storage!r}: a buffer on a device and {cart.ndim} dimensions are needed")
                phase.value = [None, storage.shape, storage.halo]
                with contextlib.suppress(TypeError):  # managed memory, or another library's, goes by MPI
                    phase.value[0] = stack.enter_context(Reference(storage._array))
                    client = client or phase.value[0]._kept[0][0]
            with Phase(cart):
                box = client or _default.default_client(), storage._array, is_cuda_aware(cart, cuda_aware)
                for axis in range(cart.ndim):
                    for end, rank in enumerate(cart.Shift(axis, 1)):
                        if rank != MPI.PROC_NULL:
                            halves = phase.values[cart.rank], phase.values[rank]
                            self._sides.append(_Side(axis, end, rank, cart.ndim, *halves))
                            self._sides[-1].open(stack, *box)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Gives up the neighbours' memory. Idempotent."""
        self._stack.close()
        self._closed = True

    def exchange(self) -> None:
        """Exchanges the halos, after all work on the storage that caid knows of. The halos are up to date on
        return. Errors are raised at all ranks."""
        from .storage import fields

        with Phase(self._cart) as phase, contextlib.ExitStack() as stack:
            mine = None
            with phase.trying():
                if self._closed:
                    raise closed("the halo is closed")
                (mine,) = stack.enter_context(fields(write=[self._storage], device="gpu"))
                mine.synchronize()
            for axis in range(self._cart.ndim):
                sides = [side for side in self._sides if side.axis == axis]
                requests = []
                for side in sides:
                    with phase.trying():
                        side.pack(mine)
                    requests += side.begin(self._cart, phase)
                MPI.Request.Waitall(requests)
                for side in sides:
                    with phase.trying():
                        side.fill(mine)


class _Side:
    """One end of a dimension, and the neighbour there."""

    def __init__(self, axis, end, rank, n_axes, mine, theirs):
        (my_reference, shape, halo), (reference, its_shape, its_halo) = mine, theirs
        self.axis, self._end, self._rank, self._reference = axis, end, rank, reference
        self._ghost = _strip(shape, halo, axis, n_axes, end, None)
        self._edge = _strip(shape, halo, axis, n_axes, end, its_halo[axis][1 - end])
        self._theirs = _strip(its_shape, its_halo, axis, n_axes, 1 - end, halo[axis][end])
        wanted = _strip(its_shape, its_halo, axis, n_axes, 1 - end, None)
        if (_extents(self._ghost), _extents(self._edge)) != (_extents(self._theirs), _extents(wanted)):
            raise invalid(f"dimension {axis}: rank {rank} has shape {its_shape} and halo {its_halo}")
        self._is_here = None not in (my_reference, reference) and place(my_reference) == place(reference)
        self._source = self._inbox = self._outbox = None
        self._nbytes = 0  # bytes that the neighbour sends

    def open(self, stack, client, array, cuda_aware):
        if self._is_here:
            self._source = stack.enter_context(self._reference.open(client, "r"))[self._theirs]
            return
        element, device = array._layout.element, max(array._memory.mapped_device, 0)
        memory = "device" if cuda_aware else "pinned"
        self._nbytes = math.prod(_extents(self._ghost)) * element.itemsize
        self._inbox, self._outbox = (
            stack.enter_context(client.empty(_extents(strip), element, memory=memory, device=device))
            for strip in (self._ghost, self._edge)
        )

    def pack(self, mine):
        if self._outbox is not None:
            self._outbox.copy_from(mine[self._edge])

    def begin(self, cart, phase):
        """Begins MPI's requests. A message without bytes says that this side may be read, or has failed."""
        tag, inbox, outbox = 2 * self.axis, bytearray(self._nbytes), bytearray()
        with phase.trying():
            inbox, outbox = _sent(self._inbox), _sent(self._outbox)
        return (
            cart.Irecv([inbox, MPI.BYTE], self._rank, tag + 1 - self._end),
            cart.Isend([outbox, MPI.BYTE], self._rank, tag + self._end),
        )

    def fill(self, mine):
        mine[self._ghost].copy_from(self._source if self._inbox is None else self._inbox)


def _sent(box):
    if box is None or not box.size:
        return bytearray()
    return _at(box.host_ptr or box.ptr, box.nbytes)


def _strip(shape, halo, axis, n_axes, end, width):
    """The key of the halo at one end of a dimension or, with `width`, of as many points of the domain beside it.
    In later dimensions, whose halos are not up to date yet, it is of the domain only."""
    key = [slice(0, n) for n in shape]
    for later in range(axis + 1, n_axes):
        key[later] = slice(halo[later][0], shape[later] - halo[later][1])
    (start, after), n = halo[axis], shape[axis]
    if width is None:
        key[axis] = slice(n - after, n) if end else slice(0, start)
    elif width > n - start - after:
        raise invalid(f"dimension {axis}: a halo of {width} beside a domain of {n - start - after}")
    else:
        key[axis] = slice(n - after - width, n - after) if end else slice(start, start + width)
    return tuple(key)


def _extents(key):
    return tuple(part.stop - part.start for part in key)
