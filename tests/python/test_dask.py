# SPDX-License-Identifier: Apache-2.0
"""caid.dask with a real Dask: two daemons stand for two machines, of two workers each."""

import contextlib
import ctypes
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import caid
import numpy
import pytest
from caid._session import _default
from conftest import PATIENCE_S, wait_until
from engines import N_KILLS, two_machines

CONSUMERS = pathlib.Path(__file__).resolve().parents[2] / "build" / "consumers"
SITE = str(CONSUMERS / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages")
sys.path.append(SITE)
dask = pytest.importorskip("dask", reason="Dask is not installed")
distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
import caid.dask  # noqa: E402
import dask.array  # noqa: E402
from dask_work import (  # noqa: E402
    Counts, forget_errors, held, install_cupy, make, make_cupy, n_allocated, n_calls, slow_sum, total, total_cupy
)
from distributed.protocol import deserialize, serialize  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.skipif(os.name != "posix", reason="POSIX")]
MIB = 1 << 20
LOCAL = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
CONNECT = "2s"  # instead of 30 s, for which Dask calls a worker that was killed
dask.config.set({"logging": {"distributed": "critical"}, "distributed.comm.timeouts.connect": CONNECT})
dask.config.set({"distributed.scheduler.active-memory-manager.start": False})  # drops whichever copy it likes


@contextlib.contextmanager
def clients_of(daemons, has_failed=lambda: False):
    """By the letter of the machine. Afterwards nothing may be left, but for what has failed, whose traceback
    keeps its arrays."""
    clients = {letter: daemon.connect() for letter, daemon in daemons.items()}
    try:
        yield clients
        for client in () if has_failed() else clients.values():
            wait_until(lambda c=client: (c.withdraw(gone=True), c.flush(), c.status())[2].arrays == 0, lambda c=client: c.unnamed())
            assert client.status().leases == 0
    finally:
        for client in clients.values():
            client.close()


@pytest.fixture(scope="module")
def daemons():
    with two_machines() as machines:
        yield dict(zip("ab", machines))


def worker_of(daemon, name, see="0,1", **options):
    env = {**daemon.env, "CUDA_VISIBLE_DEVICES": see, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env |= {"DASK_LOGGING__DISTRIBUTED": "critical", "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": CONNECT}
    options = {"nthreads": 1, "env": env, "memory_limit": None, **LOCAL, **options}
    return {name: {"cls": distributed.Nanny, "options": {"name": name, **options}}}


@contextlib.contextmanager
def cluster_of(workers):
    scheduler = {"cls": distributed.Scheduler, "options": {**LOCAL}}
    patient = {"distributed.scheduler.allowed-failures": 1000, "distributed.deploy.lost-worker-timeout": "1d"}
    with dask.config.set(patient):
        with distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=False) as cluster:
            with distributed.Client(cluster) as client:
                client.register_plugin(Counts())
                client.register_plugin(caid.dask.Plugin())
                yield client


@pytest.fixture(scope="module")
def cluster(daemons):
    workers = {}
    for letter, daemon in daemons.items():
        for i in range(2):
            workers.update(worker_of(daemon, f"{letter}{i}"))
    with cluster_of(workers) as client:
        yield client


@pytest.fixture
def left(daemons, request):
    n_failed = request.session.testsfailed
    with clients_of(daemons, lambda: request.session.testsfailed != n_failed) as clients:
        yield clients


def written(client):
    return sum(client.run(lambda dask_worker: dask_worker.written).values())


# --- tests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [MIB, 8 * MIB])
def test_by_reference_within_by_value_between(cluster, left, n):
    x = cluster.submit(make, n, workers=["a0"])
    distributed.wait(x)
    before, nbytes = written(cluster), 8 * n
    assert cluster.submit(total, x, workers=["a1"]).result() == n * (n - 1) // 2
    assert written(cluster) - before < 64 << 10
    assert cluster.submit(held, x, workers=["a1"], pure=False).result() == (1, 3)  # one is the ticket's
    for worker in "b0", "b1":  # the second one has it of the first, or of a worker of a
        assert cluster.submit(total, x, workers=[worker]).result() == n * (n - 1) // 2
    assert nbytes <= written(cluster) - before < 2 * nbytes + (1 << 20)
    assert (x.result() == numpy.arange(n)).all()  # this process has no daemon of its own
    del x


