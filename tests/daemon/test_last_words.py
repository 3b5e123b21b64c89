# SPDX-License-Identifier: Apache-2.0
"""What a client has sent before its connection ends is carried out, whatever the end: a write that was ended
stays whole."""

import contextlib
import os
import socket
import threading
import time

import pytest
import raw
from conftest import DEADLINE, fork, kill, wait_for
from slots import begin, create, end, entry


def abandoned(daemon, n):
    """Which of the first n arrays are."""
    with daemon.client() as c:
        return [i for i in range(n) if entry(c, f"x{i}").get("abandoned")]


def wait_until_gone(daemon):
    """The client that asks is the only one."""
    wait_for(lambda: daemon.status()["connections"] == 1, "the end of the connection")


def assert_heard(daemon, n, process=None):
    """That the writes to the first n arrays have ended; the process is not needed any more."""
    wait_until_gone(daemon)
    assert abandoned(daemon, n) == []
    if process:
        kill(process)


class Writer:
    """A process that begins to write n arrays and runs first(client); then, while the daemon does not run,
    it runs last(client), and exits or stays, and meanwhile() is run."""

    def __init__(self, daemon, n, last, exits=True, first=None, meanwhile=None):
        mine, its = fork.Pipe()

        def run():
            client = daemon.client()
            for i in range(n):
                begin(client, i + 1, write=[create(client, f"x{i}")])
            if first:
                first(client)
            its.send(None)
            its.recv()
            last(client)
            if exits:
                os._exit(0)
            its.send(None)
            time.sleep(DEADLINE)

        self.process = fork.Process(target=run)
        self.process.start()
        mine.recv()
        with daemon.paused():
            mine.send(None)
            if exits:
                self.process.join()
            else:
                mine.recv()
            if meanwhile:
                meanwhile()


def end_all(client, n):
    for i in range(n):
        end(client, i + 1)


@pytest.mark.parametrize("n", [1, 8, 9, 40])
def test_exit(daemon, n):
    Writer(daemon, n, lambda c: end_all(c, n))
    assert_heard(daemon, n)


@pytest.mark.parametrize("exits", [True, False])
def test_answers_that_nobody_reads(daemon, exits):
    """The socket has an error then, before what lies in it; and answers meet another."""

    def last(client):
        for _ in range(5):
            client.request("ping")
        end_all(client, 40)
        client.request("ping")
        client.close()

    writer = Writer(daemon, 40, last, exits)
    assert_heard(daemon, 40, writer.process)


@pytest.mark.parametrize("exits", [True, False])
def test_answers_that_had_come(daemon, exits):
    """And lie in the client's socket when it closes that."""

    def first(client):
        client.request("ping")
        with daemon.client() as other:
            other.call("ping")  # the one before is answered, too

    def last(client):
        end_all(client, 12)
        client.close()

    writer = Writer(daemon, 12, last, exits, first=first)
    assert_heard(daemon, 12, writer.process)


def test_hang_up(daemon):
    writer = Writer(daemon, 20, lambda c: (end_all(c, 20), c.close()), exits=False)
    assert_heard(daemon, 20, writer.process)


@pytest.mark.parametrize("exits", [True, False])
def test_output_in_the_queue(daemon, exits):
    """While there is some nothing was read."""

    def first(client):
        for i in range(500):
            create(client, f"a name that is not short, for a list that is not, number {i:03}")
        for _ in range(30):
            client.request("list")
        with daemon.client() as other:
            for _ in range(100):
                other.call("ping")  # meanwhile it is full

    def last(client):
        end_all(client, 3)
        client.close()

    writer = Writer(daemon, 3, last, exits, first=first)
    assert_heard(daemon, 3, writer.process)


def test_client_that_reads_no_more_and_lives(daemon):
    """Its answers cannot be sent, so its connection ends, when what had come until then is heard."""
    with daemon.client() as c:
        for i in range(20):
            begin(c, i + 1, write=[create(c, f"x{i}")])
        with daemon.paused():
            c.sock.shutdown(socket.SHUT_RD)
            c.request("ping")
            end_all(c, 20)
        assert_heard(daemon, 20)


def flood(client):
    with contextlib.suppress(OSError):
        while True:
            client.notify("drop_pages", pages=[12345])


def test_client_that_goes_on_sending(daemon):
    """What is heard has a bound: how much there was when the end was seen."""
    with daemon.client() as c:
        c.sock.shutdown(socket.SHUT_RD)
        thread = threading.Thread(target=flood, args=[c])
        thread.start()
        c.request("ping")
        thread.join(DEADLINE)
        assert not thread.is_alive()
        wait_until_gone(daemon)


def test_child_that_goes_on_sending(daemon):
    """By a socket that it has of a process that has exited."""
    reader, writer = os.pipe()

    def run():
        client = daemon.client()
        child = os.fork()
        if child == 0:
            flood(client)
            os.write(writer, b"x")
        os._exit(0)

    process = fork.Process(target=run)
    process.start()
    process.join()
    assert os.read(reader, 1) == b"x"
    wait_until_gone(daemon)
    os.close(reader)
    os.close(writer)


def test_others_get_their_turns_meanwhile(daemon):
    """A request of each at a time, as ever."""

    def last(client):
        client.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                client.request("list")

    with daemon.client() as c:
        for i in range(500):
            create(c, f"name {i}")
        Writer(daemon, 1, last, meanwhile=lambda: c.request("status"))
        assert c.response()["connections"] == 2  # the exit was seen before, and much is to be heard
        wait_for(lambda: c.call("status")["connections"] == 1, "the end of the connection")
        assert entry(c, "x0")["abandoned"] is True  # it was never ended


def test_fault_ends_it_at_once(daemon):
    """What comes after one is not heard."""

    def last(client):
        client.send(b"\xff")
        end_all(client, 2)

    Writer(daemon, 2, last)
    wait_until_gone(daemon)
    assert abandoned(daemon, 2) == [0, 1]
    assert "is disconnected" in daemon.text()


def test_fault_among_last_words(daemon):
    def last(client):
        end(client, 1)
        end(client, 12345)
        end(client, 2)

    Writer(daemon, 2, last)
    wait_until_gone(daemon)
    assert abandoned(daemon, 2) == [1]


def test_refused_client_with_last_words(start):
    """One that the core does not know."""
    d = start(config="[limits]\nconnections = 1\n")
    with d.client():
        process = fork.Process(target=refused, args=[d])
        with d.paused():
            process.start()
            process.join()
        wait_for(lambda: "refused" in d.text(), "the refusal")
        wait_for(lambda: d.text().count("connection of pid") >= 2, "the end")


def refused(daemon):
    client = raw.Client(daemon.socket, hello=False)
    client.request("hello", version_min=1, version_max=1)
    client.request("ping")
    os._exit(0)
