# SPDX-License-Identifier: Apache-2.0
"""References: what is sent in place of an array, and opened where it is."""

import collections
import contextlib
import hashlib
import hmac
import itertools
import multiprocessing.reduction
import pathlib
import pickle
import sys
import uuid

import caid
import hypothesis
import hypothesis.strategies as st
import numpy
import pytest
from caid._interfaces import _reference
from caid._session import _default
from conftest import n_leases, wait_until
from restarts import Restarts

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import bench_machines  # noqa: E402

APP_ID = bytes.fromhex("5f0c7e3a91d44b628e17c26d30a9f548")
MACHINES = "1" * 32, "2" * 32


@pytest.fixture
def filled(client):
    with client.array(numpy.arange(12, dtype="<i4").reshape(3, 4)) as a:
        yield a


def received(reference):
    return pickle.loads(pickle.dumps(reference))


def values(reference, client):
    with reference.open(client) as a:
        return a.copy_to_host().tolist()


def test_any_number_opens_it_and_its_maker_ends_it(client, other, filled):
    with caid.Reference(filled[::-1, 1::2]) as reference:
        got = received(received(reference))
        assert (got.shape, got.strides, got.dtype, got.nbytes) == ((3, 2), (-16, 8), "<i4", 24)
        assert (got.name, got.mode, got.daemon_id) == (None, "rw", client.daemon_id)
        with got.open(other) as a, got.open(client) as b, got.open(other, "r") as c:
            assert c.readonly and not a.readonly and not b.readonly
            a[0, 0] = 100
            assert b.copy_to_host().tolist() == c.copy_to_host().tolist() == [[100, 11], [5, 7], [1, 3]]
    assert got.here(other)  # whether it is still there, it does not ask
    with pytest.raises(caid.NotFoundError, match="sender has withdrawn it"):
        got.open(other)
    with pytest.raises(caid.ClosedError):
        pickle.dumps(reference)
    reference.close()


def forged(reference, **fields):
    take, sent = reference.__reduce__()
    changed = {**dict(zip(_reference._FIELDS, sent)), **fields}
    return pickle.loads(pickle.dumps(take(*changed.values(), sent[-1])))


NOT_SO = {
    "shape": [(3, 5), (3,), (-3, 4), (12, 1)],
    "strides": [(16,), (4, 16)],
    "_type": [("<i4", 4.0, None), ("<i8", 8, None), ("<x4", 4, None), ("int4", 4, None), ("|V4", 4, "[]")],
    "_ticket": [b"short"],
    "_start": [40, -8],
}


def test_a_forged_field_is_found_where_it_is_opened(filled, client):
    assert NOT_SO.keys() <= _reference._FIELDS.keys()
    with caid.Reference(filled) as reference:
        for field in _reference._FIELDS:
            for value in [1.5, {"a": 1}, [1], -1 << 70, (1, "x"), *NOT_SO.get(field, ())]:
                got = forged(reference, **{field: value})
                assert repr(got)
                with pytest.raises(caid.CorruptError):
                    got.open(client).close()
        for sent in (), ("x",), reference.__reduce__()[1] + (1,):
            got = _reference._arrived(*sent)
            with pytest.raises(caid.CorruptError):
                got.open(client).close()
        assert values(forged(reference), client)[2] == [8, 9, 10, 11]


def test_it_keeps_the_array(client, other):
    with client.full(4, 7, "<i8") as a:
        reference = caid.Reference(a)
    got = received(reference)
    assert values(got, other) == [7] * 4
    (kept,) = other.unnamed()
    assert True in [holder.sent for holder in kept.holders]
    with pytest.warns(ResourceWarning, match="unclosed <caid.Reference"):
        del reference
    wait_until(lambda: n_leases(other) + n_leases(client) == 0)
    with pytest.raises(caid.NotFoundError):
        got.open(other)


def test_its_maker_ends_it_at_his_limit():
    with caid.LocalDaemon(config="[limits]\nleases = 2\n") as daemon, daemon.connect() as c:
        with c.empty(4) as a, caid.Reference(a) as reference:
            with pytest.raises(caid.LimitError, match="leases"):
                caid.Reference(a)
            with pytest.raises(caid.LimitError, match="leases"):  # which leaves the ticket
                received(reference).open(c)
        assert n_leases(c) == 0


