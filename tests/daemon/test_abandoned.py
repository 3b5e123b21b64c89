# SPDX-License-Identifier: Apache-2.0
"""Brackets of those who die, hang up or give up: what others are told, and what heals it (I7)."""

import contextlib
import time

import pytest
import raw
from conftest import AT_ONCE, fd_count, fork, in_child, kill, memory, nothing_charged, refused, wait_for
from slots import ask, begin, create, end, entry, fences, give_up, is_waiting, open_, own_page, pages, signal

TIMEOUT, ABANDONED = 19, 21
SECOND = 1_000_000_000


# ---- SIGKILL; at other steps: tests/stress ----


def writes(client):
    begin(client, 1, write=[open_(client, "x", "rw")])


def has_written_and_given_up(client):
    """Its end is told, its work is under way: the last that a client does that closes."""
    writes(client)
    page = own_page(client)
    signal(client, 1, page, 1)
    give_up(client, page)
    client.call("ping")


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


def test_sigkill_after_the_end_of_a_write(daemon, bystanders):
    """Who has begun finds the fence lost, who begins later is told."""
    (reader, lease), _ = bystanders
    fds = fd_count(daemon)
    process = in_child(daemon, has_written_and_given_up)
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


def test_stop_of_the_daemon(daemon):
    """The writer lives: whoever waits for it sees the connection end, and no death."""
    with daemon.client() as writer, daemon.client() as reader:
        begin(writer, 1, write=[create(writer, "x")])
        request = ask(reader, 1, read=[open_(reader, "x")])
        assert is_waiting(reader)
        assert daemon.stop() == 0
        with pytest.raises(raw.Closed):
            reader.response(request)


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
