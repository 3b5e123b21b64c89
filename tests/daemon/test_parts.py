# SPDX-License-Identifier: Apache-2.0
"""Parts: arrays in another one's memory, seen by several processes, kept beyond the deaths of all of
them, and told to their publisher when they are gone."""

import mmap

import pytest
from conftest import AT_ONCE, MIB, in_child, kill, used, wait_for

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