def test_what_fails_leaves_no_ticket(client, monkeypatch):
    def failing(array):
        raise caid.DisconnectedError(1, "gone")

    monkeypatch.setattr(caid._interfaces._reference, "_follows", failing)
    with client.empty(4) as a:
        for make in caid.Reference, multiprocessing.reduction.ForkingPickler.dumps:
            with pytest.raises(caid.DisconnectedError):
                make(a)
        assert n_leases(client) == 1


def test_by_name_it_keeps_nothing(client, other):
    with client.create("x", 4, "<i8") as a:
        reference = received(caid.Reference(a[1:], keep=False))
        a.copy_from_host(numpy.arange(4))
        assert (reference.name, reference.generation) == ("x", a.generation)
    assert values(reference, other) == [1, 2, 3]
    client.unlink("x")
    wait_until(lambda: client.status().arrays == 0)  # until then its generation can be opened
    with pytest.raises((caid.NotFoundError, caid.StaleError)):
        reference.open(other)
    with client.empty(4, "<i8") as a, pytest.raises(TypeError, match="no name"):
        caid.Reference(a, keep=False)


def test_what_lies_in_an_arena(client, other, arena):
    x = arena.allocate(32)
    a = caid.from_cuda_array_interface({**x.__cuda_array_interface__, "shape": (4,), "typestr": "<i8"}, x)
    a.copy_from_host(numpy.arange(4))
    with caid.Reference(a[::2]) as of_array, caid.Reference(x) as of_bytes:
        assert values(received(of_array), other) == [0, 2]
        assert len(values(received(of_bytes), other)) == 32
        a.close()
        del a, x
        assert values(received(of_array), other) == [0, 2]
    with pytest.raises(TypeError, match="this process alone"):
        with client.empty(4, "<i8", memory="managed") as managed:
            caid.Reference(managed)


def test_what_was_opened_r_is_not_written(client, other):
    client.create("x", 4, "<i8").close()
    with client.open("x") as a, caid.Reference(a) as reference:
        got = received(reference)
        assert got.mode == "r"
        with pytest.raises(caid.AccessError):
            got.open(other, "rw")
    got._ticket = None  # forged, it grants no more than the name does
    got.mode = "rw"
    got.open(other).close()
    client.unlink("x")


def test_ids(tmp_path):
    """Of two daemons that stand for two machines; without a setting it is systemd's hash."""
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(caid.LocalDaemon(env={"CAID_MACHINE_ID": m})) for m in MACHINES]
        a, b = (stack.enter_context(d.connect()) for d in daemons)
        assert [a.machine_id, b.machine_id] == [*MACHINES] and a.status().daemon_id == a.daemon_id
        assert a.daemon_id != b.daemon_id and len(bytes.fromhex(a.daemon_id)) == 16
        x = stack.enter_context(a.empty(4, "<i8"))
        got = received(stack.enter_context(caid.Reference(x)))
        assert got.here(a) and not got.here(b)
        with pytest.raises(caid.NotFoundError, match=f"machine {MACHINES[0]}.*{MACHINES[1]}.*by value"):
            got.open(b)


def expected_machine_id():
    try:
        key = bytes.fromhex(pathlib.Path("/etc/machine-id").read_text().strip())
    except (OSError, ValueError):
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    digest = bytearray(hmac.digest(key, APP_ID, hashlib.sha256)[:16])
    digest[6], digest[8] = digest[6] & 0x0F | 0x40, digest[8] & 0x3F | 0x80
    return digest.hex()


def test_the_machine_id_is_hashed(client):
    """As sd_id128_get_machine_app_specific(3) has it."""
    assert client.machine_id == expected_machine_id()


def test_no_client_is_found_by_what_arrives(client, daemon, monkeypatch):
    """This process's own socket counts."""
    with client.full(4, 3, "<i8") as a, caid.Reference(a) as reference:
        got = received(reference)
        monkeypatch.setenv("CAID_SOCKET", f"/nowhere/{uuid.uuid4()}")
        assert not got.here()
        with pytest.raises(caid.NoDaemonError):
            got.open()
        monkeypatch.setenv("CAID_SOCKET", client._socket)
        assert got.here()
        with got.open() as b:
            assert b.copy_to_host().tolist() == [3] * 4
        _default.default_client().close()


