# SPDX-License-Identifier: Apache-2.0
"""Brackets of those who die, hang up or give up: what others are told, and what heals it (I7)."""

import contextlib
import time

import pytest
import raw
from conftest import AT_ONCE, fd_count, fork, in_child, kill, memory, nothing_charged, wait_for
from slots import ask, begin, create, end, entry, fences, give_up, is_waiting, open_, own_page, pages, signal

INVALID, PERMISSION, TIMEOUT, ABANDONED = 4, 8, 19, 21
SECOND = 1_000_000_000


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


# ---- giving up ----


def abandon(client, lease):
    begin(client, 100, write=[lease])
    end(client, 100, abandon=True)
    client.call("ping")


def test_abandoned_array_is_not_read(two):
    a, mine, b, its = two
    abandon(a, mine)
    assert entry(b)["abandoned"] is True
    assert '"x"' in refused(ABANDONED, begin, b, 1, read=[its])
    refused(ABANDONED, a.call, "publish", lease=mine, name="y")
    begin(b, 1, write=[its])
    end(b, 1, undone=True)
    refused(ABANDONED, begin, b, 1, read=[its])


def test_write_heals(two):
    a, mine, b, its = two
    abandon(a, mine)
    begin(b, 1, write=[its])
    end(b, 1)
    begin(b, 1, read=[its])
    assert not entry(b).get("abandoned")


def test_discard_heals(two):
    a, mine, b, its = two
    abandon(a, mine)
    refused(PERMISSION, b.call, "discard", lease=open_(b, "x"))
    refused(INVALID, b.call, "discard", lease=12345)
    for _ in range(2):
        b.call("discard", lease=its)
    begin(b, 1, read=[its])
    a.call("publish", lease=mine, name="y")


# ---- SIGKILL at each step ----


def writes(client):
    begin(client, 1, write=[open_(client, "x", "rw")])


def writes_and_submits(client):
    writes(client)
    own_page(client).submit(1)


def has_written(client):
    """Its end is told, its work is under way."""
    writes(client)
    signal(client, 1, own_page(client), 1)
    client.call("ping")


def has_landed(client):
    writes(client)
    signal(client, 1, own_page(client), 1, landed=True)
    client.call("ping")


def has_written_and_given_up(client):
    """The last that a client does that closes."""
    writes(client)
    page = own_page(client)
    signal(client, 1, page, 1)
    give_up(client, page)
    client.call("ping")


def reads(client):
    begin(client, 1, read=[open_(client, "x")])


def has_read(client):
    reads(client)
    signal(client, 1, own_page(client), 1)
    client.call("ping")


def waits(client):
    """Behind the bracket that the test has open."""
    ask(client, 1, write=[open_(client, "x", "rw")])
    ask(client, 2, read=[open_(client, "x")])


@pytest.fixture
def bystanders(daemon):
    """Who has array "x" open while others die: (client, its lease), (client, its lease)."""
    with daemon.client() as reader, daemon.client() as writer:
        create(reader, "x")
        yield (reader, open_(reader, "x")), (writer, open_(writer, "x", "rw"))


def heals(daemon, bystanders, fds):
    """Whatever happened: a write waits for nothing, makes the array whole, and nothing is left."""
    (reader, read_lease), (writer, write_lease) = bystanders
    assert fences(begin(writer, 9, write=[write_lease])) == []
    end(writer, 9)
    writer.call("ping")
    assert fences(begin(reader, 9, read=[read_lease])) == []
    assert not entry(reader).get("abandoned")
    assert reader.call("status")["pages"] == 0
    wait_for(lambda: fd_count(daemon) == fds, "the fds")


@pytest.mark.parametrize("step", [writes, writes_and_submits])
def test_sigkill_in_the_midst_of_a_write(daemon, bystanders, step):
    """Who waits for its end is told, and who comes later."""
    (reader, lease), _ = bystanders
    fds = fd_count(daemon)
    process = in_child(daemon, step)
    request = ask(reader, 1, read=[lease])
    assert is_waiting(reader)
    kill(process)
    refused(ABANDONED, reader.response, request)
    assert entry(reader)["abandoned"] is True
    refused(ABANDONED, begin, reader, 1, read=[lease])
    heals(daemon, bystanders, fds)


@pytest.mark.parametrize("step", [has_written, has_written_and_given_up])
def test_sigkill_after_the_end_of_a_write(daemon, bystanders, step):
    """Who has begun finds the fence lost, who begins later is told."""
    (reader, lease), _ = bystanders
    fds = fd_count(daemon)
    process = in_child(daemon, step)
    reply = begin(reader, 1, read=[lease])
    ((number, slot, value),) = fences(reply)
    (page,) = pages(reader, reply)
    assert page.number == number and page.get(slot) == (0, value)
    kill(process)
    wait_for(page.is_dead, "the end of its page")
    assert page.landed(slot) < value
    assert entry(reader)["abandoned"] is True
    end(reader, 1)
    refused(ABANDONED, begin, reader, 1, read=[lease])
    heals(daemon, bystanders, fds)


@pytest.mark.parametrize("step", [has_landed, reads, has_read])
def test_sigkill_that_leaves_the_array_whole(daemon, bystanders, step):
    (reader, lease), _ = bystanders
    fds = fd_count(daemon)
    kill(in_child(daemon, step))
    wait_for(lambda: fd_count(daemon) == fds, "the end of its page")
    assert not entry(reader).get("abandoned")
    assert fences(begin(reader, 1, read=[lease])) == []
    end(reader, 1)
    heals(daemon, bystanders, fds)


