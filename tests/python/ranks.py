# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_mpi.py do: usage: mpirun -n 4 python -m mpi4py ranks.py NAME[,NAME...] SOCKET...

The first ranks have the first socket, and so on: daemons that stand for machines."""

import contextlib
import os
import pathlib
import shutil
import sys
import tempfile

import numpy
from mpi4py import MPI

COMM = MPI.COMM_WORLD
SOCKETS = sys.argv[2:]
MACHINE = COMM.rank * len(SOCKETS) // COMM.size
os.environ["CAID_SOCKET"] = SOCKETS[MACHINE]

import caid  # noqa: E402
import caid.mpi  # noqa: E402
import caid.storage  # noqa: E402
import caid.weights  # noqa: E402
import models  # noqa: E402
from conftest import wait_until  # noqa: E402
from engines import n_copies  # noqa: E402

STRUCT = numpy.dtype([("a", "<i2"), ("b", "<f8", (2,))])
TYPES = ["?", "i1", "<u2", ">i4", "<f8", "<c16", "<M8[ns]", "f2", STRUCT]


class Counted:
    """A communicator that counts the bytes that it is given, in `sent` and `received`."""

    def __init__(self, comm, counts=None):
        self._comm, self.counts = comm, {"sent": 0, "received": 0} if counts is None else counts

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Split(self, *args):
        split = self._comm.Split(*args)
        return Counted(split, self.counts) if split else split

    def Bcast(self, what):
        self.counts["received" if self._comm.rank else "sent"] += what[0].nbytes
        self._comm.Bcast(what)

    def Isend(self, what, *args):
        self.counts["sent"] += memoryview(what[0]).nbytes
        return self._comm.Isend(what, *args)


def small_chunks(nbytes):
    caid.mpi.CHUNK = nbytes


def raises(error, call):
    try:
        call()
    except error as e:
        return str(e)
    raise AssertionError(f"no {error.__name__}")


def nothing_left(client):
    client.flush()
    COMM.Barrier()
    wait_until(lambda: client.status().arrays == 0, facts=client.status)
    COMM.Barrier()


# --- broadcasts -----------------------------------------------------------------------------


def random_array(chance):
    """The same at every rank: a NumPy array of some layout."""
    dtype = numpy.dtype(TYPES[chance.integers(len(TYPES))])
    shape = tuple(chance.integers(1, 9, chance.integers(0, 5)))
    if chance.random() < 0.1:
        shape += (0,)
    x = numpy.frombuffer(chance.bytes(int(numpy.prod(shape)) * dtype.itemsize), "u1")
    if dtype == "?":
        x = x & 1
    return x.view(dtype).reshape(shape)


def looked_at(a, chance):
    """A view: the same of an Array and of its NumPy twin."""
    key = []
    for n in a.shape:
        start, step = int(chance.integers(0, n + 1)), int(chance.choice([-2, -1, 1, 1, 2, 3]))
        key.append(slice(start, None, step) if chance.random() < 0.5 else slice(None))
    if not key:
        return a.view()
    return a[tuple(key)].transpose([int(axis) for axis in chance.permutation(a.ndim)])


def layouts():
    """Right bytes in all types and layouts: once to the other machine, none within one."""
    small_chunks(100)
    client = caid.default_client()
    for seed in range(int(os.environ.get("CAID_MPI_ROUNDS", 60))):
        chance = numpy.random.default_rng(seed)
        twin, root = random_array(chance), int(chance.integers(COMM.size))
        cuda_aware = bool(chance.integers(2))  # the software driver's memory is the host's
        state = chance.bit_generator.state
        expected = looked_at(twin, chance)
        chance.bit_generator.state = state
        comm, a = Counted(COMM), None
        with contextlib.ExitStack() as stack:
            if COMM.rank == root:
                whole = stack.enter_context(client.empty(twin.shape, twin.dtype))
                whole.copy_from_host(twin)
                a = stack.enter_context(looked_at(whole, chance))
            got = caid.mpi.bcast_by_reference(comm, a, root, cuda_aware=cuda_aware)
        with got:
            assert (got.shape, got.dtype) == (expected.shape, twin.dtype), seed
            assert got.copy_to_host().tobytes() == expected.tobytes(), seed
        total = [sum(counts[way] for counts in COMM.allgather(comm.counts)) for way in ("sent", "received")]
        assert total == [expected.nbytes] * 2, (seed, total, expected.nbytes)
    nothing_left(client)


def shared():
    """What a rank writes is seen by those of its machine alone; a mode stays. A copy is made by who sends and
    by who receives from the other machine, and by no other rank."""
    client, other = caid.default_client(), COMM.size // len(SOCKETS)
    if COMM.rank == 0:
        client.create("x", 4, "<i8").close()
    for mode in "rw", "r":
        with contextlib.ExitStack() as stack:
            a = stack.enter_context(client.open("x", mode)) if COMM.rank == 0 else None
            before = n_copies()
            got = caid.mpi.bcast_by_reference(COMM, a)
            assert n_copies() - before == (COMM.rank in (0, other))
        with got:
            assert got.readonly == (mode == "r")
            if mode == "rw":
                if COMM.rank in (0, other):
                    got.copy_from_host(numpy.full(4, COMM.rank))
                COMM.Barrier()
                assert got.copy_to_host().tolist() == [MACHINE * other] * 4
    with client.arena() as arena, arena.allocate(32) as x, caid.mpi.bcast_by_reference(COMM, x) as got:
        assert (got.shape, got.typestr) == ((32,), "|u1")
        COMM.Barrier()
    machine = caid.mpi.machine_comm(COMM)
    assert machine.allgather(MACHINE) == [MACHINE] * other
    machine.Free()
    if COMM.rank == 0:
        client.unlink("x")
    COMM.Barrier()
    nothing_left(client)


def errors():
    """What fails at one rank is raised at all, and what comes after works."""
    client = caid.default_client()
    small_chunks(1 << 16)

    def fails_at(rank, error, text, call):
        told = raises(error if COMM.rank == rank else caid.CancelledError, call)
        assert text in told and (COMM.rank == rank or f"at rank {rank}: " in told), told

    with client.full(1 << 20, 7, "u1") as a:
        bcast = caid.mpi.bcast_by_reference
        with client.empty(4, memory="managed") as managed:
            fails_at(1, TypeError, "this process alone", lambda: bcast(COMM, managed, 1))
        pool = {"pool": "no such"} if COMM.rank == 2 else {}
        fails_at(2, caid.NotFoundError, "no such", lambda: bcast(COMM, a, **pool))
        closed = caid.connect()
        closed.close()
        mine = {"client": closed} if COMM.rank == 3 else {}
        fails_at(3, caid.ClosedError, "closed", lambda: bcast(COMM, a, **mine))
        for rank in 0, 2:  # in the middle
            with failing_copies() if COMM.rank == rank else contextlib.nullcontext():
                fails_at(rank, RuntimeError, "the third copy", lambda: bcast(COMM, a))
        with bcast(COMM, a) as got:
            assert (got.copy_to_host() == 7).all()
    nothing_left(client)


@contextlib.contextmanager
def failing_copies():
    """Of what this rank copies between arrays and the host the third fails."""
    names, left = ("copy_to_host", "copy_from_host", "copy_from"), iter((False, False, True))
    originals = {name: getattr(caid.Array, name) for name in names}

    def failing(original):
        def copy(*args, **kwargs):
            if next(left, False):
                raise RuntimeError("the third copy")
            return original(*args, **kwargs)

        return copy

    for name, original in originals.items():
        setattr(caid.Array, name, failing(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(caid.Array, name, original)


# --- halos ----------------------------------------------------------------------------------


def halos():
    """As if one array were rolled; by MPI only what comes from another machine."""
    for n, (halo, kinds) in enumerate([
        (((1, 2), (2, 1), (0, 0)), {"managed": None}),
        (((3, 0), (1, 1), (0, 1)), {"managed": "gt4py"}),
        (((1, 1), (0, 0), (0, 0)), {"managed": "cuda"}),
        (((0, 0), (2, 2), (0, 0)), {"managed": None, "layout": (2, 1, 0), "alignment_size": 64}),
    ]):
        for periodic in True, False:
            one_halo(n, halo, kinds, periodic)
    cart = COMM.Create_cart([2, 2], [True] * 2)
    u = caid.storage.zeros((4, 4), halo=(1, 1), device="gpu")
    with caid.mpi.Halo(u, cart) as halo_of:
        with failing_copies() if COMM.rank == 1 else contextlib.nullcontext():
            raises(RuntimeError if COMM.rank == 1 else caid.CancelledError, halo_of.exchange)
        halo_of.exchange()
    raises(caid.ClosedError, halo_of.exchange)
    for rank in range(COMM.size):  # alone: the others are told, and wait for nobody
        client = caid.connect()
        with caid.mpi.Halo(u, cart) as of_halo, caid.mpi.Halo(u, cart, client=client) as of_client:
            if COMM.rank == rank:
                of_halo.close()
                client.close()
            for each in of_halo, of_client:
                raises(caid.ClosedError if COMM.rank == rank else caid.CancelledError, each.exchange)
        client.close()
    v = caid.storage.zeros((4 + COMM.rank // 2, 4 + COMM.rank % 2), halo=(1, 1), device="gpu")
    caid.mpi.Halo(v, cart).close()
    v = caid.storage.zeros((4 + COMM.rank, 4), halo=(1, 1), device="gpu")
    raises(caid.InvalidError, lambda: caid.mpi.Halo(v, cart))
    cart.Free()
    u = v = halo_of = of_halo = of_client = each = None
    nothing_left(caid.default_client())


def one_halo(seed, halo, kinds, periodic):
    cart = COMM.Create_cart([2, 2], [periodic] * 2)
    whole = numpy.random.default_rng(seed).random((12, 14, 3)).astype("<f4")
    domain = [6, 7, 3]
    starts = [c * n for c, n in zip([*cart.coords, 0], domain)]
    ends = [range(start - low, start + n + high) for start, n, (low, high) in zip(starts, domain, halo)]
    indices = numpy.ix_(*(numpy.array(each) % n for each, n in zip(ends, whole.shape)))
    u = caid.storage.full([len(each) for each in ends], -1, "<f4", halo=halo, device="gpu", **kinds)
    inner = tuple(slice(low, low + n) for n, (low, _) in zip(domain, halo))
    u[inner] = whole[indices][inner]
    expected = whole[indices].copy()
    outside = numpy.zeros(expected.shape, bool)
    for axis, each in enumerate(ends):
        out = [i not in range(whole.shape[axis]) or axis == 2 and i not in range(3) for i in each]
        if not periodic or axis == 2:
            outside |= numpy.array(out).reshape([-1 if axis == d else 1 for d in range(3)])
    expected[outside] = -1
    comm = Counted(cart)
    with caid.mpi.Halo(u, comm, cuda_aware=bool(seed % 2)) as halo_of:
        for _ in range(2):
            halo_of.exchange()
            seen = u._contents()
            assert (seen == expected).all(), (seed, periodic, cart.coords, seen, expected)
        if kinds["managed"] != "cuda":  # ranks of a machine are neighbours in the second dimension
            rows = sum(halo[0]) if periodic else halo[0][cart.coords[0]]
            assert comm.counts["sent"] == 2 * rows * 7 * u.shape[2] * 4, (comm.counts, rows)
    cart.Free()


# --- weights --------------------------------------------------------------------------------


def weights():
    """Files are read by rank 0 alone; each machine gets them once, and all or none has the name."""
    client, values = caid.default_client(), numpy.arange(3000, dtype="<i4")
    told = {"a": ("I32", (3000,), values.tobytes()), "b": ("F64", (2, 0), b""), "c": ("U8", (7,), bytes(range(7)))}
    model = None
    if COMM.rank == 0:
        model = models.write(pathlib.Path(tempfile.mkdtemp()) / "m.safetensors", told, {"x": "y"})
    small_chunks(5000)
    for _ in range(2):
        comm = Counted(COMM)
        version = caid.weights.load(model, "m", comm=comm, tie={"d": "a"})
        sent = COMM.allreduce(comm.counts["sent"])
        assert 12007 <= sent <= 12007 + 2 * 512, sent
        with caid.weights.open("m") as got:
            assert got.version == version
            assert got["a"].copy_to_host().tolist() == got["d"].copy_to_host().tolist() == values.tolist()
            assert got["c"].copy_to_host().tolist() == list(range(7)) and got["b"].shape == (2, 0)
            assert got.file_metadata == {"x": "y"}
    pool = {"pool": "no such"} if COMM.rank == 2 else {}
    raises(caid.NotFoundError if COMM.rank == 2 else caid.CancelledError,
           lambda: caid.weights.load(model, "other", comm=COMM, **pool))
    with failing_copies() if COMM.rank == 2 else contextlib.nullcontext():
        raises(RuntimeError if COMM.rank == 2 else caid.CancelledError,
               lambda: caid.weights.load(model, "other", comm=COMM))
    raises(FileNotFoundError if COMM.rank == 0 else caid.CancelledError,
           lambda: caid.weights.load("/nowhere", "other", comm=COMM))
    assert not client.exists("other/")
    COMM.Barrier()
    if COMM.rank in (0, 2):
        client.unlink("m/")
    if model is not None:
        shutil.rmtree(model.parent)
    nothing_left(client)


def forever():
    """Broadcasts, until it is killed."""
    with caid.default_client().zeros(1 << 20, "u1") as a:
        pathlib.Path(os.environ["RANKS_FOLDER"], str(os.getpid())).touch()
        while True:
            caid.mpi.bcast_by_reference(COMM, a).close()


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        globals()[name]()
