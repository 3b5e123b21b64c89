# SPDX-License-Identifier: Apache-2.0
"""Who looks on sees what passes, of whom it may, and no secret; and what it lost is counted."""

import json
import pathlib
import re

import pytest
from conftest import LEGACY, charges, in_child, kill, needs_root, nothing_charged, public_daemon, refused, wait_for
from test_reload import ALICE, TEAM, connect

PERMISSION, LIMIT, NOT_FOUND = 8, 10, 6  # proto/errors.def
BOB, NOBODY = 60002, 65534
PROTO = pathlib.Path(__file__).resolve().parent.parent.parent / "proto"
TABLE = "".join((PROTO / name).read_text() for name in ("answers.def", "messages.def"))
TABLE = re.sub(r"^FIGURE\((\w+)", r"FIELD(\1, U64", TABLE, flags=re.M)
FIELDS = re.findall(r"^(FIELD|SECRET)\((\w+), (\w+), (\w+), \w+[,)]", TABLE, re.M)
METHODS = re.findall(r"^(REQUEST|NOTIFY)\(\w+, (\w+), (\w+)", TABLE, re.M)
SECRETS = {"token", "ticket", "handle", "metadata", "info"}
BLANK = "(secret)"


class Looker:
    """A connection that looks on; it has answers to its requests as long as there is something."""

    def __init__(self, client, **filters):
        self.client, self.filters = client, filters
        self.ask()

    def ask(self):
        self.client.request("monitor", **self.filters)

    def next(self):
        while "messages" not in (result := self.client.response()):
            pass  # it has asked for something else, too
        self.ask()
        for message in result["messages"]:
            message["body"] = json.loads(message["body"])
        return result

    def until(self, condition):
        """All messages, up to one for which that holds."""
        messages = []
        while not any(condition(m) for m in messages):
            messages += self.next()["messages"]
        return messages


def is_a(kind, method):
    return lambda m: m["type"] == kind and m.get("method") == method


def canary(kind, number):
    """A value that is found nowhere else."""
    big = 7_000_000_000_000_000 + number * 1000
    return {"BOOL": True, "U64": big, "I64": -big, "STR": f"canary{big}"}.get(kind) or {
        "U64S": [big, big + 1], "I64S": [big, -big], "STRS": [f"canary{big}", "x"]
    }[kind]


def test_the_table_knows_its_secrets():
    assert {(record, name) for macro, record, _, name in FIELDS if macro == "SECRET"} == {
        (record, name) for _, record, _, name in FIELDS if name in SECRETS
    }


@pytest.mark.parametrize("macro, method, params", METHODS, ids=[m[1] for m in METHODS])
def test_every_request_passes_without_its_secrets(start, macro, method, params):
    """Whatever becomes of it: each field has a value that would be found."""
    d = start()
    fields = [(kind, name) for _, record, kind, name in FIELDS if record == params]
    values = {name: canary(kind, i) for i, (kind, name) in enumerate(fields)}
    with d.client() as c, d.client(hello=method != "hello") as other:
        looker = Looker(c)
        if macro == "REQUEST":
            other.request(method, **values)
        else:
            other.notify(method, **values)
        is_this = is_a(0 if macro == "REQUEST" else 2, method)
        (seen,) = filter(is_this, looker.until(is_this))
        assert seen["body"] == {k: BLANK if k in SECRETS else v for k, v in values.items()}
        for name in SECRETS & values.keys():
            assert str(values[name]).strip("[]").split(",")[0] not in str(seen)


def secrets_in(value):
    """What is under the keys of secrets, wherever they are."""
    if isinstance(value, list):
        return [s for v in value for s in secrets_in(v)]
    if not isinstance(value, dict):
        return []
    return [s for k, v in value.items() for s in ([(k, v)] if k in SECRETS else secrets_in(v))]


def test_answers_pass_without_their_secrets(start):
    d = start("--supervise", config=LEGACY)
    with d.client() as c:
        looker = Looker(c)
        with d.client(hello=False) as other:
            assert len(other.call("hello", version_min=1, version_max=1, features=["resume"])["token"]) == 2
            for memory in "device", "legacy":
                other.call("create", name=memory, typestr="|u1", shape=[8], memory=memory, metadata="of the user")
        with d.client() as reader:
            opened = reader.call("open", names=["legacy"], mode="r")
            shown = reader.call("show", name="device")
        assert opened["blocks"][0]["handle"] and shown["metadata"] == "of the user"
        messages = looker.until(is_a(1, "show"))
        secrets = [s for m in messages for s in secrets_in(m["body"])]
        assert {k for k, _ in secrets} == {"token", "handle", "metadata"}
        assert {v for _, v in secrets} == {BLANK}
        assert "of the user" not in str(messages)


