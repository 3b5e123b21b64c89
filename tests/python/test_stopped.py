# SPDX-License-Identifier: Apache-2.0
"""A daemon that does not answer: each call ends in its time, what comes late is given back, and
the client is as usable as before."""

import gc
import locale
import os
import signal
import socket
import subprocess
import time

import pytest
from conftest import PATIENCE_S, at_last, in_thread, wait_until

import caid

SOON_S = 0.2  # the limit of a call that is to be given up


@pytest.fixture
def stop(daemon):
    """stop(): the daemon is stopped until go(), or the test's end."""

    class Stop:
        def __call__(self):
            os.kill(daemon.pid, signal.SIGSTOP)

        def go(self):
            os.kill(daemon.pid, signal.SIGCONT)

    stopped = Stop()
    yield stopped
    stopped.go()


@pytest.fixture
def decimal_comma(tmp_path, monkeypatch):
    """This process's locale has one."""
    (tmp_path / "source").write_text('LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n')
    (tmp_path / "charmap").write_text("<code_set_name> ASCII\nCHARMAP\n<U002C> /x2c\n<U002E> /x2e\nEND CHARMAP\n")
    command = ["localedef", "--force", "-i", tmp_path / "source", "-f", tmp_path / "charmap", tmp_path / "comma"]
    subprocess.run(command, capture_output=True, check=False)  # of categories that are not there it complains
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    locale.setlocale(locale.LC_NUMERIC, "comma")
    assert locale.localeconv()["decimal_point"] == ","
    yield
    locale.setlocale(locale.LC_NUMERIC, "C")


@pytest.fixture
def hasty(daemon, client):
    """A client whose calls have little time."""
    with daemon.connect(call_timeout=SOON_S) as c:
        yield c


def late(call):
    with pytest.raises(caid.TimeoutError) as failed:
        call()
    assert isinstance(failed.value, TimeoutError)
    assert isinstance(failed.value, caid.Error)
    assert failed.value.code == caid.ErrorCode.TIMEOUT
    return failed.value


# --- connecting -----------------------------------------------------------------------------


def test_connecting_to_a_stopped_daemon(daemon, client, stop):
    stop()
    error = late(lambda: daemon.connect(timeout=SOON_S))
    assert daemon.address in str(error)
    stop.go()
    daemon.connect(timeout=PATIENCE_S).close()


@pytest.fixture
def full(tmp_path):
    """A socket whose backlog is full."""
    path = str(tmp_path / "full.sock")
    kind = socket.SOCK_SEQPACKET
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(path)
        listener.listen(0)
        waiting = []
        while True:
            waiting.append(socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK))
            try:
                waiting[-1].connect(path)
            except BlockingIOError:
                break
        yield path
        for s in waiting:
            s.close()


def test_connecting_where_nobody_accepts(full):
    assert full in str(late(lambda: caid.connect(full, timeout=SOON_S)))


def test_the_environment_says_how_long(full, client, monkeypatch):
    monkeypatch.setenv("CAID_TIMEOUT", str(SOON_S))
    late(lambda: caid.connect(full))
    for bad in ("0", "-1", "soon", "nan", "1s"):
        monkeypatch.setenv("CAID_TIMEOUT", bad)
        with pytest.raises(caid.InvalidError, match="CAID_TIMEOUT"):
            caid.connect(full)


def test_the_environment_is_for_calls_too(daemon, client, stop, monkeypatch):
    monkeypatch.setenv("CAID_TIMEOUT", str(SOON_S))
    with daemon.connect() as c:
        stop()
        late(c.ping)
        stop.go()
        c.ping()


def test_a_point_is_one_in_any_locale(daemon, hasty, stop, decimal_comma, monkeypatch):
    with caid.LocalDaemon(supervise=True) as d, d.connect(reconnect_timeout=SOON_S) as c:
        d.stop()
        with pytest.raises(caid.DisconnectedError, match=f"in {SOON_S} s"):
            c.ping()
    stop()
    monkeypatch.setenv("CAID_TIMEOUT", str(SOON_S))
    assert f"in {SOON_S} s" in str(late(lambda: caid.connect(daemon.address)))
    assert f"in {SOON_S} s" in str(late(hasty.ping))


def test_what_is_no_time(daemon, client):
    for bad in (0, -1, float("nan")):
        with pytest.raises(ValueError):
            daemon.connect(timeout=bad)
        with pytest.raises(ValueError):
            daemon.connect(call_timeout=bad)
    daemon.connect(timeout=float("inf"), call_timeout=float("inf")).close()


# --- calls ----------------------------------------------------------------------------------

ASKING = {
    "ping": lambda c: c.ping(),
    "status": lambda c: c.status(),
    "list": lambda c: c.list(),
    "show": lambda c: c.show("kept"),
    "memory_info": lambda c: c.memory_info(),
    "flush": lambda c: c.flush(),
    "watch": lambda c: c.watch("kept"),
    "unlink": lambda c: c.unlink("gone"),
    "create": lambda c: c.create("made", 1000, "<i4"),
    "empty": lambda c: c.empty(1000, "<i4"),
    "open": lambda c: c.open("kept"),
    "open_many": lambda c: c.open_many(["kept"] * 3),
    "timeline": lambda c: c.timeline("counter"),
    "open_timeline": lambda c: c.open_timeline("theirs"),
    "defer": lambda c: c.defer_cleanup().__enter__(),
}


