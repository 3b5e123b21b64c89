# SPDX-License-Identifier: Apache-2.0
"""metrics: what it counts is what was done, and nobody sees another uid's figures."""

import collections
import os
import random
import signal

import pytest
import raw
from conftest import MIB, as_user, in_child, kill, needs_root, public_daemon, wait_for
from slots import begin, end, own_page
from slots import signal as land
from test_supervise import child_of

ALICE, BOB = 60001, 60002
NAMES = {4: "INVALID", 5: "INVALID_NAME", 6: "NOT_FOUND", 7: "EXISTS", 9: "QUOTA", 10: "LIMIT", 19: "TIMEOUT"}


def pages(client, **params):
    """All metrics, portion by portion."""
    while True:
        page = client.call("metrics", **params)
        yield page["metrics"]
        if not page["more"]:
            return
        params = {key: page[key] for key in ("from", "pool") if key in page}


def metrics(client):
    """Values, by what they are of."""
    found = {}
    for metric in (metric for page in pages(client) for metric in page):
        value = metric.pop("value")
        key = tuple(sorted(metric.items()))
        assert key not in found
        found[key] = value
    return found


def kinds(found, name):
    """Values of that name, by kind; of all devices and pools."""
    values = collections.Counter()
    for key, value in found.items():
        if ("name", name) in key:
            values[dict(key).get("kind")] += value
    return values


def total(found, name):
    return sum(kinds(found, name).values())


def outcomes(found):
    keys = (dict(key) for key in found)
    return {(k["kind"], k["outcome"]): found[tuple(sorted(k.items()))] for k in keys if k["name"] == "requests_total"}


def create(client, n=100, **params):
    return client.call("create", typestr="|u1", shape=[n], **params)["arrays"][0]["lease"]


# What a client may do; some of it is refused, by what was done before.
OPERATIONS = {
    "ping": lambda c, r: c.call("ping"),
    "create": lambda c, r: create(c, name=f"n{r.randrange(6)}"),
    "open": lambda c, r: c.call("open", names=[f"n{r.randrange(8)}"], mode="r"),
    "unlink": lambda c, r: c.call("unlink", name=f"n{r.randrange(8)}"),
    "show": lambda c, r: c.call("show", name="x" * r.choice([2, 300])),
    "flush": lambda c, r: c.call("flush"),
    "memory_info": lambda c, r: c.call("memory_info"),
    "begin": lambda c, r: c.call("begin", bracket=r.randrange(3), read=[c.lease]),
    "drain": lambda c, r: c.call("drain", undo=True),
    "nonsense": lambda c, r: c.call("nonsense"),
    "end": lambda c, r: end(c, c.open.pop()) if c.open else c.call("ping"),
    "close": lambda c, r: c.notify("close", leases=[create(c)]),
}


@pytest.mark.parametrize("seed", range(5))
def test_requests_are_counted_by_method_and_outcome(start, seed):
    d = start(config="[limits]\nleases = 12\n")
    r, done = random.Random(seed), collections.Counter()

    class Counting(raw.Client):
        def call(self, method, **params):
            outcome = "OK"
            try:
                return super().call(method, **params)
            except raw.Refused as e:
                outcome = {3: "UNKNOWN_METHOD", **NAMES}[e.code]
                raise
            finally:
                done["unknown" if method == "nonsense" else method, outcome] += 1
                if method == "begin" and outcome == "OK":
                    self.open.append(params["bracket"])

        def notify(self, method, **params):
            super().notify(method, **params)
            done[method, "OK"] += 1

    with d.client() as watcher, Counting(d.socket) as c:
        c.lease, c.open = create(c), []
        before = metrics(watcher)
        wanted = collections.Counter(outcomes(before))
        done.clear()
        for _ in range(300):
            try:
                OPERATIONS[r.choice(list(OPERATIONS))](c, r)
            except raw.Refused:
                pass
        c.call("ping")
        wanted.update(done)
        wanted["metrics", "OK"] += 1
        after = metrics(watcher)
    assert outcomes(after) == wanted
    refused = sum(n for (_, outcome), n in wanted.items() if outcome != "OK")
    assert total(after, "refused_total") == refused
    assert total(after, "answered_total") == sum(wanted.values()) - refused
    assert kinds(after, "refusals_total")["leases"] == sum(n for (_, o), n in done.items() if o == "LIMIT") > 0
    assert total(after, "brackets_begun_total") == wanted["begin", "OK"] > 0
    assert total(after, "brackets_ended_total") == wanted["end", "OK"] > 0


def test_handoffs_and_waits(daemon):
    with daemon.client() as a, daemon.client() as b:
        lease = create(a, name="x")
        other = b.call("open", names=["x"], mode="r")["arrays"][0]["lease"]
        page = own_page(a)
        begin(a, 1, write=[lease])
        number = b.request("begin", bracket=1, read=[other])
        wait_for(lambda: a.call("list")["entries"][0].get("waiting"), "the wait")
        land(a, 1, page, 1)
        b.response(number)
        end(b, 1)
        b.call("ping")
        found = metrics(a)
        page.close()
    names = "brackets_begun", "brackets_ended", "fences", "waits"
    assert [total(found, f"{name}_total") for name in names] == [2, 2, 1, 1]
    assert total(found, "wait_ns_total") > 0


