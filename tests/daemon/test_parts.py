# SPDX-License-Identifier: Apache-2.0
"""Parts: arrays in another one's memory, seen by several processes, kept beyond the deaths of all of
them, and told to their publisher when they are gone."""

import mmap
import os

import pytest
import raw
from conftest import (
    AT_ONCE,
    MIB,
    as_user,
    charges,
    in_child,
    kill,
    needs_root,
    nothing_charged,
    public_daemon,
    used,
    wait_for,
)

PROTOCOL, INVALID, NOT_FOUND, PERMISSION, LIMIT, CANCELLED = 1, 4, 6, 8, 10, 17
BOB = 60002
OPEN_POOL = '[pool "open"]\nmode = 0666\n'
N = 3 * MIB  # bytes of a whole


@pytest.fixture
def daemon(start):
    return start(config=AT_ONCE)


class Memory:
    """What a client can reach of an array: its block, as the software driver's memory is mapped."""

    def __init__(self, client, reply, known=None):
        (self.array,) = reply["arrays"]
        self.lease = self.array["lease"]
        self.block, self.offset = self.array["block"], self.array.get("offset", 0)
        self.known = known if known is not None else {}
        for block in reply.get("blocks", []):
            self.known[block["block"]] = mmap.mmap(client.fds[block.get("fd", 0)], block["size"])

    def __getitem__(self, at):
        start, stop, _ = at.indices(self.array["nbytes"])
        return self.known[self.block][self.offset + start : self.offset + stop]

    def __setitem__(self, at, data):
        start, stop, _ = at.indices(self.array["nbytes"])
        self.known[self.block][self.offset + start : self.offset + stop] = data


def create(client, n=N, **params):
    return Memory(client, client.call("create", typestr="|u1", shape=[n], **params))


def open_(client, name, mode="r", known=None, **params):
    return Memory(client, client.call("open", names=[name], mode=mode, **params), known)


def part(client, lease, offset, n, name, **params):
    params = {"typestr": "|u1", "shape": [n], **params}
    return client.call("publish_part", lease=lease, offset=offset, name=name, **params)


def refused(code, call, *args, **params):
    with pytest.raises(raw.Refused) as e:
        call(*args, **params)
    assert e.value.code == code, e.value
    return str(e.value)


def is_unanswered(client):
    """What is asked waits; what is asked after it is answered."""
    return client.call("ping") == {}


# ---- several processes ----


def writes_back(client, name, text):
    array = open_(client, name, mode="rw")
    assert array[:] == b"from the publisher"
    array[:] = text


@pytest.mark.parametrize("memory", ["device", "pinned"])
def test_two_processes_see_it(daemon, memory):
    """The bytes are the publisher's own: nothing was copied, there or back."""
    text = b"from the publisher"
    with daemon.client() as c:
        whole = create(c, memory=memory)
        whole[1001 : 1001 + len(text)] = text
        assert part(c, whole.lease, 1001, len(text), "p", metadata="{}")["generation"] == 1
        kill(in_child(daemon, writes_back, "p", text[::-1]))
        assert whole[1001 : 1001 + len(text)] == text[::-1]
        shown = c.call("show", name="p")
        assert (shown["block"], shown["offset"]) == (whole.block, whole.offset + 1001)
        assert shown["metadata"] == "{}"
        array = open_(c, "p", known=whole.known)
        assert array.array["nbytes"] == len(text)
        assert array[:] == text[::-1]


def keeps_open(client, name):
    open_(client, name)


def test_publisher_is_told_when_the_last_reader_is_killed(daemon):
    with daemon.client() as c:
        whole = create(c)
        number = part(c, whole.lease, 0, 1000, "p")["part"]
        readers = [in_child(daemon, keeps_open, "p") for _ in range(3)]
        asked = c.request("parts")
        c.notify("close", leases=[whole.lease])
        with daemon.client() as other:
            other.call("unlink", name="p")
            assert len(other.call("unnamed")["arrays"]) == 2  # the part, and what it keeps
        for reader in readers:
            assert is_unanswered(c)
            assert used(daemon)
            kill(reader)
        assert c.response(asked) == {"parts": [number]}
        wait_for(lambda: not used(daemon), "the release")


def hangs_up(client, name):
    open_(client, name)
    client.close()


def test_reader_that_hangs_up_counts_until_it_exits(daemon):
    """Its GPU may still read (I2)."""
    with daemon.client() as c:
        whole = create(c)
        number = part(c, whole.lease, 0, 1000, "p")["part"]
        reader = in_child(daemon, hangs_up, "p")
        wait_for(lambda: c.call("status")["connections"] == 1, "the end of its connection")
        with daemon.client() as other:
            other.call("unlink", name="p")
        asked = c.request("parts")
        assert is_unanswered(c)
        kill(reader)
        assert c.response(asked) == {"parts": [number]}


def publishes(client):
    whole = create(client, name="w")
    whole[2 * MIB : 2 * MIB + 5] = b"alive"
    part(client, whole.lease, 2 * MIB, 5, "p")
    part(client, whole.lease, 0, MIB, "q")
    client.request("parts")
    client.call("unlink", name="w")


