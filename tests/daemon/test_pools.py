# SPDX-License-Identifier: Apache-2.0
"""Pools, between processes of different uids. Only root can play several users."""

import contextlib
import os

import conftest
import pytest
import raw
from conftest import AT_ONCE, needs_root, public_daemon, wait_for

PERMISSION = 8
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


def call(client, said):
    method, params = said
    return client.call(method, **params)


def test_whoever_leaves_most_unread_pays():
    """When too many fds are queued for all together, it is a connection of the uid that has most
    of them that goes, though another uid's has waited longer (I6)."""
    # A quarter in flight, a quarter in queues.
    with public_daemon(OPEN, max_fds=1024) as d:

        def open_unread(client, names):
            for i in range(0, len(names), 8):
                client.request("open", names=names[i : i + 8], pool="open", mode="r")

        with contextlib.ExitStack() as stack:
            owner = stack.enter_context(connect(d, 0))
            names = [f"n{i}" for i in range(200)]
            for name in names:
                method, params = create(name, "open")
                owner.call(method, **params)
            slow = stack.enter_context(connect(d, BOB))
            open_unread(slow, names)
            wait_for(lambda: owner.call("status")["leases"] in (200 + 136, 200 + 144), "leases")
            greedy = [stack.enter_context(connect(d, ALICE)) for _ in range(45)]
            for c in greedy:
                open_unread(c, names[:8])
            wait_for(lambda: "left too much unread" in d.text(), "somebody to go")
            n = n_fds = 0
            while n < 200:
                n += len(slow.response()["arrays"])
                n_fds += len(slow.fds)
            assert n_fds == 200
            assert greedy[8].is_closed()  # what the first eight asked for is in flight


@pytest.mark.parametrize("n", [1024, 1025])
def test_groups_are_charged_and_bounded(daemon, n):
    """Each takes the kernel 70 ns, and the daemon 4 bytes."""
    groups = list(range(10000, 10000 + n))
    if n > 1024:
        with pytest.raises(AssertionError):
            as_user(daemon, 1234, groups, ("ping", {}))
        assert "a process with more than 1024 groups is refused" in daemon.text()
    else:
        users = [as_user(daemon, 1234, of, ("users", {}))[0]["users"][0]["host"] for of in ([], groups)]
        assert users[1] - users[0] == 4 * n
