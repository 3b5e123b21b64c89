# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends each wait at once, by the system call that the signal ends."""

import contextlib
import gc
import itertools
import os
import signal
import socket
import struct
import sys
import threading
import time

import pytest
from conftest import PATIENCE_S, Held, in_thread, is_asleep, until_it_waits, wait_until

import caid

sys.path.append(os.path.join(os.path.dirname(__file__), "../client"))
from fake_daemon import DEVICE, HELLO, fake_daemon  # noqa: E402


@contextlib.contextmanager
def interrupted(expected=KeyboardInterrupt):
    """The main thread gets a SIGINT in here, as from a terminal, once it has come to wait."""
    begun, woken, main = threading.Event(), threading.Event(), threading.get_native_id()

    def press():
        begun.wait()
        while not (woken.is_set() or is_asleep(f"self/task/{main}")):
            pass
        if not woken.is_set():
            os.kill(os.getpid(), signal.SIGINT)
        if not woken.wait(PATIENCE_S):  # it is not to hang for good
            os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(expected):
            begun.set()
            yield
    finally:
        woken.set()
        thread.join()


@pytest.fixture
def stopped(daemon, client):
    """stopped(): the daemon does not answer until the test's end."""

    def stop():
        os.kill(daemon.pid, signal.SIGSTOP)

    yield stop
    os.kill(daemon.pid, signal.SIGCONT)
    gc.collect()


CALLS = {
    "ping": lambda c: c.ping(),
    "list": lambda c: c.list(),
    "create": lambda c: c.create("made", 1000, "<i4"),
    "open": lambda c: c.open("kept"),
    "watch": lambda c: c.watch("kept"),
    "timeline": lambda c: c.timeline("counter"),
    "defer": lambda c: c.defer_cleanup().__enter__(),
    "flush": lambda c: c.flush(),
}


def test_an_end_of_a_readers_frame(soft, client, other, memops):
    with client.channel("frames", 4, mode="fifo", slots=2) as ch, other.open_channel("frames") as r, other.stream() as t:
        for _ in range(2):
            ch.put().end()
        with Held(t):
            r.get().end(t)
            frame = r.get()
            with interrupted():  # it waits for the end of the one before
                frame.end()
            assert frame.is_open
        frame.end()
        ch.put(timeout=PATIENCE_S).end()
        r.get(timeout=PATIENCE_S).end()


def test_an_end_of_a_producers_frame(soft, client):
    data = caid.pinned_array(4, "|u1", client=client)
    with client.channel("frames", 4) as ch, client.stream() as s:
        frame = ch.put()
        with Held(s):
            frame.array.copy_from_host(data, stream=s)
            for end in frame.abandon, frame.end, lambda: frame.__exit__(KeyError, None, None):
                with interrupted():  # it waits for the copy
                    end()
            assert frame.is_open
        frame.end()


def test_the_last_buffer_of_a_readers_frame(soft, client, other, memops):
    """The frame ends, and then there is the interrupt."""
    with client.channel("frames", 4, mode="fifo", slots=2) as ch, other.open_channel("frames") as r, other.stream() as t:
        for _ in range(2):
            ch.put().end()
        with Held(t) as held:

            def handle(*_):
                held.gate.set()
                raise KeyboardInterrupt

            r.get().end(t)
            frame = r.get()
            left = memoryview(frame)
            with pytest.warns(ResourceWarning):
                frame.end()
            before = signal.signal(signal.SIGINT, handle)
            try:
                with interrupted():  # it waits for the end of the one before
                    del left
                    time.sleep(0)
            finally:
                signal.signal(signal.SIGINT, before)
        ch.put(timeout=PATIENCE_S).end()
        r.get(timeout=PATIENCE_S).end()


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_that_is_not_answered(daemon, client, other, stopped, kind):
    with client.create("kept", 4, "|u1"):
        stopped()
        with interrupted():
            CALLS[kind](other)
        os.kill(daemon.pid, signal.SIGCONT)
        client.ping()
        wait_until(lambda: client.status().leases == 1 and client.status().names == 1)
        other.open("kept").close()


def test_connecting(daemon, client, stopped):
    stopped()
    with interrupted():
        daemon.connect()


def test_connecting_where_nobody_accepts(tmp_path):
    kind = socket.SOCK_SEQPACKET
    with socket.socket(socket.AF_UNIX, kind) as listener, contextlib.ExitStack() as waiting:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                s = waiting.enter_context(socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK))
                s.connect(str(tmp_path / "s"))
        with interrupted():
            caid.connect(tmp_path / "s")


def test_a_bracket(shared):
    mine, theirs = shared
    with mine.write():
        with interrupted():
            theirs.read().__enter__()
    with mine.write(timeout=PATIENCE_S):  # nobody reads
        pass


def test_a_bracket_of_a_stopped_daemon(shared, stopped):
    stopped()
    with interrupted():
        shared[0].read().__enter__()


def test_a_watch(client):
    with client.watch("nothing") as watch, interrupted():
        next(iter(watch))


def test_a_name_that_does_not_come(client):
    with interrupted():
        client.open("nothing", wait=True)
    assert client.status().watches == 0


def test_a_timeline(client, other):
    with client.timeline("counter"), other.open_timeline("counter") as t, interrupted():
        t.wait(None, 1)