def test_memory_is_what_status_says(daemon):
    with daemon.client() as c:
        for n, kind in ((100, "device"), (40 * MIB, "device"), (3 * MIB, "pinned")):
            create(c, n, memory=kind)
        (device,), (pool,), found = c.call("memory_info")["devices"], c.call("pools")["pools"], metrics(c)
        for prefix in ("", "pool_"):
            blocks = kinds(found, f"{prefix}memory_bytes")
            taken = kinds(found, f"{prefix}memory_allocated_bytes")
            assert blocks["device"] + blocks["legacy"] == device["used"] == pool["used"]
            assert blocks["pinned"] == device["pinned"] == pool["pinned"]
            assert taken["device"] + taken["legacy"] == device["allocated"] == pool["allocated"]
            assert 3 * MIB <= taken["pinned"] <= blocks["pinned"]
        n_arrays = c.call("status")["arrays"]
    assert total(found, "device_bytes") == device["total"]
    assert kinds(found, "charged")["arrays"] == total(found, "pool_arrays") == n_arrays == 3


@needs_root
def test_figures_are_those_of_pools_and_users():
    """Every number that is counted of them; of all users, the sums."""
    with public_daemon("") as d, d.client() as c:
        keeps = in_child(d, lambda c: create(c, 3 * MIB), uid=ALICE)
        create(c, 5 * MIB, name="x")
        create(c, 2 * MIB, name="y", memory="pinned")
        pools, users, found = c.call("pools")["pools"], c.call("users")["users"], metrics(c)
        kill(keeps)
    assert len(pools) == len(users) == 2
    found = {tuple(value.removesuffix("_bytes") if name == "name" else value for name, value in key): n for key, n in found.items()}
    for pool in pools:
        for figure in pool.keys() - {"name", "uid", "gid", "mode", "legacy"}:
            assert found[f"pool_{figure}", pool["name"]] == pool[figure]
    for figure in users[0].keys() - {"uid", "time_ns"}:
        for user in users:
            assert found[(figure, "user_charged", *filter(None, [user["uid"]]))] == user[figure]
        assert found[figure, "charged"] == sum(user[figure] for user in users)


def test_turns(daemon):
    """Each turn is in one bucket; asking takes one at least."""
    with daemon.client() as c:
        before, after = metrics(c), metrics(c)
    assert 0 < total(before, "turns") < total(after, "turns")
    assert 0 < total(before, "turn_ns_sum") < total(after, "turn_ns_sum")
    assert len({dict(key).get("le_ns") for key in after if ("name", "turns") in key}) == 16


@needs_root
def test_nobody_sees_anothers(tmp_path):
    config = f'[pool "ours"]\nowner = {ALICE}\nmode = 0600\n[pool "open"]\nowner = {ALICE}\nmode = 0644\n'
    with public_daemon(config) as d:
        def of(uid):
            found = as_user(d, uid, [], lambda c: [create(c), [m for page in pages(c) for m in page]][1])
            return {m.get("uid", 0) for m in found if m["name"].startswith("user_")}, {m["pool"] for m in found if "pool" in m}

        keeps = in_child(d, lambda c: create(c), uid=ALICE)
        assert of(BOB) == ({BOB}, {f"uid:{BOB}", "open"})
        assert of(ALICE) == ({ALICE}, {f"uid:{ALICE}", "ours", "open"})
        with d.client() as root:
            found = metrics(root)
            assert {dict(key).get("uid", 0) for key in found if ("name", "user_time_ns_total") in key} >= {0, ALICE}
            assert kinds(found, "charged")["arrays"] == 1
        kill(keeps)
        assert of(BOB)[0] == {BOB}


def test_deaths(daemon):
    """Of those who had something: not of who closes its connection, or has nothing."""
    with daemon.client() as c:
        holds, idle = in_child(daemon, create), in_child(daemon, lambda c: None)
        assert total(metrics(c), "deaths_total") == 0
        kill(idle)
        kill(holds)
        wait_for(lambda: kinds(metrics(c), "charged")["connections"] == 1, "the end")
        found = metrics(c)
    assert (total(found, "deaths_total"), total(found, "user_deaths_total")) == (1, 1)
    assert total(found, "connections_total") >= 3


def test_paged(start):
    """A page begins where the one before it has ended, between any two figures."""
    pools = "".join(f'[pool "p{i}"]\nowner = {os.getuid()}\n' for i in range(300))
    with start(config=pools).client() as c:
        sizes = [len(page) for page in pages(c)]
        assert len(sizes) > 2 and max(sizes) <= 512
        assert len([key for key in metrics(c) if ("name", "pool_arrays") in key]) == 301


def test_restarts(start):
    d, pid = start("--supervise"), None
    for n in range(3):
        if pid:
            os.kill(pid, signal.SIGKILL)
        pid = child_of(d, pid)
        with d.client() as c:
            assert total(metrics(c), "restarts_total") == n