def test_opening_makes_no_driver_call_where_the_block_is_mapped(cluster, left):
    first, second = (cluster.submit(make, 1000, i, workers=["a0"]) for i in range(2))
    assert cluster.submit(total, first, workers=["a1"]).result() == 0
    before = cluster.submit(n_calls, workers=["a1"], pure=False).result()
    after = cluster.submit(n_calls, second, workers=["a1"], pure=False).result()
    assert after - before < 10
    del first, second


def test_whoever_has_opened_it_keeps_it(cluster, left):
    x = cluster.submit(make, 1000, workers=["a0"])
    kept = cluster.submit(lambda x: x[::2], x, workers=["a1"])
    distributed.wait(kept)
    del x
    wait_until(lambda: left["a"].status().leases == 1)
    assert cluster.submit(total, kept, workers=["a0"]).result() == sum(range(0, 1000, 2))
    del kept


def test_an_array_that_is_written_anew_is_computed_with_anew(cluster, left, daemons, monkeypatch):
    monkeypatch.setenv("CAID_SOCKET", daemons["a"].address)
    with left["a"].create("x", 4, "<i8") as a:
        results = []
        for value in 1, 2:
            a.fill(value)
            results += [cluster.submit(total, a, workers=["a0"]), cluster.submit(total, a[1:], workers=["a0"])]
            distributed.wait(results)
        assert [result.result() for result in results] == [4, 3, 8, 6]
        with dask.config.set({"tokenize.ensure-deterministic": True}):
            with pytest.raises(dask.tokenize.TokenizationError, match="contents of <caid.Array 'x'"):
                dask.base.tokenize(a)
        left["a"].publish_many("y/", {"0": a})
        assert caid.dask.from_set("y/").name != caid.dask.from_set("y/").name
    for name in "x", "y/":
        left["a"].unlink(name)
    _default.client_of(daemons["a"].address).close()  # by which Dask's scheduler, in this process, has it
    del results


def test_collections_travel(cluster, left):
    x = cluster.submit(lambda: {"a": [make(1000)], "b": (make(10), 5)}, workers=["a0"])
    for worker in "a1", "b0":
        got = cluster.submit(lambda x: (total(x["a"][0]), total(x["b"][0]), x["b"][1]), x, workers=[worker])
        assert got.result() == (499500, 45, 5)
    del x, got