def test_outlives_the_process_that_published_it(daemon):
    kill(in_child(daemon, publishes))
    wait_for(lambda: not charges(daemon)["leases"], "its end")
    with daemon.client() as c:
        assert [e["name"] for e in c.call("list")["entries"]] == ["p", "q"]
        (whole,) = c.call("unnamed")["arrays"]
        (entry,) = whole["entries"]
        assert (entry["name"], entry["parts"], entry["leases"]) == ("w", 2, 0)
        assert not whole.get("holders")
        array = open_(c, "p")
        assert array[:] == b"alive"
        assert charges(daemon)["bytes"] == N, "though nobody holds it"
        c.call("unlink", name="p")
        c.call("unlink", name="q")
        assert array[:] == b"alive"
        assert used(daemon)
        c.notify("close", leases=[array.lease])
        wait_for(lambda: not used(daemon), "the release")
        assert charges(daemon)["bytes"] == 0
    wait_for(lambda: nothing_charged(daemon), "the end of all charges")


# ---- parts ----


def test_one_request_for_parts_stands(daemon):
    with daemon.client() as c:
        whole = create(c)
        asked = c.request("parts")
        refused(INVALID, c.call, "parts")
        c.notify("cancel", request=asked)
        refused(CANCELLED, c.response, asked)
        numbers = [part(c, whole.lease, 0, 10, "p")["part"] for _ in range(5)]
        assert c.call("parts") == {"parts": numbers[:4]}  # each took the name from the one before
        asked = c.request("parts")
        assert is_unanswered(c)
        c.notify("cancel", request=asked)
        refused(CANCELLED, c.response, asked)
        assert c.call("ping") == {}


def test_many_come_in_a_few_answers(start):
    d = start(config=AT_ONCE + "[limits]\narrays = 20000\n")
    with d.client() as c:
        whole = create(c)
        numbers = [part(c, whole.lease, i, 1, "p")["part"] for i in range(5001)]
        got = []
        while len(got) < 5000:
            got += c.call("parts")["parts"]
        assert got == numbers[:5000]
        assert charges(d)["names"] == 1


def test_told_before_the_answer_to_what_ended_it(daemon):
    with daemon.client() as c:
        whole = create(c)
        number = part(c, whole.lease, 0, 10, "p")["part"]
        asked = c.request("parts")
        ended = c.request("unlink", name="p")
        assert c.any_response() == (asked, {"parts": [number]})
        assert c.any_response() == (ended, {})


# ---- what is refused ----


def test_what_is_no_part(daemon):
    with daemon.client() as c, daemon.client() as reader:
        whole = create(c, name="w")
        refused(INVALID, part, c, whole.lease, 0, N + 1, "p")
        refused(INVALID, part, c, whole.lease, N, 1, "p")
        refused(INVALID, part, c, whole.lease, 2**64 - 1, 2, "p")
        refused(INVALID, part, c, whole.lease, 0, 0, "p")
        refused(INVALID, part, c, whole.lease, 0, 8, "p", shape=[2**62], typestr="<f8")
        refused(INVALID, part, c, whole.lease, 0, 8, "p", shape=[2, 2], strides=[N, 1])
        refused(INVALID, part, c, whole.lease + 1, 0, 1, "p")
        refused(INVALID, part, reader, open_(reader, "w").lease, 0, 1, "p")
        part(c, whole.lease, 0, 10, "p")
        refused(INVALID, part, c, open_(c, "p", "rw", whole.known).lease, 0, 1, "q")
        assert [e["name"] for e in c.call("list")["entries"]] == ["p", "w"]
        for wrong in ({}, {"lease": whole.lease}, {"lease": "1", "offset": 0, "name": "x"}):
            refused(PROTOCOL, c.call, "publish_part", **wrong)
        assert c.call("ping") == {}


@needs_root
def test_only_by_who_pays_for_the_memory():
    with public_daemon(OPEN_POOL) as d, d.client() as c:
        create(c, name="w", pool="open")

        def body(client):
            array = open_(client, "w", "rw", pool="open")
            text = refused(PERMISSION, part, client, array.lease, 0, 1, "p")
            own = create(client, 1000, pool="open")
            part(client, own.lease, 0, 10, "own")
            return text

        assert f"uid {os.getuid()}" in as_user(d, BOB, [], body)
        wait_for(lambda: c.call("status")["connections"] == 1, "the end of the other")
        assert charges(d, BOB)["arrays"] == 2  # its part, and what that keeps
        c.call("unlink", name="own", pool="open")
        wait_for(lambda: nothing_charged(d, BOB), "the end of its charges")


def test_limit_of_arrays(start):
    """Each part is one."""
    d = start(config=AT_ONCE + "[limits]\narrays = 3\n")
    with d.client() as c:
        whole = create(c)
        before = charges(d)
        part(c, whole.lease, 0, 10, "p")
        part(c, whole.lease, 0, 10, "q")
        refused(LIMIT, part, c, whole.lease, 0, 10, "r")
        c.call("unlink", name="q")
        part(c, whole.lease, 0, 10, "r")
        c.call("unlink", name="p")
        c.call("unlink", name="r")
        assert len(c.call("parts")["parts"]) == 3
        assert charges(d) == before
