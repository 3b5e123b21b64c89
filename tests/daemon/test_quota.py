# SPDX-License-Identifier: Apache-2.0
"""What a uid is charged, in which pool, what it is told when that is too much, and that all of it
is given back (I4). The figures of two uids are printed."""

import contextlib
import os

import pytest
import raw
from conftest import AT_ONCE, MIB, NEVER, charges, memory, nothing_charged, refused, wait_for
QUOTA, LIMIT = 9, 10


def create(client, n=MIB, **params):
    return client.call("create", typestr="|u1", shape=[n], **params)


def lease_of(reply):
    return reply["arrays"][0]["lease"]


def pools(client):
    return {pool["name"]: pool for pool in client.call("pools")["pools"]}


def own_pool(client):
    return pools(client)[client.hello["pool"]]


# ---- one uid ----


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
        ("host_bytes = 60K", lambda c, i: create(c, 100, metadata="x" * 4000)),
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


def test_blocks_of_a_pool(start):
    d = start(config=NEVER + "blocks = 3\n")
    with d.client() as c:
        leases = [lease_of(create(c, 100, exclusive=True)) for _ in range(3)]
        text = str(refused(LIMIT, create, c, 100, exclusive=True))
        assert "3 blocks" in text
        assert own_pool(c)["blocks"] == 3
        c.notify("close", leases=leases[:1])
        create(c, 100, exclusive=True)  # what waited in the queue makes room


def test_connections_are_given_back(start):
    d = start(config="[limits]\nconnections = 4\n")
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(d.client())
        wait_for(lambda: d.status()["connections"] == 1, "the end of all")
    assert nothing_charged(d)