def test_it_is_spilled_by_dasks_rules(daemons, tmp_path):
    """Of 16 arrays of 1 MiB at most 4 are in memory; all come back."""
    with clients_of({"a": daemons["a"]}) as clients:
        options = {"memory_limit": 64 * MIB, "local_directory": str(tmp_path)}
        rules = {"distributed.worker.memory.target": 4 / 64, "distributed.worker.memory.spill": False}
        rules |= {"distributed.worker.memory.pause": False, "distributed.worker.memory.terminate": False}
        with dask.config.set(rules), cluster_of(worker_of(daemons["a"], "a0", config=rules, **options)) as client:
            arrays = [client.submit(make, MIB // 8, i) for i in range(16)]
            distributed.wait(arrays)
            assert clients["a"].status().arrays <= 5
            assert client.gather(client.map(total, arrays)) == [i * sum(range(MIB // 8)) for i in range(16)]
            del arrays


def test_a_set_is_a_dask_array(cluster, left, daemons, monkeypatch):
    monkeypatch.setenv("CAID_SOCKET", daemons["a"].address)
    values = numpy.random.default_rng(1).random((100, 70))
    x = dask.array.from_array(values, chunks=(30, 40))
    in_a = {"workers": ["a0", "a1"], "allow_other_workers": False}
    generation = cluster.compute(caid.dask.to_set(x, "x/"), **in_a).result()
    assert sorted(e.name for e in left["a"].list() if e.of_set)[:2] == ["x/0.0", "x/0.1"]
    got = caid.dask.from_set("x/")
    assert (got.chunks, got.dtype) == (x.chunks, x.dtype)
    assert numpy.allclose(cluster.compute((got + 1).sum(axis=0), **in_a).result(), (values + 1).sum(axis=0))
    with left["a"].open_set("x/") as opened:
        assert opened.generation == generation
    in_b = {"workers": ["b0", "b1"], "allow_other_workers": False}
    cluster.compute(caid.dask.to_set(-x, "x/"), **in_b).result()
    with pytest.raises(caid.NotFoundError, match="'x/.*' is at daemon"):  # not of b's set
        cluster.compute(got.sum(), **in_b).result()
    for client in left.values():
        client.unlink("x/")
    with pytest.raises(caid.NotFoundError):
        caid.dask.from_set("x/")


def test_a_worker_of_dask_cuda_has_a_gpu_of_its_own():
    with caid.LocalDaemon(devices=2) as daemon, clients_of({"a": daemon}) as clients:
        workers = worker_of(daemon, "a0") | worker_of(daemon, "a1", see="1,0")
        with cluster_of(workers) as client:
            client.run(lambda: sys.modules.update(dask_cuda=sys))
            x = client.submit(make, 1000, workers=["a0"])
            assert client.submit(lambda x: (x.device, x.mapped_ordinal), x, workers=["a1"]).result() == (0, 0)
            made = caid.dask.to_set(dask.array.arange(1000, chunks=1000), "x/")
            client.compute(made, workers=["a1"]).result()
            with clients["a"].open_set("x/") as opened:
                assert [entry.device for entry in opened.entries().values()] == [1]
            clients["a"].unlink("x/")
            del x


def test_cupys_arrays_go_by_reference(daemons):
    """With a stand-in for CuPy, which needs a GPU. None stays when Dask has forgotten it."""
    with clients_of({"a": daemons["a"]}) as clients:
        with cluster_of(worker_of(daemons["a"], "a0") | worker_of(daemons["a"], "a1")) as client:
            client.run(install_cupy)
            client.register_plugin(caid.dask.Plugin(cupy=True))
            x = client.submit(make_cupy, MIB, workers=["a0"])
            distributed.wait(x)
            before = written(client)
            there = client.submit(lambda x: x, x, workers=["a1"])
            for worker in "a1", "a0":  # back to where it is from, too
                assert client.submit(total_cupy, there, workers=[worker], pure=False).result() == MIB * (MIB - 1) // 2
            assert written(client) - before < 64 << 10
            published = caid.dask.to_set(dask.array.from_delayed(dask.delayed(x), (MIB,), "<i8"), "x/")
            client.compute(published, workers=["a0"]).result()
            with clients["a"].open("x/0") as chunk:
                assert total(chunk) == MIB * (MIB - 1) // 2
                client.submit(lambda x: ctypes.memset(x.data.ptr, 0, 8 * MIB), x, workers=["a0"]).result()
                assert total(chunk) == 0
            clients["a"].unlink("x/")
            del x, there, published
            wait_until(lambda: set(client.run(n_allocated).values()) == {0}, facts=clients["a"].unnamed)


def test_a_plugin_comes_and_goes(cluster, left):
    """Connections that there are follow."""
    for is_here in True, False, True:
        if not is_here:
            cluster.unregister_worker_plugin("caid")
        else:
            cluster.register_plugin(caid.dask.Plugin())
        x = cluster.submit(make, MIB, pure=False, workers=["a0"])
        distributed.wait(x)
        before = written(cluster)
        cluster.submit(total, x, workers=["a1"]).result()
        assert (written(cluster) - before < 64 << 10) == is_here
        del x


def test_what_a_receiver_has_no_room_for_is_asked_for_again(daemons):
    config = {"config": "[limits]\narrays = 2\n", "env": {"CAID_MACHINE_ID": "3" * 32}}
    with caid.LocalDaemon(**config) as small, clients_of({"a": daemons["a"], "c": small}) as clients:
        with cluster_of(worker_of(daemons["a"], "a0") | worker_of(small, "c0")) as client:
            x, y = (client.submit(make, 1000, i, workers=["a0"]) for i in range(2))
            with clients["c"].empty(1):
                both = client.submit(lambda x, y: total(x) + total(y), x, y, workers=["c0"])
                with pytest.raises(TimeoutError):
                    both.result(timeout=1)
            assert both.result(timeout=PATIENCE_S) == 499500
            del x, y, both


ARRAYS = [
    numpy.arange(0, dtype="f4"),
    numpy.array(5),
    numpy.random.default_rng(0).random((10, 20, 30)),
    numpy.asfortranarray(numpy.arange(24, dtype="u2").reshape(4, 6)),
    numpy.zeros((5, 0, 3), "c8"),
    numpy.array([(1, 2.5, b"abc")] * 4, "i4,f8,S3"),
    numpy.array(["2026-01-01"], "M8[D]"),
    numpy.array([b"abc", b"d"], "S3"),
    numpy.array(["abc", "d"], "U3"),
    numpy.arange(12, dtype=">i4"),
    numpy.array([True, False]),
]
VIEWS = [lambda x: x[...], lambda x: x[::-1], lambda x: x[1::2], lambda x: x.T]


def device_frame(client, nbytes):
    with client.empty(nbytes, "u1") as frame:
        return frame.view()


def dumped_to(client, x, family):
    caid.dask._receiver.set([client.machine_id, client.daemon_id])
    return serialize(x, serializers=[family], on_error="raise")


@pytest.mark.parametrize("family", ["caid", "dask", "cuda"])
@pytest.mark.parametrize("values", ARRAYS, ids=lambda x: f"{x.dtype}{x.shape}")
def test_bytes_arrive(client, monkeypatch, family, values):
    """The cases of Dask's own tests of NumPy's arrays and CuPy's, by each way."""
    monkeypatch.setattr(caid.dask._default, "default_client", lambda: client)
    monkeypatch.setattr(caid.dask._default, "client_at", lambda _id: client)
    monkeypatch.setattr(caid.dask, "_device_frame", lambda nbytes: device_frame(client, nbytes))
    with client.empty(values.shape, values.dtype, order="F" if values.flags.fnc else "C") as whole:
        whole.copy_from(values)
        for view in VIEWS if values.ndim else VIEWS[:1]:
            with view(whole) as sent:
                header, frames = dumped_to(client, sent, family)
                if family == "dask":
                    frames = [bytes(frame) for frame in frames]
                with deserialize(header, frames) as got:
                    assert got.dtype == values.dtype and got.shape == sent.shape
                    assert got.is_f_contiguous() == sent.is_f_contiguous() or not sent.is_c_contiguous()
                    assert got.copy_to_host().tobytes() == view(values).tobytes()
                del frames
            del sent


def test_own_tests(daemons):
    """Those of distributed, whose packages have none: CAID_DASK_TESTS is distributed/protocol/tests of its sources.
    What is pickled has a name, and these arrays have none."""
    folder = os.environ.get("CAID_DASK_TESTS")
    if folder is None:
        pytest.skip("no CAID_DASK_TESTS")
    names = "test_serialize or test_dumps_serialize or test_memmap or test_non_zero_strided_array"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "dask_own", "-k"]
    command += [f"({names}) and not (serializers2 or large or custom)"]
    command += [os.path.join(folder, name) for name in ("test_numpy.py", "test_cupy.py")]
    done = subprocess.run(command, env={**os.environ, **daemons["a"].env}, capture_output=True, text=True)
    assert done.returncode == 0 and "0 arrays were caid's" not in done.stdout.splitlines(), done.stdout


def test_who_is_elsewhere_or_unknown_gets_no_reference(client):
    with client.empty(4, "<i8") as x:
        for receiver in None, ["1" * 32, client.daemon_id], [client.machine_id, "2" * 32]:
            caid.dask._receiver.set(receiver)
            with pytest.raises(TypeError, match="Could not serialize"):
                serialize(x, serializers=["caid"], on_error="raise")
        with pytest.raises(TypeError):
            serialize(numpy.ones(3), serializers=["caid"], on_error="raise")


def is_running(nanny):
    process = nanny.process  # None: its nanny is about to make another one
    return process is not None and nanny.status == process.status == distributed.Status.running


def n_left(client):
    client.withdraw(gone=True)
    return client.status().arrays


def test_kills_leave_nothing(cluster, left):
    """Workers die at random while others have what they made; Dask computes it anew. One whose nanny is
    starting it is not killed: its nanny would end."""
    nannies, killed = list(cluster.cluster.workers.values()), {}
    for _ in range(N_KILLS // 2):
        wait_until(lambda: all(is_running(n) and n.process.process is not killed.get(n) for n in nannies))
        cluster.wait_for_workers(len(nannies), timeout=PATIENCE_S)
        made = [cluster.submit(make, 1000 + i, pure=False) for i in range(8)]
        chosen = [random.sample(range(8), 3) for _ in range(8)]
        sums = [cluster.submit(slow_sum, *(made[i] for i in some), pure=False) for some in chosen]
        for nanny in random.sample(nannies, 2):
            time.sleep(random.random() / 10)
            killed[nanny] = nanny.process.process
            os.kill(nanny.pid, signal.SIGKILL)
        distributed.wait(sums, timeout=PATIENCE_S)
        assert cluster.gather(sums) == [sum(sum(range(1000 + i)) for i in some) for some in chosen]
        del made, sums
    wait_until(lambda: (cluster.run(forget_errors), sum(n_left(c) for c in left.values()))[1] == 0)
