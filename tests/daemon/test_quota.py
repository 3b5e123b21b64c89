# SPDX-License-Identifier: Apache-2.0
"""What a uid is charged, in which pool, what it is told when that is too much, and that all of it
is given back (I4). The figures of two uids are printed."""

import contextlib
import os

import pytest
import raw
from conftest import (
    AT_ONCE,
    MIB,
    NEVER,
    as_user,
    charges,
    in_child,
    kill,
    memory,
    needs_root,
    nothing_charged,
    public_daemon,
    wait_for,
)

PERMISSION, QUOTA, LIMIT = 8, 9, 10
ALICE, BOB = 60001, 60002
EVERYBODY = '[pool "all"]\nmode = 0666\n'


def create(client, n=MIB, **params):
    return client.call("create", typestr="|u1", shape=[n], **params)


def lease_of(reply):
    return reply["arrays"][0]["lease"]


def refused(code, call, *args, **params):
    with pytest.raises(raw.Refused) as e:
        call(*args, **params)
    assert e.value.code == code, e.value
    return str(e.value)


def pools(client):
    return {pool["name"]: pool for pool in client.call("pools")["pools"]}


def own_pool(client):
    return pools(client)[client.hello["pool"]]


def show(what, daemon):
    """The figures, for the record."""
    for who, uid in (("alice", ALICE), ("bob", BOB)):
        charged = {k: v for k, v in charges(daemon, uid).items() if v}
        print(f"{what}: {who}: {charged}")


# ---- one uid ----


@pytest.mark.parametrize(
    "limit, memory_kind, at_most",
    [("bytes = 8M", "device", 8), ("bytes = 8M", "legacy", 8), ("pinned_bytes = 8M", "pinned", 8), ("pinned_bytes = 8M", "mapped", 8)],
)
def test_bytes_are_of_arrays(start, limit, memory_kind, at_most):
    """Not of blocks; and only of that kind of memory."""
    d = start(config=AT_ONCE + f"[limits]\n{limit}\n")
    with d.client() as c:
        replies = [create(c, memory=memory_kind) for _ in range(at_most)]
        text = refused(QUOTA, create, c, 1, memory=memory_kind)
        assert "8 MiB" in text or "8.0 MiB" in text
        other = "pinned" if limit.startswith("bytes") else "device"
        create(c, memory=other)
        c.notify("close", leases=[lease_of(replies[0])])
        create(c, memory=memory_kind)
        refused(QUOTA, create, c, 1, memory=memory_kind)


def test_pinned_bytes_are_half_of_the_machine(daemon):
    """Unless the settings say otherwise. Nothing is touched here: a memfd has no pages of itself."""
    half = os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGESIZE")
    with daemon.client() as c:
        create(c, half - 4 * MIB, memory="pinned")
        refused(QUOTA, create, c, 8 * MIB, memory="pinned")
        create(c, MIB, memory="mapped")


@pytest.mark.parametrize(
    "limit, make",
    [
        ("arrays = 3", lambda c, i: create(c, 100)),
        ("names = 3", lambda c, i: create(c, 100, name=f"n{i}")),
        ("leases = 3", lambda c, i: create(c, 100)),
        ("host_bytes = 16K", lambda c, i: create(c, 100, metadata="x" * 4000)),
    ],
)
def test_limits_of_a_uid(start, limit, make):
    """Of all its connections together; the answer names the limit, and nothing of it stays."""
    d = start(config=AT_ONCE + f"[limits]\n{limit}\n")
    with d.client() as one, d.client() as two:
        for i in range(3):
            make((one, two)[i % 2], i)
        before = charges(d), memory(d)
        with pytest.raises(raw.Refused) as e:
            for i in range(3, 6):
                make(two, i)
        assert e.value.code in (QUOTA, LIMIT)
        if "host" not in limit:
            assert limit.split()[-1] in str(e.value)
            assert (charges(d), memory(d)) == before
        lease = make_room(one)
        assert lease
        make(two, 9)


def make_room(client):
    """Gives up the client's first array."""
    for entry in client.call("list")["entries"][:1]:
        client.call("unlink", name=entry["name"])
    client.notify("close", leases=[1])
    return client.call("ping") == {}