def test_a_stream(client):
    with client.stream() as stream:
        with Held(stream), interrupted():
            stream.synchronize()
        stream.synchronize()


def test_an_event(client):
    event = client.event()
    with client.stream() as stream:
        with Held(stream), interrupted():
            event.record(stream)
            event.synchronize()
        event.synchronize()


def test_a_publish_that_waits_for_a_stream(client):
    with client.stream() as stream, client.empty(4, "|u1") as a:
        with Held(stream), interrupted():
            a.publish("published", stream=stream)
        stream.synchronize()
    assert client.list() == []


def test_one_that_waits_while_another_thread_reads(daemon, client, stopped):
    """The main thread does not read from the daemon: it waits for the one that does."""
    stopped()
    reader, ended = in_thread(client.ping)
    until_it_waits(reader)
    with interrupted():
        client.ping()
    assert ended == []
    os.kill(daemon.pid, signal.SIGCONT)
    reader.join(PATIENCE_S)
    assert ended == [None]
    client.ping()


def test_what_a_handler_raises(client, stopped):
    class Alarm(Exception):
        pass

    def handle(*_):
        raise Alarm("now")

    before = signal.signal(signal.SIGINT, handle)
    try:
        stopped()
        with interrupted(Alarm):
            client.ping()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_raises_nothing_ends_no_wait(daemon, client, stopped):
    seen = []

    def handle(*_):
        seen.append(time.monotonic())
        os.kill(daemon.pid, signal.SIGCONT)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        stopped()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        client.create("made", 4, "|u1").close()  # once
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(seen) == 1
    assert [entry.name for entry in client.list()] == ["made"]


LEASES = [11111, 22222]


def has_lease(packets, lease):
    return any(struct.pack(">H", lease) in packet for packet in packets)


def test_a_return_that_takes_its_time(daemon, tmp_path):
    """A daemon that has come back does not answer `resume`: calls end all the same, and so does the
    client. What has ended meanwhile is given back, and once."""
    with daemon.connect() as real:
        device = {**DEVICE, "uuid": real.devices[0].uuid}
    hello = {**HELLO, "driver": "soft", "devices": [device], "token": [1, 2]}
    array = {"array": 1, "nbytes": 0, "typestr": "|u1", "shape": [0], "device": device["uuid"]}
    opened, made = ({"pool": "uid:0", "arrays": [{**array, "lease": lease}], "blocks": []} for lease in LEASES)
    hellos = itertools.chain([hello], itertools.repeat({**hello, "resumed": True}))
    creates = iter([None, made, None])
    ended, resumes, in_time, notes = threading.Event(), itertools.chain([True, False, True], itertools.repeat(False)), [], []

    def create():
        answer = next(creates)
        if not answer:
            raise ConnectionResetError
        return answer, []

    def resume():
        if next(resumes):
            os.kill(os.getpid(), signal.SIGINT)
            in_time.append(ended.wait(4))  # the client waits for 5 s
            ended.clear()
        return {"lost": LEASES[:1]}, []

    answers = {"hello": lambda: (next(hellos), []), "create": create, "open": opened, "resume": resume,
               "ping": {}, "notified": notes.append}
    with fake_daemon(tmp_path / "s", device, **answers):
        with caid.connect(tmp_path / "s", call_timeout=1) as c:
            x = c.open("x")
            with pytest.raises(KeyboardInterrupt):
                c.create("made", 0, "|u1")
            x.close()
            with pytest.raises(caid.TimeoutError):
                c.ping()
            ended.set()
            wait_until(lambda: has_lease(notes, LEASES[1]))
            c.ping()
            with pytest.raises(KeyboardInterrupt):
                c.create("made", 0, "|u1")
        ended.set()
    wait_until(lambda: len(in_time) == 2)
    assert in_time == [True, True]
    assert not has_lease(notes, LEASES[0])


def test_connecting_while_not_all_is_back(tmp_path):
    """Most of that time passes between two attempts."""
    left = itertools.count(1_000_000, -1000)
    with fake_daemon(tmp_path / "s", hello=lambda: ((22, "not all is back", ("left", next(left))), [])):
        with interrupted():
            caid.connect(tmp_path / "s", timeout=PATIENCE_S)


def test_closing_while_a_hello_is_not_answered(daemon, tmp_path):
    with daemon.connect() as real:
        device = {**DEVICE, "uuid": real.devices[0].uuid}
    hello = {**HELLO, "driver": "soft", "devices": [device], "token": [1, 2]}
    array = {"array": 1, "nbytes": 0, "typestr": "|u1", "shape": [0], "device": device["uuid"], "lease": 1}
    opened = {"pool": "uid:0", "arrays": [array], "blocks": []}
    is_open, asked, closed, in_time = threading.Event(), threading.Event(), threading.Event(), []

    def greet():
        if asked.is_set() or not is_open.is_set():
            return hello, []
        asked.set()
        in_time.append(closed.wait(3))  # the client waits for 5 s
        return hello, []

    def ping():
        raise ConnectionResetError

    with fake_daemon(tmp_path / "s", device, hello=greet, open=opened, ping=ping):
        with caid.connect(tmp_path / "s", call_timeout=0.2) as c:
            with c.open("x"):
                is_open.set()
                with pytest.raises(caid.TimeoutError):
                    c.ping()
                assert asked.wait(PATIENCE_S)
        closed.set()
        wait_until(lambda: in_time)
    assert in_time == [True]