def figures(c):
    s = c.status()
    deferred = sum(user.deferred for user in c.users())
    return s.arrays, s.leases, s.names, s.pages, s.timelines, s.brackets, s.watches, deferred


@pytest.mark.parametrize("kind", ASKING)
def test_a_call_is_given_up_and_what_comes_late_is_given_back(client, hasty, stop, kind):
    with client.create("kept", 4, "|u1"), client.timeline("theirs"):
        client.create("gone", 4, "|u1").close()
        before = figures(client)
        stop()
        late(lambda: ASKING[kind](hasty))
        stop.go()
        if kind == "unlink":  # it has been done, or was not yet
            wait_until(lambda: len(client.list()) == 1)
        else:
            client.ping()  # nobody but the client's own thread looks for the answer
            wait_until(lambda: figures(client) == before)
            client.unlink("gone")
        assert [entry.name for entry in client.list()] == ["kept"]
        at_last(hasty.ping)
        at_last(lambda: hasty.open("kept")).close()
        at_last(lambda: hasty.create("made", 4, "|u1", exist_ok=True)).close()
        at_last(lambda: hasty.unlink("made", missing_ok=True))


def test_a_name_that_has_gone_to_another_array_is_not_taken_back(client, hasty, stop):
    with client.empty(4, "|u1") as mine:
        stop()
        late(lambda: hasty.create("made", 4, "|u1"))
        thread, ended = in_thread(lambda: mine.publish("made"))  # after the one that was given up
        time.sleep(0.05)
        stop.go()
        thread.join(PATIENCE_S)
        generation, = ended
        wait_until(lambda: client.status().leases == 1)
        at_last(hasty.ping)
        assert client.show("made").entry.generation == generation


def test_a_publish_that_was_given_up_may_have_been_done(client, hasty, stop):
    with at_last(lambda: hasty.empty(4, "|u1")) as a:
        stop()
        late(lambda: a.publish("published"))
        stop.go()
        wait_until(lambda: [entry.name for entry in client.list()] == ["published"])
        at_last(lambda: a.publish("published"))


def test_brackets_of_a_stopped_daemon(client, hasty, stop):
    with client.create("shared", 4, "|u1") as mine, at_last(lambda: hasty.open("shared")) as theirs:
        stop()
        late(lambda: theirs.read().__enter__())
        late(lambda: theirs.read(timeout=SOON_S).__enter__())
        late(lambda: theirs.read(timeout=0).__enter__())
        stop.go()
        with mine.write(timeout=PATIENCE_S):  # nobody reads it
            pass
        with theirs.read(timeout=PATIENCE_S):
            pass


def test_a_bracket_that_has_no_time_has_that_of_calls(client, hasty):
    with client.create("shared", 4, "|u1") as mine, at_last(lambda: hasty.open("shared")) as theirs:
        with mine.write():
            late(lambda: theirs.read().__enter__())
        with theirs.read(timeout=PATIENCE_S):
            pass


def test_a_part_that_is_published_late(client, hasty, stop):
    def publish(name):
        arena.publish(name, memory.pop(), shape=10, dtype="|u1")

    with hasty.arena() as arena:
        memory = [at_last(lambda: arena.allocate(1000)) for _ in range(2)]
        stop()
        late(lambda: publish("part"))
        late(lambda: publish("part"))
        stop.go()
        wait_until(lambda: [entry.name for entry in client.list()] == ["part"])
        assert arena.info.published == 2
        client.unlink("part")
        wait_until(lambda: (hasty.dispatch(), arena.info.published)[1] == 0)
        gc.collect()  # the exceptions have the memory


def test_a_stopped_daemon_that_reads_nothing(daemon, client, stop):
    """Requests fill the socket: then the next one is not even sent."""
    with daemon.connect(call_timeout=0.002) as c:
        stop()
        for _ in range(1000):
            if "took no" in str(late(c.ping)):
                break
        else:
            pytest.fail("the socket took 1,000 requests")
        stop.go()

        def answers():
            try:
                return c.ping() is None
            except caid.TimeoutError:
                return False

        wait_until(answers)


def test_threads_that_share_a_connection(hasty, stop):
    """One of them reads for all; when it goes, another one does."""
    stop()
    threads = [in_thread(hasty.ping) for _ in range(8)]
    for thread, ended in threads:
        thread.join(PATIENCE_S)
        assert isinstance(ended[0], caid.TimeoutError)
    stop.go()
    threads = [in_thread(lambda: at_last(hasty.ping)) for _ in range(8)]
    for thread, ended in threads:
        thread.join(PATIENCE_S)
        assert ended == [None]