def test_limit_of_leases_refuses_the_whole_request(start):
    """All names that fit are opened, or none; no lease is left that nobody knows of."""
    d = start(config=AT_ONCE + "[limits]\nleases = 5\n")
    with d.client() as c:
        for i in range(3):
            c.notify("close", leases=[lease_of(create(c, 100, name=f"n{i}"))])
        assert charges(d)["leases"] == 0
        assert len(c.call("open", names=["n0", "n1", "n2"], mode="r")["arrays"]) == 3
        refused(LIMIT, c.call, "open", names=["n0", "n1", "n2"], mode="r")
        assert charges(d)["leases"] == 3
        assert len(c.call("open", names=["n0", "n1"], mode="r")["arrays"]) == 2


def test_blocks_of_a_pool(start):
    d = start(config=NEVER + "blocks = 3\n")
    with d.client() as c:
        leases = [lease_of(create(c, 100, exclusive=True)) for _ in range(3)]
        text = refused(LIMIT, create, c, 100, exclusive=True)
        assert "3 blocks" in text
        assert own_pool(c)["blocks"] == 3
        c.notify("close", leases=leases[:1])
        create(c, 100, exclusive=True)  # what waited in the queue makes room


def test_quota_is_of_blocks(start):
    """A pool pays for what the driver gave; what waits in the queue makes room when it is needed."""
    d = start(config=NEVER + "[user-pools]\nquota = 8M\n")
    with d.client() as c:
        leases = [lease_of(create(c, 4 * MIB, exclusive=True)) for _ in range(2)]
        text = refused(QUOTA, create, c, 100)
        assert "8 MiB" in text
        c.notify("close", leases=leases)
        assert own_pool(c)["pending"] == own_pool(c)["used"] == 8 * MIB
        create(c, 8 * MIB)
        assert own_pool(c)["used"] == 8 * MIB


def test_queue_is_charged_to_nobody(start):
    """But it is known whose entries they are."""
    d = start(config=NEVER)
    with d.client() as c:
        replies = [create(c) for _ in range(4)]
        charged = charges(d)
        assert (charged["arrays"], charged["bytes"], charged["leases"]) == (4, 4 * MIB, 4)
        c.notify("close", leases=[lease_of(r) for r in replies])
        charged = charges(d)
        assert charged.pop("pending") == 4
        assert charged.pop("connections") == 1
        assert charged.pop("host") > 0  # the blocks that were sent, until they are forgotten
        assert not any(charged.values())
        c.notify("close", leases=[], forget=sorted({r["arrays"][0]["block"] for r in replies}))
        assert charges(d)["host"] == 0


def test_connections_are_given_back(start):
    d = start(config="[limits]\nconnections = 4\n")
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(d.client())
        wait_for(lambda: d.status()["connections"] == 1, "the end of all")
    assert nothing_charged(d)


# ---- two ----


@needs_root
def test_one_uid_cannot_use_up_anothers():
    """Over quota and back, for two uids with a pool in common."""
    with public_daemon(AT_ONCE + EVERYBODY + "[limits]\nbytes = 16M\n") as d:

        def fill(client, n):
            for _ in range(n):
                create(client, 4 * MIB, pool="all")

        alice, bob = in_child(d, fill, 4, uid=ALICE), in_child(d, fill, 2, uid=BOB)
        show("filled", d)
        assert (charges(d, ALICE)["bytes"], charges(d, BOB)["bytes"]) == (16 * MIB, 8 * MIB)
        assert refused_as(d, ALICE, MIB, pool="all") == QUOTA
        assert refused_as(d, ALICE, MIB) == QUOTA  # of all pools together
        assert refused_as(d, BOB, 8 * MIB, pool="all") == 0
        kill(alice)
        wait_for(lambda: nothing_charged(d, ALICE), "the end of alice's")
        show("alice has gone", d)
        assert charges(d, BOB)["bytes"] == 8 * MIB
        assert refused_as(d, ALICE, 16 * MIB, pool="all") == 0
        kill(bob)
        wait_for(lambda: nothing_charged(d, BOB) and nothing_charged(d, ALICE), "the end of all")
        show("both have gone", d)
        wait_for(lambda: memory(d)["used"] == 0, "the release")


def refused_as(daemon, uid, n, **params):
    """The error's number, or 0."""

    def body(client):
        try:
            create(client, n, **params)
        except raw.Refused as e:
            return e.code
        return 0

    return as_user(daemon, uid, [], body)