def test_what_is_told_of_a_message(start):
    d = start()
    with d.client() as c, d.client() as other:
        looker = Looker(c)
        leased = other.call("create", name="x\"\\\u202e", typestr="|u1", shape=[8])["arrays"][0]["lease"]
        refused(NOT_FOUND, other.call, "open", names=["no"] * 20, mode="r", pool="p")
        other.notify("close", leases=[leased])
        messages = looker.until(is_a(2, "close"))
        assert [(m["type"], m.get("method"), m["id"], m.get("pool"), m.get("refused", False)) for m in messages] == [
            (0, "create", 2, c.hello["pool"], False),
            (1, "create", 2, None, False),
            (0, "open", 3, "p", False),
            (1, None, 3, None, True),
            (2, "close", 0, None, False),
        ]
        assert messages[0]["body"]["name"] == "x\"\\\u202e"
        assert messages[3]["body"] == {"code": NOT_FOUND, "text": 'no array "no" in pool "p"'}
        assert messages[2]["body"]["names"] == ["no"] * 8 + ["12 more"]
        assert len({m["conn"] for m in messages}) == 1
        refused(NOT_FOUND, other.call, "list", prefix="é" * 1000, pool="\x1b\x85")
        listed = looker.until(is_a(0, "list"))[0]
        refused(NOT_FOUND, other.call, "list", pool="a" + "é" * 200)  # which is cut in a character
        assert "é" in looker.until(lambda m: m.get("refused") and m["id"] == other.next_id)[-1]["body"]["text"]
        assert listed["body"]["prefix"] == "é" * 128 + "…"
        assert (listed["body"]["pool"], listed["pool"]) == ("\x1b\x85", "\x1b\x85")


def test_who_looks_on_is_not_seen(start):
    d = start()
    with d.client() as a, d.client() as b:
        lookers = [Looker(a), Looker(b)]
        for c in a, b:
            c.request("ping")
        with d.client():
            pass
        for looker in lookers:
            assert {m.get("method") for m in looker.until(is_a(1, "hello"))} <= {"monitor", "hello"}


@needs_root
def test_of_whom():
    """Of one's own uid, for everybody; of others, for root."""
    with public_daemon("") as d, d.client() as root, d.client() as picky, connect(d, ALICE, TEAM) as alice:
        everybody, of_bob = Looker(root, all=True), Looker(picky, uid=[BOB])
        own = Looker(alice, uid=[ALICE])
        for uid in ALICE, BOB, 0:
            with connect(d, uid, uid) as c:
                c.call("list", prefix=f"{uid}")
        with connect(d, BOB, BOB) as c:
            c.call("status")
        with connect(d, ALICE, ALICE) as c:
            c.call("status")

        for looker, uids in (own, {ALICE}), (of_bob, {BOB}), (everybody, {ALICE, BOB, 0}):
            last = max(uids & {ALICE, BOB}, key=[BOB, ALICE].index)
            messages = looker.until(lambda m, last=last: m["uid"] == last and is_a(1, "status")(m))
            assert {m["uid"] for m in messages} == uids
        for uid in ALICE, BOB:
            for filters in {"all": True}, {"uid": [0]}, {"uid": [uid + 5]}:
                with connect(d, uid, uid) as c:
                    assert "root" in str(refused(PERMISSION, c.call, "monitor", **filters))
        with connect(d, NOBODY, NOBODY) as c:  # stands for many
            refused(PERMISSION, c.call, "monitor")


def test_who_is_slow_is_told_exactly_what_it_lost(start):
    d = start()
    with d.client() as c, d.client() as other:
        looker = Looker(c)
        other.call("ping")
        n, first = 5000, other.next_id
        for _ in range(n):
            other.call("ping")
        results = []
        while sum(len(r["messages"]) + r.get("lost", 0) for r in results) < 2 * (n + 1):
            results.append(looker.next())
        ids = [m["id"] for r in results for m in r["messages"]]
        assert ids == [first + i // 2 for i in range(len(ids))]  # none in between
        assert [r for r in results if "lost" in r] == results[-1:]
        assert results[-1]["lost"] > 1000
        other.call("status")
        status = looker.next()["messages"][0]
        assert (status["method"], status["id"]) == ("status", other.next_id)
        assert charges(d)["host"] > 1 << 18


def test_what_it_costs_is_given_back(start):
    """By who hangs up, and by who is killed."""
    d = start()
    with d.client() as c:
        for _ in range(20):
            lookers = [Looker(d.client()) for _ in range(3)]
            process = in_child(d, Looker)
            with d.client() as fifth:
                refused(LIMIT, fifth.call, "monitor")
            assert (charges(d)["watches"], c.call("status")["watches"]) == (4, 4)
            kill(process)
            for looker in lookers:
                looker.client.close()
            wait_for(lambda: c.call("status")["watches"] == 0, "their end")
    wait_for(lambda: nothing_charged(d), "the end of all charges")
