# SPDX-License-Identifier: Apache-2.0
"""Pools, between processes of different uids. Only root can play several users."""

import contextlib
import os

import conftest
import pytest
import raw
from conftest import AT_ONCE, charges, needs_root, public_daemon, wait_for

NOT_FOUND, PERMISSION, QUOTA = 6, 8, 9
ALICE, BOB, TEAM = 60001, 60002, 60009  # numbers will do: nobody needs to know them

pytestmark = needs_root

CONFIG = f"""{AT_ONCE}
[pool "team"]
owner = {ALICE}
group = {TEAM}
mode = 0640
quota = 8M
"""

# Everybody may do everything in it.
OPEN = '[pool "open"]\nmode = 0666\n'


@pytest.fixture
def daemon():
    with public_daemon(CONFIG) as d:
        yield d


def as_user(daemon, uid, groups, *calls):
    """What each call said, made by a process of that uid: its result, or the error's number."""

    def body(client):
        said = []
        for method, params in calls:
            try:
                said.append(client.call(method, **params))
            except raw.Refused as e:
                said.append(e.code)
        return said

    return conftest.as_user(daemon, uid, groups, body)


def connect(daemon, uid):
    """A client of that uid in this process: what the daemon is told of the peer is fixed at connect(2)."""
    os.seteuid(uid)
    try:
        return daemon.client()
    finally:
        os.seteuid(0)


def create(name, pool, mib=1):
    named = {"name": name} if name else {}
    return "create", {**named, "pool": pool, "typestr": "|u1", "shape": [mib << 20], "exclusive": True}


def open_(name, pool, mode="r"):
    return "open", {"names": [name], "pool": pool, "mode": mode}


def test_own_pool_is_for_its_uid_alone(daemon):
    own = f"uid:{ALICE}"
    (made,) = as_user(daemon, ALICE, [], create("secret", own))
    assert made["pool"] == own
    said = as_user(
        daemon,
        BOB,
        [TEAM, ALICE],
        open_("secret", own),
        open_("absent", own),
        ("show", {"name": "secret", "pool": own}),
        ("unlink", {"name": "secret", "pool": own}),
        create("mine", own),
        ("list", {"pool": own}),
        open_("secret", f"uid:{BOB}"),
    )
    # Absent and forbidden look the same.
    assert said[0] == said[1]
    assert all(isinstance(code, int) for code in said)
    (still,) = as_user(daemon, ALICE, [], open_("secret", own, "rw"))
    assert still["pool"] == own


def test_shared_pool_follows_owner_and_group(daemon):
    (made,) = as_user(daemon, ALICE, [], create("x", "team"))
    assert made["pool"] == "team"
    read, write, unlink, make = as_user(
        daemon,
        BOB,
        [TEAM],
        open_("x", "team"),
        open_("x", "team", "rw"),
        ("unlink", {"name": "x", "pool": "team"}),
        create("y", "team"),
    )
    assert read["pool"] == "team"
    assert (write, unlink, make) == (PERMISSION,) * 3
    outside = as_user(daemon, BOB, [], open_("x", "team"), open_("none", "team"))
    assert outside[0] == outside[1]
    assert isinstance(outside[0], int)


def test_quota(daemon):
    said = as_user(daemon, ALICE, [], create("a", "team", 6), create("b", "team", 4), create("c", "team", 2))
    assert said[1] == QUOTA
    assert said[0]["arrays"] and said[2]["arrays"]


def lease_of(reply):
    (array,) = reply["arrays"]
    return array["lease"]


def part(lease, name, offset=0, n=4096):
    return "publish_part", {"lease": lease, "offset": offset, "name": name, "typestr": "|u1", "shape": [n]}


def call(client, said):
    method, params = said
    return client.call(method, **params)


def code_of(client, said):
    try:
        call(client, said)
    except raw.Refused as e:
        return e.code
    return None