@needs_root
def test_creator_pays_while_others_hold():
    """As with a file that was deleted while somebody has it open (docs/DESIGN_NOTES.md)."""
    with public_daemon(AT_ONCE + EVERYBODY) as d:

        def make(client):
            create(client, 4 * MIB, name="x", pool="all")
            return True

        def hold(client):
            client.call("open", names=["x"], pool="all", mode="r")
            client.call("unlink", name="x", pool="all")

        assert as_user(d, ALICE, [], make)
        bob = in_child(d, hold, uid=BOB)
        assert charges(d, ALICE)["bytes"] == 4 * MIB
        assert charges(d, ALICE)["names"] == 0
        assert (charges(d, BOB)["bytes"], charges(d, BOB)["leases"]) == (0, 1)
        with d.client() as c:
            (unnamed,) = c.call("unnamed", pool="all")["arrays"]
            assert unnamed["entries"][0]["name"] == "x"
            assert unnamed["entries"][0]["uid"] == ALICE
            assert [h["pid"] for h in unnamed["holders"]] == [bob.pid]
        kill(bob)
        wait_for(lambda: nothing_charged(d, ALICE) and nothing_charged(d, BOB), "the end of all")


@needs_root
def test_memory_of_one_pool_never_serves_another(tmp_path):
    """Not from the queue, not from the reserve: only by way of the driver, which scrubs it (I1)."""
    with public_daemon(NEVER, CAID_SOFTCUDA_MEMORY="16M") as d:

        def leave(client):
            lease = lease_of(create(client, 8 * MIB))
            client.notify("close", leases=[lease])
            return client.call("memory_info")["devices"][0]["available"]

        def take(client):
            before = client.call("memory_info")["devices"][0]["available"]
            reply = create(client, 8 * MIB)
            return [before, reply["arrays"][0]["block"]]

        assert as_user(d, ALICE, [], leave) == 8 * MIB
        with d.client() as c:
            (pool,) = (p for n, p in pools(c).items() if n == f"uid:{ALICE}")
            assert pool["pending"] == pool["used"] == 8 * MIB
        available, block = as_user(d, BOB, [], take)
        assert available == 0
        with d.client() as c:
            assert pools(c)[f"uid:{BOB}"]["used"] == 8 * MIB
        # Bob's next one needs the driver's memory: Alice's queue is flushed for it.
        assert refused_as(d, BOB, 12 * MIB) == 0
        with d.client() as c:
            assert pools(c).get(f"uid:{ALICE}", {"used": 0})["used"] == 0
        assert block


@needs_root
def test_deferring_is_for_ones_own():
    """It holds one's own entries back; another uid that runs out of memory overrides it."""
    with public_daemon(NEVER, CAID_SOFTCUDA_MEMORY="16M") as d:

        def defer(client):
            client.call("defer", begin=True)
            client.notify("close", leases=[lease_of(create(client, 8 * MIB))])
            client.call("ping")

        alice = in_child(d, defer, uid=ALICE)
        assert (charges(d, ALICE)["pending"], charges(d, ALICE)["deferred"]) == (1, 1)

        def flush(client):
            return client.call("flush")["entries"]

        assert as_user(d, BOB, [], flush) == 0
        with d.client() as c:
            assert c.call("flush")["entries"] == 0
        assert charges(d, ALICE)["pending"] == 1
        assert refused_as(d, BOB, 16 * MIB) == 0
        assert charges(d, ALICE)["pending"] == 0
        kill(alice)


@needs_root
def test_flush_is_of_ones_own():
    """All of it for root alone."""
    with public_daemon(NEVER) as d:

        def leave(client):
            client.notify("close", leases=[lease_of(create(client))])
            return client.call("ping") == {}

        for uid in (ALICE, BOB):
            assert as_user(d, uid, [], leave)
        assert as_user(d, BOB, [], lambda c: c.call("flush")["entries"]) == 1
        assert (charges(d, ALICE)["pending"], charges(d, BOB).get("pending", 0)) == (1, 0)
        with d.client() as c:
            assert c.call("flush")["entries"] == 1
        assert memory(d)["used"] == 0


@needs_root
def test_what_a_uid_may_see():
    with public_daemon(AT_ONCE) as d:
        alice = in_child(d, create, uid=ALICE)

        def look(client):
            return [[u["uid"] for u in client.call("users")["users"]], client.call("unnamed", all=True)["arrays"]]

        assert as_user(d, BOB, [], look) == [[BOB], []]
        with d.client() as c:
            assert ALICE in [u["uid"] for u in c.call("users")["users"]]
        kill(alice)
