# SPDX-License-Identifier: Apache-2.0
"""Holders that die, or only hang up: when their memory is used again, and what stays of them.

A client that has hung up may still have work on the GPU, so its memory waits for the exit of its
process (I2). After a SIGKILL everything that was made for it is undone (I4, I9); here in the states that
libcaid does not come to, or that its programs do not stay in: the others are tests/stress's."""

import contextlib
import os
import socket
import time

import pytest
import raw
import slots
from conftest import (
    AT_ONCE,
    DEADLINE,
    LEGACY,
    MIB,
    charges,
    fd_count,
    fork,
    in_child,
    kill,
    memory,
    nothing_charged,
    used,
    wait_for,
)
from raw import pack


def create(client, n=3 * MIB, **params):
    return client.call("create", typestr="|u1", shape=[n], **params)["arrays"][0]


def figures(daemon):
    """All that has to be as it was, seen through one connection."""
    with daemon.client() as c:
        status = c.call("status")
        (info,) = c.call("memory_info")["devices"]
        users = [{**user, "time_ns": 0} for user in c.call("users")["users"]]
        fds = fd_count(daemon)
    counts = (
        *("connections", "blocks", "arrays", "names", "leases", "jobs", "watches", "pending"),
        *("brackets", "pages", "timelines"),
    )
    sums = ("used", "pinned", "allocated", "pending_bytes", "reserve", "free")
    return {
        **{k: status[k] for k in counts},
        **{k: info[k] for k in sums},
        "users": users,
        "fds": fds,
    }


def settled(daemon, n_connections):
    """The figures when no connection is there but n_connections and the one that asks, and the
    driver has nothing left to do."""

    def is_settled():
        f = figures(daemon)
        return f if (f["connections"], f["jobs"]) == (n_connections + 1, 0) else None

    return wait_for(is_settled, "the others' end")


def wait_until_as_before(daemon, before):
    try:
        wait_for(lambda: figures(daemon) == before, "everything as it was")
    except BaseException:
        print(before, figures(daemon), sep="\n")
        raise


@pytest.fixture
def daemon(start):
    """Something is there already that must not be disturbed."""
    d = start(config=AT_ONCE + LEGACY)
    with d.client() as c:
        create(c, 1000, name="shared")
        create(c, 1000, name="pinned", memory="pinned")
        yield d


# ---- hanging up ----


def hangs_up_with_memory(client):
    create(client, 64 * MIB)
    client.close()


def test_memory_waits_for_the_exit(start):
    d = start(config=AT_ONCE, CAID_SOFTCUDA_MEMORY="64M")
    process = in_child(d, hangs_up_with_memory)
    wait_for(lambda: d.status()["connections"] == 1, "the end of its connection")
    assert used(d) == 64 * MIB
    assert charges(d)["connections"] == 1  # its pidfd has to be paid for
    assert charges(d)["leases"] == charges(d)["arrays"] == 1
    with d.client() as c:
        assert c.call("flush")["bytes"] == 0
        (lost,) = c.call("unnamed")["arrays"]
        assert lost["holders"][0]["pid"] == process.pid
        assert lost["holders"][0]["hung_up"] is True
    kill(process)
    wait_for(lambda: used(d) == 0, "the release")
    wait_for(lambda: nothing_charged(d), "the end of all charges")


def test_fds_of_who_hung_up_are_bounded(start):
    """Each counts as a connection of its uid until its process has exited."""
    d = start(config=AT_ONCE + "[limits]\nconnections = 8\n")
    before = settled(d, 0)

    def hang_up_often(client, path):
        client.close()
        done = 0
        for _ in range(50):
            with contextlib.suppress(raw.Refused, raw.Closed), d.client() as c:
                create(c, 100)
                done += 1
        path.write_text(str(done))

    count = d.log.parent / "count"
    process = in_child(d, hang_up_often, count)
    assert 0 < int(count.read_text()) <= 8
    kill(process)

    def is_as_before():
        with contextlib.suppress(raw.Refused):  # the limit is still reached
            return figures(d) == before

    wait_for(is_as_before, "the end of all")


def test_who_hangs_up_without_memory_is_gone(daemon):
    before = settled(daemon, 1)

    def body(client):
        lease = create(client, name="mine")["lease"]
        client.call("unlink", name="mine")
        client.notify("close", leases=[lease])
        client.call("ping")
        client.close()

    process = in_child(daemon, body)
    wait_until_as_before(daemon, before)
    assert process.is_alive()
    kill(process)


def test_who_breaks_a_rule_is_one_who_hangs_up(daemon):
    """The daemon ends the connection; the process lives on, and its GPU work may."""
    before = settled(daemon, 1)

    def body(client):
        create(client)
        client.send(b"\xc1")
        assert client.is_closed()

    process = in_child(daemon, body)
    assert memory(daemon)["allocated"] == before["allocated"] + 3 * MIB
    kill(process)
    wait_until_as_before(daemon, before)