def test_sigkill_of_a_reader_whose_work_is_under_way(daemon, bystanders):
    """A writer that waits for it goes on; nothing is lost with it."""
    (reader, _), (writer, lease) = bystanders
    fds = fd_count(daemon)
    process = in_child(daemon, has_read)
    reply = begin(writer, 1, write=[lease])
    (page,) = pages(writer, reply)
    assert [value for _, _, value in fences(reply)] == [1]
    kill(process)
    wait_for(page.is_dead, "the end of its page")
    end(writer, 1)
    heals(daemon, bystanders, fds)


def test_sigkill_of_those_who_wait(daemon):
    with daemon.client() as c:
        lease = create(c, "x")
        begin(c, 1, write=[lease])
        process = in_child(daemon, waits)
        wait_for(lambda: entry(c).get("waiting") == 2, "its begins")
        kill(process)
        wait_for(lambda: entry(c).get("waiting", 0) == 0, "their end")
        end(c, 1)
        begin(c, 1, write=[lease])
        assert not entry(c).get("abandoned")


def test_sigkill_of_a_reader_lets_the_writer_go(daemon):
    with daemon.client() as c:
        lease = create(c, "x")
        process = in_child(daemon, reads)
        request = ask(c, 1, write=[lease])
        assert is_waiting(c)
        kill(process)
        assert fences(c.response(request)) == []


def test_fences_after_the_writer_has_died(daemon):
    """What a reader did not get to hear of any more is told it by the next question."""
    with daemon.client() as c, daemon.client() as reader:
        create(c, "x")
        its = open_(reader, "x")
        process = in_child(daemon, has_written)
        assert len(fences(begin(reader, 1, read=[its]))) == 1
        kill(process)
        wait_for(lambda: entry(c).get("abandoned"), "the mark")
        refused(ABANDONED, reader.call, "fences", bracket=1, page=0, slot=0)


# ---- hang-ups without an exit ----


@contextlib.contextmanager
def hung_up(daemon, step):
    """A process that has done the step and then closed its connection."""
    mine, its = fork.Pipe()

    def run():
        with daemon.client() as c:
            step(c)
        its.send(None)
        its.recv()

    process = fork.Process(target=run)
    process.start()
    mine.recv()
    try:
        yield
    finally:
        mine.send(None)
        process.join()


def test_writer_that_hangs_up_keeps_writers_out(daemon):
    """Its device may still write: readers are told, writers wait for its exit."""
    with daemon.client() as c:
        lease = create(c, "x")
        with hung_up(daemon, writes):
            wait_for(lambda: entry(c).get("abandoned"), "the mark")
            refused(ABANDONED, begin, c, 1, read=[lease])
            (holder,) = [h for h in c.call("show", name="x")["holders"] if h.get("hung_up")]
            assert holder["writing"] == 1
            refused(TIMEOUT, begin, c, 1, write=[lease], timeout_ns=SECOND // 10)
            request = ask(c, 1, write=[lease])
            assert is_waiting(c)
        c.response(request)
        end(c, 1)
        begin(c, 1, read=[lease])


def test_reader_that_hangs_up_keeps_writers_out(daemon):
    with daemon.client() as c:
        lease = create(c, "x")
        with hung_up(daemon, reads):
            wait_for(lambda: c.call("status")["connections"] == 1, "the end of its connection")
            begin(c, 1, read=[lease])
            end(c, 1)
            refused(TIMEOUT, begin, c, 1, write=[lease], timeout_ns=SECOND // 10)
        begin(c, 1, write=[lease])
        assert not entry(c).get("abandoned")


def test_fence_of_who_hangs_up_stays(daemon):
    with daemon.client() as c:
        lease = create(c, "x")
        with hung_up(daemon, has_written):
            wait_for(lambda: c.call("status")["connections"] == 1, "the end of its connection")
            reply = begin(c, 1, read=[lease])
            assert [value for _, _, value in fences(reply)] == [1]
            (page,) = pages(c, reply)
            assert page.get() == (0, 1)
        wait_for(page.is_dead, "its end")
        end(c, 1)
        refused(ABANDONED, begin, c, 1, read=[lease])


# ---- memory (I2) ----


def test_memory_waits_for_its_fences(start):
    """Nobody holds the array any more, and a stream still reads it."""
    d = start(config=AT_ONCE)
    with d.client() as c:
        lease = create(c, exclusive=True)
        page = own_page(c)
        begin(c, 1, read=[lease])
        signal(c, 1, page, 1)
        c.notify("close", leases=[lease])
        time.sleep(0.3)
        assert memory(d)["used"] > 0
        page.land(1)
        wait_for(lambda: memory(d)["used"] == 0, "the release")
        give_up(c, page)
    wait_for(lambda: nothing_charged(d), "the end of all charges")


def test_memory_waits_for_no_fence_of_the_dead(start):
    d = start(config=AT_ONCE)

    def body(client):
        lease = create(client, exclusive=True)
        begin(client, 1, write=[lease])
        signal(client, 1, own_page(client), 1)
        client.notify("close", leases=[lease])
        client.call("ping")

    process = in_child(d, body)
    time.sleep(0.3)
    assert memory(d)["used"] > 0
    kill(process)
    wait_for(lambda: memory(d)["used"] == 0, "the release")
    wait_for(lambda: nothing_charged(d), "the end of all charges")
