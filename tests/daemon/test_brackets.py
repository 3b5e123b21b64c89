# SPDX-License-Identifier: Apache-2.0
"""Brackets over the wire: whose turn it is, and what to wait for. What becomes of the dead is in
test_abandoned.py."""


import pytest
import raw
from conftest import as_user, needs_root, public_daemon, refused
from slots import ask, begin, create, fences, open_, own_page, pages, signal

INVALID, PERMISSION, TIMEOUT = 4, 8, 19
SECOND = 1_000_000_000
BOB = 60002


@pytest.fixture
def two(daemon):
    """Two clients with array "x" open for writing: (first, its lease, second, its lease)."""
    with daemon.client() as a, daemon.client() as b:
        lease = create(a, "x")
        yield a, lease, b, open_(b, "x", "rw")


# ---- fences ----


def test_fences_that_do_not_fit_are_asked_for(daemon):
    """As many pages as a packet has room for fds, and again."""
    n = 600
    with daemon.client() as a, daemon.client() as b:
        mine = create(a, "x")
        numbers = []
        for bracket in range(1, n + 1):
            page = own_page(a)
            numbers.append(page.number)
            begin(a, bracket, read=[mine])
            signal(a, bracket, page, bracket)
            page.close()
        a.call("ping")
        reply = begin(b, 1, write=[open_(b, "x", "rw")])
        found, held = fences(reply), len(b.fds)
        while reply.get("more"):
            page, slot, _ = found[-1]
            reply = b.call("fences", bracket=1, page=page, slot=slot)
            assert fences(reply) and len(b.fds) == len(reply["pages"])
            found += fences(reply)
            held += len(b.fds)
        assert found == [(number, 0, value) for value, number in enumerate(numbers, 1)]
        assert held == n
        refused(INVALID, b.call, "fences", bracket=2, page=0, slot=0)


# ---- turns ----


# ---- leases that end ----


@needs_root
def test_reader_of_another_uid():
    """Its lease is for reading; it gets the writer's page all the same, to read."""

    def body(client):
        lease = open_(client, "x", pool="team")
        reply = begin(client, 1, read=[lease])
        (page,) = pages(client, reply)
        try:
            begin(client, 2, write=[lease])
        except raw.Refused as e:
            return [fences(reply)[0][1:], page.get(1), e.code]

    with public_daemon('[pool "team"]\nmode = 0604\n') as d, d.client() as c:
        lease = create(c, "x", pool="team")
        begin(c, 1, write=[lease])
        signal(c, 1, own_page(c), 4, slot=1)
        c.call("ping")
        assert as_user(d, BOB, [], body) == [[1, 4], [0, 4], PERMISSION]


# ---- the end of the daemon ----


def test_stop_with_brackets_open(start):
    d = start()
    with d.client() as a, d.client() as b:
        lease = create(a, "x")
        page = own_page(a)
        begin(a, 1, read=[lease])
        signal(a, 1, page, 1)
        begin(a, 2, write=[lease])
        ask(b, 1, read=[open_(b, "x")], timeout_ns=60 * SECOND)
        assert d.stop() == 0
        assert page.get() == (0, 1)
