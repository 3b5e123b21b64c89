# SPDX-License-Identifier: Apache-2.0
"""What a client asks the daemon, and how it finds it."""

import os
import select

import pytest

import caid


def test_status(client, daemon):
    status = client.status()
    assert status.server == f"caid {caid.__version__}"
    assert (status.pid, status.socket, status.connections) == (daemon.pid, daemon.address, 1)
    assert status.driver in ("cuda", "soft") and status.driver_path
    assert status.pool == f"uid:{os.getuid()}"


def test_what_a_device_can(client, soft):
    (device,) = client.devices
    assert device.uuid.startswith("GPU-") and device.total > 0
    assert device.granularity & (device.granularity - 1) == 0
    assert device.handoff in ("memops", "host", "events")
    assert isinstance(device.kinds, tuple) and "device" in device.kinds
    assert device.memops and device.readonly_host and not device.mps
    assert (device.persistence, device.compute_mode) == ("on", "default")


def test_figures(client):
    """As NumPy's and CUDA's: a shape is a tuple, and memory is (free, total, ...)."""
    for name in ("b/2", "a", "b/1"):
        client.create(name, (2, 3), "<f4").close()
    assert [e.name for e in client.list(all=True)] == ["a", "b/1", "b/2"]
    (entry, _) = client.list(prefix="b/")
    assert (entry.typestr, entry.shape, entry.nbytes, entry.device) == ("<f4", (2, 3), 24, 0)
    (pool,) = client.pools()[-1:]
    assert (pool.name, pool.mode) == (client.status().pool, 0o600)
    memory = client.memory_info(0)
    assert memory[:2] == (memory.free, memory.total) and 0 < memory.free <= memory.total
    with client.open("a"):
        (holder,) = client.show("a").holders
        assert (holder.pid, holder.readonly) == (os.getpid(), True)


def test_show_tells_of_fields_and_strides(client):
    with client.create("a", 1, [("x", "<f4")]), client.create("b", (2, 3), strides=(64, 8)):
        a, b = client.show("a"), client.show("b")
        assert (a.descr, a.strides) == ('[["x","<f4"]]', None)
        assert (b.descr, b.strides) == (None, (64, 8))
        ages = {"age_ns": 0, "published_ns": 0, "opened_ns": 0}
        listed = client.list()
        assert [e._replace(**ages) for e in (a.entry, b.entry)] == [e._replace(**ages) for e in listed]
        assert all(0 < age < 600 * 10**9 for e in listed for age in (e.age_ns, e.published_ns, e.opened_ns))


def test_open_many(client):
    assert client.open_many([]) == []
    for name in "abc":
        client.create(name, 4, "|u1").close()
    arrays = client.open_many(iter("cab"), "rw")
    assert [a.name for a in arrays] == ["c", "a", "b"] and not arrays[0].readonly
    for a in arrays:
        a.close()


def test_a_pool_by_its_name(client):
    own = client.status().pool
    with client.create("a", 4, pool=own) as a, client.open("a", pool=own) as b:
        assert a.pool == b.pool == own
    assert [e.name for e in client.list(pool=own)] == ["a"]
    client.unlink("a", pool=own)


def test_the_loops_descriptor(client):
    ready, _, _ = select.select([client], [], [], 0)
    assert ready == []
    client.dispatch()


def test_the_socket_from_the_environment(daemon, client, monkeypatch):
    monkeypatch.setenv("CAID_SOCKET", daemon.address)
    with caid.connect() as c:
        assert c.status().socket == daemon.address
    monkeypatch.delenv("CAID_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.path.dirname(daemon.address))
    with caid.connect() as c:  # there it is called caid.sock, too
        assert c.status().socket == daemon.address


def test_addresses_are_paths(daemon, client):
    with caid.connect(os.fsencode(daemon.address)) as c:
        c.ping()


def test_the_clients_name(daemon, client):
    client.create("a", 4).close()
    for name, seen in [("trainer", "trainer"), (None, caid._session._client._program_name())]:
        with daemon.connect(name=name) as c, c.open("a"):
            (holder,) = client.show("a").holders
            assert holder.client == seen


@pytest.mark.parametrize(
    "argv, name",
    [
        (["/usr/bin/train.py", "x"], "train.py"),
        (["-c"], None),
        ([], None),
        ([""], None),
        (["a\nb"], None),
        (["\u00e9" * 50], "\u00e9" * 32),
    ],
)
def test_the_programs_name(monkeypatch, argv, name):
    monkeypatch.setattr("sys.argv", argv)
    assert caid._session._client._program_name() == name


def test_fileno_says_why_there_is_none(child, client):
    with pytest.raises(caid.ClosedError, match="no connection to a daemon"):
        caid._caid.Client._local(None).fileno()
    c = child(
        """
        import errno, os, resource

        with caid.connect() as c:
            n = len(os.listdir("/proc/self/fd")) - 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))
            try:
                c.fileno()
            except caid.Error as e:
                assert (e.code, e.errno) == (caid.ErrorCode.SYSTEM, errno.EMFILE), repr(e)
                sys.exit(7)
        """
    )
    status, errors = c.finish()
    assert status == 7, errors