def test_part_is_in_the_pool_of_its_whole(daemon):
    """Who may read the pool reads the part, and no more than that; it takes no more of the quota than its whole."""
    with connect(daemon, ALICE) as alice:
        whole = lease_of(call(alice, create(None, "team", 8)))
        call(alice, part(whole, "p"))
        assert code_of(alice, create("more", "team")) == QUOTA

        def reads(client):
            array = call(client, open_("p", "team"))
            refused = [open_("p", "team", "rw"), ("unlink", {"name": "p", "pool": "team"}), part(lease_of(array), "q")]
            return array["pool"], [code_of(client, said) for said in refused]

        pool, codes = conftest.as_user(daemon, BOB, [TEAM], reads)
        assert (pool, codes) == ("team", [PERMISSION] * 3)
        outside = as_user(daemon, BOB, [], open_("p", "team"), open_("none", "team"))
        assert outside[0] == outside[1] and isinstance(outside[0], int)
        assert [e["name"] for e in alice.call("list", pool="team")["entries"]] == ["p"]


def test_only_its_creator_publishes_parts_of_an_array():
    """The memory is charged to that uid for as long as a part lives: nobody else prolongs that."""
    with public_daemon(OPEN) as d, connect(d, ALICE) as alice, connect(d, BOB) as bob:
        call(alice, create("w", "open"))
        lent = lease_of(call(bob, open_("w", "open", "rw")))
        assert code_of(bob, part(lent, "p")) == PERMISSION
        with connect(d, ALICE) as again:
            call(again, part(lease_of(call(again, open_("w", "open", "rw"))), "p"))
        assert code_of(bob, part(lease_of(call(bob, open_("p", "open", "rw"))), "q")) == PERMISSION
        assert [e["name"] for e in bob.call("list", pool="open")["entries"]] == ["p", "w"]
        call(alice, ("unlink", {"name": "w", "pool": "open"}))
        call(bob, ("unlink", {"name": "p", "pool": "open"}))  # the name is the pool's
        assert code_of(bob, part(lent, "p")) == PERMISSION


def test_part_whose_name_another_uid_took_is_gone():
    with public_daemon(OPEN) as d, connect(d, ALICE) as alice, connect(d, BOB) as bob:
        whole = lease_of(call(alice, create(None, "open", 4)))
        number = call(alice, part(whole, "p"))["part"]
        held = lease_of(call(bob, open_("p", "open")))
        asked = alice.request("parts")
        alice.notify("close", leases=[whole])
        own = lease_of(call(bob, create(None, "open", 2)))
        assert call(bob, ("publish", {"lease": own, "name": "p"}))["generation"] == 2
        assert [charges(d, uid)["bytes"] for uid in (ALICE, BOB)] == [4 << 20, 2 << 20]
        bob.notify("close", leases=[held])
        assert alice.response(asked) == {"parts": [number]}
        wait_for(lambda: not charges(d, ALICE)["bytes"], "the end of the charge")


def test_what_a_uid_left_is_its_own(daemon):
    """A named array outlives its creator's process and is charged to its uid."""
    as_user(daemon, ALICE, [], create("kept", f"uid:{ALICE}", 4))
    with daemon.client() as c:
        assert c.call("status")["names"] == 1
    as_user(daemon, ALICE, [], ("unlink", {"name": "kept", "pool": f"uid:{ALICE}"}))
    with daemon.client() as c:
        assert c.call("status")["names"] == 0


def test_whoever_leaves_most_unread_pays():
    """When too many fds are queued for all together, it is a connection of the uid that has most
    of them that goes, though another uid's has waited longer (I6)."""
    # A quarter in flight, a quarter in queues.
    with public_daemon(OPEN, max_fds=1024) as d:

        def open_unread(client, names):
            for i in range(0, len(names), 50):
                client.request("open", names=names[i : i + 50], pool="open", mode="r")

        with contextlib.ExitStack() as stack:
            owner = stack.enter_context(connect(d, 0))
            names = [f"n{i}" for i in range(300)]
            for name in names:
                method, params = create(name, "open")
                owner.call(method, **params)
            slow = stack.enter_context(connect(d, BOB))
            open_unread(slow, names)
            wait_for(lambda: owner.call("status")["leases"] == 600, "leases")
            greedy = [stack.enter_context(connect(d, ALICE)) for _ in range(6)]
            for c in greedy:
                open_unread(c, names[:50])
            wait_for(lambda: "left too much unread" in d.text(), "somebody to go")
            n = n_fds = 0
            while n < 300:
                n += len(slow.response()["arrays"])
                n_fds += len(slow.fds)
            assert n_fds == 300
            assert greedy[0].is_closed()
