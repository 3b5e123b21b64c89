# SPDX-License-Identifier: Apache-2.0
"""Brackets over the wire: whose turn it is, and what to wait for. What becomes of the dead is in
test_abandoned.py."""

import time

import pytest
import raw
from conftest import as_user, charges, needs_root, nothing_charged, public_daemon, wait_for
from slots import ask, begin, create, end, entry, fences, give_up, is_waiting, open_, own_page, pages, signal

INVALID, PERMISSION, QUOTA, LIMIT, CANCELLED, TIMEOUT, DEADLOCK, ABANDONED = 4, 8, 9, 10, 17, 19, 20, 21
SECOND = 1_000_000_000
BOB = 60002


def refused(code, call, *args, **params):
    with pytest.raises(raw.Refused) as e:
        call(*args, **params)
    assert e.value.code == code, e.value
    return str(e.value)


@pytest.fixture
def two(daemon):
    """Two clients with array "x" open for writing: (first, its lease, second, its lease)."""
    with daemon.client() as a, daemon.client() as b:
        lease = create(a, "x")
        yield a, lease, b, open_(b, "x", "rw")


# ---- fences ----


def test_reader_waits_for_the_last_writer(two):
    a, mine, b, its = two
    page = own_page(a)
    assert fences(begin(a, 1, write=[mine])) == []
    signal(a, 1, page, 5, slot=3)
    reply = begin(b, 1, read=[its])
    assert fences(reply) == [(page.number, 3, 5)]
    (seen,) = pages(b, reply)
    assert (seen.number, seen.get(3)) == (page.number, (0, 5))
    reply = begin(b, 2, read=[its])
    assert (fences(reply), reply["pages"], b.fds) == ([(page.number, 3, 5)], [], [])
    page.land(5, slot=3)
    assert fences(begin(b, 3, read=[its])) == []
    give_up(a, page)


def test_writer_waits_for_all_readers(daemon, two):
    a, mine, b, its = two
    page, second, other = own_page(a), own_page(a), own_page(b)
    begin(a, 1, write=[mine])
    signal(a, 1, page, 1)
    for bracket, (client, lease, at, slot, value) in enumerate(
        [(a, mine, second, 1, 7), (a, mine, page, 2, 3), (b, its, other, 0, 9), (b, its, other, 0, 11)], 2
    ):
        begin(client, bracket, read=[lease])
        signal(client, bracket, at, value, slot=slot)
        client.call("ping")
    with daemon.client() as c:
        reply = begin(c, 1, write=[open_(c, "x", "rw")])
        # By page and slot, and of one slot the highest: it stands for those before it.
        assert fences(reply) == [
            (page.number, 0, 1),
            (page.number, 2, 3),
            (second.number, 1, 7),
            (other.number, 0, 11),
        ]
        assert {p.number for p in pages(c, reply)} == {page.number, second.number, other.number}
        last = own_page(c)
        signal(c, 1, last, 1)
        # Now the write stands for all of them.
        assert fences(begin(c, 2, read=[open_(c, "x")])) == [(last.number, 0, 1)]


def test_end_without_a_value_leaves_nothing_to_wait_for(two):
    a, mine, b, its = two
    begin(a, 1, write=[mine])
    signal(a, 1, own_page(a), 1)
    begin(a, 2, write=[mine])
    end(a, 2)
    a.call("ping")
    assert fences(begin(b, 1, write=[its])) == []


def test_undone_changes_nothing(two):
    a, mine, b, its = two
    page = own_page(a)
    begin(a, 1, write=[mine])
    signal(a, 1, page, 1)
    for params in ({}, {"page": page.number, "slot": 0, "value": 2}):
        page.submit(2)
        begin(b, 1, write=[its])
        end(b, 1, undone=True)
        begin(a, 2, write=[mine])
        end(a, 2, undone=True, **params)
    a.call("ping")
    assert fences(begin(b, 1, read=[its])) == [(page.number, 0, 1)]


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


def test_writer_excludes_everybody(two):
    a, mine, b, its = two
    for first, second in (("write", "read"), ("write", "write"), ("read", "write")):
        begin(a, 1, **{first: [mine]})
        request = ask(b, 1, **{second: [its]})
        assert is_waiting(b)
        end(a, 1)
        b.response(request)
        end(b, 1)
        b.call("ping")