def test_it_outlives_the_daemon(tmp_path):
    with contextlib.closing(Restarts(tmp_path)) as r, r.connect() as c, r.connect() as d:
        with c.full(4, 5, "<i8") as a, caid.Reference(a) as reference:
            got = received(reference)
            assert values(got, d) == [5] * 4
            r.restart()
            assert values(got, d) == [5] * 4
            with r.connect() as anew:
                assert anew.daemon_id == c.daemon_id and values(got, anew) == [5] * 4
        with pytest.raises(caid.NotFoundError):
            got.open(d)


def test_it_outlives_its_makers_process(client, child):
    maker = child(
        """
        import pickle
        a = caid.connect().full(4, 9, "<i8")
        r = caid.Reference(a)
        step(pickle.dumps(r).hex())
        """
    )
    got = pickle.loads(bytes.fromhex(maker.process.stdout.readline()))
    assert values(got, client) == [9] * 4
    maker.kill()
    wait_until(lambda: [holder.hung_up for a in client.unnamed() for holder in a.holders] == [True])
    assert values(got, client) == [9] * 4
    assert client.withdraw(gone=True) == 1
    with pytest.raises(caid.NotFoundError):
        got.open(client)


class Daemon(bench_machines.Machine):
    """A machine of docs/SCALING.md's simulation for real: of a daemon, with a client for each worker, which has a
    reference to what it has for its neighbours."""

    numbers = itertools.count(1)

    def __init__(self):
        super().__init__()
        self.daemon = caid.LocalDaemon(env={"CAID_MACHINE_ID": f"{next(self.numbers):032x}"})
        self.clients = collections.defaultdict(self.daemon.connect)
        self.references = {}

    def hold(self, worker, key):
        with self.clients[worker].full(1, worker) as a:
            self.keep(worker, key, a)

    def take(self, worker, key, machine):
        holder = next(iter(machine.holders[key]))
        reference, client = received(machine.references[holder, key]), self.clients[worker]
        is_here = reference.here(client)
        with reference.open(client) if is_here else client.empty(reference.shape, reference.dtype) as a:
            self.keep(worker, key, a)
        return is_here

    def keep(self, worker, key, a):
        super().hold(worker, key)
        self.references[worker, key] = caid.Reference(a)

    def end(self, worker):
        """Every other one dies. Its daemon has what others hold, and no more."""
        super().end(worker)
        if worker % 2:
            self.clients[worker].close()
        for of in [of for of in self.references if of[0] == worker]:
            self.references.pop(of).close()
        last = self.clients[None]
        wait_until(lambda: (last.withdraw(gone=True), last.status().arrays)[1] == len(self.holders))
        if not self.holders:
            for client in self.clients.values():
                client.close()
            self.daemon.stop()


@pytest.mark.parametrize("pattern", [bench_machines.broadcast, bench_machines.shuffle, bench_machines.halo])
def test_jobs_on_daemons_as_simulated(pattern):
    real, simulated = (bench_machines.run(pattern, 8, 2, 4, machine) for machine in (Daemon, bench_machines.Machine))
    counts = [(job.references, job.network, job.by_value, job.peak) for job in (real, simulated)]
    assert counts[0] == counts[1] and 0 not in counts[0][:3]


@hypothesis.given(st.integers(1, 6), st.integers(1, 4))
def test_jobs_on_many_machines(n_machines, n_each):
    """Of the simulation that docs/SCALING.md has its table of: what goes between machines goes once."""
    job = bench_machines.run(bench_machines.broadcast, 8, n_machines, n_each)
    n, others = n_machines * n_each, (n_machines - 1) * n_each
    assert (job.network, job.references) == (8 * (n_machines - 1), n - n_machines)
    assert (job.by_value, job.local) == (8 * others, 8 * (n_each - 1))
    assert (job.peak, job.peak_by_value) == (8, 8 * n_each)
    job = bench_machines.run(bench_machines.shuffle, 8 * n, n_machines, n_each)
    assert (job.network, job.references) == (job.by_value, n * (n_each - 1)) and job.by_value == 8 * n * others