def test_stop_does_not_wait_for_processes(start):
    d = start(config=AT_ONCE)
    process = in_child(d, hangs_up_with_memory)
    wait_for(lambda: d.status()["connections"] == 1, "the end of its connection")
    assert d.stop() == 0
    kill(process)


def test_exit_that_comes_first(daemon):
    """The process is gone while its socket lives on in a child."""
    before = settled(daemon, 1)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        c = daemon.client()
        create(c)
        c.drop_fds()  # memory lives as long as an fd of it
        if os.fork() == 0:
            os.read(reader, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    try:
        wait_until_as_before(daemon, before)
    finally:
        os.write(writer, b"x")
        os.close(writer)
        os.close(reader)


# ---- SIGKILL in every state ----


def hello_sent(daemon):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(str(daemon.socket))
    s.send(pack([0, 1, "hello", {"version_min": 1, "version_max": 1}]))
    return s


def half_read(daemon):
    """Replies with fds in flight, and more of them in the daemon's queue."""
    c = daemon.client()
    for i in range(64):
        create(c, 100, exclusive=True)
    other = daemon.client()
    other.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for i in range(300):
            other.request("list")
            other.request("open", names=["shared", "pinned"], mode="r")
    return c, other


def using(daemon):
    """Brackets that are open, that wait, and that have ended with work under way."""
    c = daemon.client()
    (shared,) = c.call("open", names=["shared"], mode="rw")["arrays"]
    mine = [create(c, 1000)["lease"] for _ in range(3)]
    page = slots.own_page(c)
    for bracket in (1, 2):
        slots.begin(c, bracket, read=[shared["lease"]], write=mine[bracket : bracket + 1], nowait=True)
        slots.signal(c, bracket, page, bracket)
    slots.begin(c, 3, write=mine)
    for bracket in (4, 5):
        c.request("begin", bracket=bracket, read=[shared["lease"]], write=mine[:1], thread=bracket)
    return c


def signalling(daemon):
    """Pages that are used, named, given up with a value on its way, and never mapped."""
    c = daemon.client()
    used, given_up = (slots.named(c, f"{what} of {os.getpid()}") for what in ("used", "given up"))
    for page in (used, given_up):
        page.submit(2)
        page.land(1)
    slots.give_up(c, given_up)
    for _ in range(3):
        c.call("page")
    return c


def waiting_for_others(daemon):
    """With pages of another client's."""
    c, other = daemon.client(), signalling(daemon)
    for t in c.call("timelines")["timelines"]:
        with contextlib.suppress(raw.Refused):  # of another process that has been killed
            c.call("open_timeline", name=t["name"])
    return c, other


def warm(daemon):
    """What is made once and kept: libuv's threads, and what the driver has after a first context."""

    def body(client):
        client.call("create", typestr="|u1", shape=[1], memory="legacy", exclusive=True)

    kill(in_child(daemon, body))
    wait_for(lambda: daemon.status()["arrays"] == 2, "its end")
    wait_for(lambda: memory(daemon)["pending"] == memory(daemon)["reserve"] == 0, "the queue")


def enter(daemon, state, entered):
    kept = state(daemon)
    entered.release()
    time.sleep(DEADLINE)
    del kept


def start_in(daemon, state, n=1):
    """So many processes that are in the state."""
    entered = fork.Semaphore(0)
    processes = [fork.Process(target=enter, args=(daemon, state, entered)) for _ in range(n)]
    for p in processes:
        p.start()
    for _ in processes:
        assert entered.acquire(timeout=DEADLINE)
    return processes


@pytest.mark.parametrize("state", [hello_sent, half_read, using, signalling, waiting_for_others])
def test_sigkill(daemon, state):
    warm(daemon)
    before = settled(daemon, 1)
    processes = start_in(daemon, state, 3)
    for p in processes:
        p.kill()
    for p in processes:
        p.join()
    wait_until_as_before(daemon, before)


def test_hang_up_with_a_slow_driver(start):
    """The driver is in the middle of it, and the process lives on: it was never told of the memory, so nothing waits
    for it."""
    d = start(config=AT_ONCE, CAID_SOFTCUDA_FAIL="cuMemCreate=delay:100000")

    def body(client):
        for _ in range(4):
            client.request("create", typestr="|u1", shape=[MIB], exclusive=True)
        client.close()

    process = in_child(d, body)
    wait_for(lambda: d.status()["jobs"] == 0, "the end of the jobs")
    wait_for(lambda: used(d) == 0, "the release")
    assert process.is_alive()
    kill(process)
    wait_for(lambda: nothing_charged(d), "the end of all charges")