def test_readers_read_together(two):
    a, mine, b, its = two
    begin(a, 1, read=[mine])
    begin(a, 2, read=[mine], thread=2)
    begin(b, 1, read=[its])
    assert (entry(a)["readers"], entry(a).get("writers", 0)) == (3, 0)


def test_writer_that_waits_is_not_passed(daemon, two):
    """Readers that come after it wait behind it, but for a thread that is reading already."""
    a, mine, b, its = two
    with daemon.client() as c:
        lease = open_(c, "x")
        begin(a, 1, read=[mine], thread=7)
        writer = ask(b, 1, write=[its])
        assert is_waiting(b)
        reader = ask(c, 1, read=[lease])
        assert is_waiting(c)
        begin(a, 2, read=[mine], thread=7)
        end(a, 2)
        assert (entry(a)["readers"], entry(a)["waiting"]) == (1, 2)
        end(a, 1)
        b.response(writer)
        assert is_waiting(c)
        end(b, 1)
        c.response(reader)


def test_arrays_of_one_bracket_come_at_once(daemon):
    with daemon.client() as a, daemon.client() as b:
        x, y = create(a, "x"), create(a, "y")
        its = [open_(b, name, "rw") for name in "xy"]
        begin(a, 1, write=[y])
        request = ask(b, 1, read=its[:1], write=its[1:])
        assert is_waiting(b)
        refused(TIMEOUT, begin, a, 2, write=[x], nowait=True, thread=2)  # the other comes first
        end(a, 1)
        b.response(request)
        assert [entry(a, name).get("readers", 0) for name in "xy"] == [1, 0]
        assert [entry(a, name).get("writers", 0) for name in "xy"] == [0, 1]


@pytest.mark.parametrize("ms", [1, 200, 700])
def test_timeout(two, ms):
    a, mine, b, its = two
    begin(a, 1, write=[mine])
    start = time.monotonic()
    text = refused(TIMEOUT, begin, b, 1, read=[its], timeout_ns=ms * 1_000_000)
    assert ms / 1000 <= time.monotonic() - start < ms / 1000 + 10
    assert '"x"' in text
    assert entry(a).get("waiting", 0) == 0
    end(a, 1)
    begin(b, 1, read=[its], timeout_ns=20 * SECOND)  # the number is free again


def test_timeout_that_is_not_reached(two):
    a, mine, b, its = two
    for ns in (60 * SECOND, 2**64 - 1):
        begin(a, 1, write=[mine])
        request = ask(b, 1, read=[its], timeout_ns=ns)
        assert is_waiting(b)
        end(a, 1)
        b.response(request)
        end(b, 1)
        b.call("ping")


def test_nowait(two):
    a, mine, b, its = two
    begin(b, 1, read=[its], nowait=True)
    assert '"x"' in refused(TIMEOUT, begin, a, 1, write=[mine], nowait=True)
    begin(a, 1, read=[mine], nowait=True)


def test_cancel(two):
    a, mine, b, its = two
    begin(a, 1, write=[mine])
    request = ask(b, 1, read=[its])
    assert is_waiting(b)
    b.notify("cancel", request=request)
    refused(CANCELLED, b.response, request)
    b.notify("cancel", request=request)  # it is answered
    end(a, 1)
    a.call("ping")
    request = ask(b, 1, read=[its])
    b.notify("cancel", request=request)
    b.response(request)  # too late
    end(b, 1)
    b.call("ping")


# ---- deadlocks ----


def test_upgrade_is_refused(two):
    a, mine, b, its = two
    begin(a, 1, read=[mine], thread=1)
    assert '"x"' in refused(DEADLOCK, begin, a, 2, write=[mine], thread=1)
    begin(b, 1, read=[its])
    refused(DEADLOCK, begin, a, 2, write=[mine], thread=1, nowait=True)
    end(b, 1)
    end(a, 1)
    begin(a, 2, write=[mine], thread=1)
    refused(DEADLOCK, begin, a, 3, read=[mine], thread=1)


def test_another_thread_of_the_client_may_wait(two):
    a, mine, _, _ = two
    begin(a, 1, write=[mine], thread=1)
    request = ask(a, 2, read=[mine], thread=2)
    assert is_waiting(a)
    end(a, 1)
    a.response(request)


def test_opposite_nesting_is_refused(daemon):
    with daemon.client() as a, daemon.client() as b:
        x, y = create(a, "x"), create(a, "y")
        b_x, b_y = open_(b, "x", "rw"), open_(b, "y", "rw")
        begin(a, 1, write=[x])
        begin(b, 1, write=[b_y])
        request = ask(a, 2, write=[y])
        assert is_waiting(a)
        refused(DEADLOCK, begin, b, 2, read=[b_x], timeout_ns=SECOND)
        end(b, 1)
        a.response(request)


# ---- bad begins ----


def test_bad_begins(two):
    a, mine, b, its = two
    reading = open_(b, "x")
    again = open_(b, "x", "rw")
    refused(INVALID, begin, b, 1)
    refused(INVALID, begin, b, 0, read=[its])
    refused(INVALID, begin, b, 1, read=[its, its])
    refused(INVALID, begin, b, 1, read=[reading], write=[its])
    refused(INVALID, begin, b, 1, write=[its, again])
    refused(INVALID, begin, b, 1, read=[12345])
    refused(INVALID, begin, b, 1, read=list(range(1000, 2025)))
    refused(PERMISSION, begin, b, 1, write=[reading])
    begin(b, 1, read=[its])
    refused(INVALID, begin, b, 1, read=[its])
    begin(a, 1, read=[mine])  # numbers are the connection's
    assert a.call("status")["brackets"] == 2


def test_arrays_of_one_bracket_are_bounded(daemon):
    with daemon.client() as c:
        leases = [create(c) for _ in range(1025)]
        refused(INVALID, begin, c, 1, read=leases)
        begin(c, 1, read=leases[:512], write=leases[512:1024])
        end(c, 1)
        assert c.call("status")["brackets"] == 0


def test_limit_of_brackets(start):
    """Those that wait count, too."""
    d = start(config="[limits]\nbrackets = 3\n")
    with d.client() as c, d.client() as other:
        lease, its = create(c, "x"), create(other)
        begin(c, 1, write=[lease])
        request = ask(other, 1, write=[open_(other, "x", "rw")])
        begin(other, 2, write=[its])
        assert "3" in refused(LIMIT, begin, c, 2, read=[create(c)])
        assert charges(d)["brackets"] == 3
        end(c, 1)
        other.response(request)
        begin(c, 2, read=[create(c)])
        end(c, 2)
        for bracket in (1, 2):
            end(other, bracket)
        other.call("ping")
        assert charges(d)["brackets"] == 0


def test_host_memory_of_brackets_is_charged(start):
    d = start(config="[limits]\nhost_bytes = 64K\n")
    with d.client() as c:
        leases = [create(c) for _ in range(20)]
        with pytest.raises(raw.Refused) as e:
            for bracket in range(1, 1000):
                begin(c, bracket, read=leases)
        assert e.value.code == QUOTA
        for opened in range(1, bracket):
            end(c, opened)
        c.notify("close", leases=leases)
    wait_for(lambda: nothing_charged(d), "the end of all charges")


# ---- leases that end ----


def test_close_ends_what_a_bracket_has_of_it(two):
    a, mine, b, its = two
    begin(a, 1, write=[mine])
    request = ask(b, 1, read=[its])
    assert is_waiting(b)
    a.notify("close", leases=[mine])
    refused(ABANDONED, b.response, request)
    end(a, 1)  # it is open until then
    a.call("ping")
    lease = open_(a, "x", "rw")
    begin(a, 1, write=[lease])
    request = ask(b, 1, read=[its])
    b.notify("close", leases=[its])
    assert '"x"' in refused(INVALID, b.response, request)


def test_figures_of_who_uses_what(daemon, two):
    a, mine, b, its = two
    begin(a, 1, read=[mine])
    begin(a, 2, read=[mine])
    ask(b, 1, write=[its])
    assert is_waiting(b)
    with daemon.client() as c:
        figures = {k: entry(c).get(k, 0) for k in ("readers", "writers", "waiting", "abandoned")}
        assert figures == {"readers": 2, "writers": 0, "waiting": 1, "abandoned": 0}
        holders = c.call("show", name="x")["holders"]
        uses = {(h.get("reading", 0), h.get("writing", 0), h.get("waiting", 0)) for h in holders}
        assert uses == {(2, 0, 0), (0, 0, 1)}
        assert c.call("status")["brackets"] == charges(daemon)["brackets"] == 3
        (listed,) = c.call("list")["entries"]
        assert (listed["readers"], listed["waiting"]) == (2, 1)


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
