# SPDX-License-Identifier: Apache-2.0
"""What is published keeps what it was made of alive, and no longer: by a thread of the client's,
beside whoever else looks at the client, and at every end."""

import asyncio
import gc
import os
import select
import signal
import threading
import time
import weakref

import pytest
from conftest import PATIENCE_S, forked, in_thread, wait_until

import caid
from caid._memory import _releaser

READER = """
c = caid.connect()
a = c.open("x")
step("open")
a.close()
step("closed")
"""


class Foreign:
    """Another library's array."""

    def __init__(self, memory, at_end=None):
        self.memory = memory
        self.at_end = at_end
        self.__cuda_array_interface__ = memory.__cuda_array_interface__

    def __del__(self):
        del self.memory  # it would stay where a client is closed meanwhile
        if self.at_end is not None:
            self.at_end()


def publish(arena, name="x", **options):
    """A weak reference to what was published."""
    x = Foreign(arena.allocate(64), **options)
    arena.publish(name, x)
    return weakref.ref(x)


def n_releasers():
    return sum(thread.name == "caid-releaser" for thread in threading.enumerate())


def n_fds():
    return len(os.listdir("/proc/self/fd"))


def replace(client, name="x"):
    with client.empty(4) as a:
        return a.publish(name)


# --- how long -------------------------------------------------------------------------------


def test_until_the_name_is_gone(client, arena):
    x = publish(arena)
    gc.collect()
    assert x() is not None and client._n_kept == 1 and n_releasers() == 1
    client.unlink("x")
    wait_until(lambda: x() is None)
    wait_until(lambda: n_releasers() == 0)
    assert client._n_kept == 0


@pytest.mark.parametrize("who", ["this client", "another", "the arena"])
def test_until_the_name_shows_something_else(client, other, arena, who):
    x = publish(arena)
    if who == "the arena":
        y = publish(arena)
    else:
        replace(client if who == "this client" else other)
    wait_until(lambda: x() is None)
    if who == "the arena":
        assert y() is not None
        client.unlink("x")
        wait_until(lambda: y() is None)


def test_until_a_reader_closes_it(client, arena, child):
    x = publish(arena)
    reader = child(READER)
    reader.expect("open")
    replace(client)
    client.ping()
    gc.collect()
    time.sleep(0.05)  # that it lives on is shown by nothing else
    assert x() is not None and client._n_kept == 1
    reader.go()
    reader.expect("closed")
    wait_until(lambda: x() is None)


def test_until_a_reader_is_killed(client, arena, child):
    x = publish(arena)
    reader = child(READER)
    reader.expect("open")
    client.unlink("x")
    client.ping()
    assert x() is not None
    reader.kill()
    wait_until(lambda: x() is None)


def test_an_allocation_may_go_and_its_memory_is_looked_after(client, other):
    with client.arena(max_pending_age=0.001) as arena:
        x = arena.allocate(64)
        arena.publish("x", x)
        gone = weakref.ref(x)
        del x
        assert gone() is None and n_releasers() == 1
        assert arena.info.published == 1
        arena.set_limits(0, 1.0)
        with other.open("x"):
            other.unlink("x")
            other.ping()
            assert arena.info.published == 1
        wait_until(lambda: n_releasers() == 0)  # and nobody but the releaser has called anything
        assert arena.info.published == 0
        arena.flush()
        wait_until(lambda: arena.info.blocks == 0)


def test_the_figures_are_of_what_has_come(client, other, arena, monkeypatch):
    monkeypatch.setattr(_releaser._Releaser, "run", lambda releaser: releaser.close())  # no thread
    arena.publish("x", arena.allocate(64))
    other.unlink("x")
    wait_until(lambda: arena.info.published == 0)
    assert client._n_kept == 0


def test_many_are_kept_and_dropped(client, arena):
    xs = [publish(arena, f"x{i}") for i in range(100)]
    assert client._n_kept == 100 and n_releasers() == 1
    for i in range(100):
        client.unlink(f"x{i}")
    wait_until(lambda: not any(x() for x in xs))
    wait_until(lambda: n_releasers() == 0)


def test_what_is_not_published_is_not_kept(client, arena):
    x = Foreign(arena.allocate(64))
    for name, options, error in (
        ("\n", {}, caid.InvalidNameError),
        ("x", {"metadata": "x" * 5000}, caid.Error),
        ("x", {"stream": 0}, ValueError),
    ):
        with pytest.raises(error):
            arena.publish(name, x, **options)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None and client._n_kept == 0
    wait_until(lambda: n_releasers() == 0)


# --- the thread -----------------------------------------------------------------------------


def test_one_thread_for_a_client_as_long_as_it_is_needed(daemon, client, arena):
    fds = n_fds()
    for _ in range(3):
        x, y = publish(arena, "x"), publish(arena, "y")
        assert n_releasers() == 1
        client.unlink("x")
        wait_until(lambda: x() is None)
        assert n_releasers() == 1 and y() is not None
        client.unlink("y")
        wait_until(lambda: y() is None and n_releasers() == 0)
    wait_until(lambda: n_fds() <= fds + 3)  # the client's own, for fileno()
    assert len(_releaser._releasers) == 0


def test_it_does_not_end_before_what_is_being_published(daemon, client, other):
    looked = []

    class Client(caid.Client):
        def _dispatch_parts(self):
            super()._dispatch_parts()
            looked.append(self._n_kept)

    with Client(daemon.address) as c, c.arena() as a, c.watch("w"):
        x = Foreign(a.allocate(64))
        with _releaser.watching(c):  # as publish() has it
            replace(other, "w")
            wait_until(lambda: looked)
            replace(other, "w")
            assert n_releasers() == 1 and looked[0] == 0
            a._publish_part(x.memory.ptr, "x", "|u1", None, (64,), None, None, 0, x, False, False)
        gone = weakref.ref(x)
        x = None
        c.unlink("x")
        wait_until(lambda: gone() is None)


def test_a_thread_that_cannot_be_had(client, arena, monkeypatch):
    client.fileno()
    publish(arena)
    client.unlink("x")
    wait_until(lambda: n_releasers() == 0)

    def fail(_thread):
        raise RuntimeError("can't start new thread")

    fds = n_fds()
    monkeypatch.setattr(threading.Thread, "start", fail)
    x = Foreign(arena.allocate(64))
    with pytest.raises(RuntimeError, match="new thread"):
        arena.publish("x", x)
    monkeypatch.undo()
    assert client.list() == [] and client._n_kept == 0 and n_fds() == fds
    arena.publish("x", x)  # the next one gets it
    assert n_releasers() == 1


def test_another_publisher_gets_the_thread_that_one_could_not_have(client, arena, monkeypatch):
    start, failed, go_on = threading.Thread.start, [], threading.Event()

    def fail_once(thread):
        if thread.name != "caid-releaser" or failed:
            return start(thread)
        failed.append(thread)
        go_on.wait(PATIENCE_S)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    _, first = in_thread(lambda: publish(arena, "x"))
    wait_until(lambda: failed)
    _, second = in_thread(lambda: publish(arena, "y"))
    wait_until(lambda: [k.n_publishing for k in _releaser._releasers.values()] == [2])
    go_on.set()
    wait_until(lambda: first and second)
    assert isinstance(first[0], RuntimeError) and second[0]() is not None
    assert client._n_kept == 1 and n_releasers() == 1
    client.unlink("y")
    wait_until(lambda: second[0]() is None)


def test_a_thread_that_dies_is_replaced(daemon, other, monkeypatch):
    died = []
    monkeypatch.setattr(threading, "excepthook", lambda of: died.append(of.exc_type))

    class Client(caid.Client):
        def _dispatch_parts(self):
            if not died:
                raise MemoryError
            super()._dispatch_parts()

    with Client(daemon.address) as c, c.arena() as a:
        x = publish(a)
        other.unlink("x")
        wait_until(lambda: died == [MemoryError] and n_releasers() == 0)
        assert x() is not None and not _releaser._releasers
        y = publish(a)
        other.unlink("x")
        wait_until(lambda: x() is None and y() is None and n_releasers() == 0)


def test_the_programs_own_dispatch_does_it_too(client, arena, monkeypatch):
    monkeypatch.setattr(_releaser._Releaser, "run", lambda releaser: releaser.close())  # no thread
    x = publish(arena)
    client.unlink("x")
    poll = select.poll()
    poll.register(client.fileno(), select.POLLIN)
    while x() is not None:
        assert poll.poll(PATIENCE_S * 1000)
        client.dispatch()
    assert client._n_kept == 0 and len(_releaser._releasers) == 0


def test_the_releaser_ends_when_the_program_was_quicker(client, arena):
    for _ in range(50):
        x = publish(arena)
        client.unlink("x")
        while x() is not None:
            client.dispatch()
    wait_until(lambda: n_releasers() == 0)


# --- beside others --------------------------------------------------------------------------


def test_beside_watches_in_threads_and_in_asyncio(client, other, arena):
    kept = publish(arena, "kept")
    seen = []

    async def follow(watch, last):
        async for change in watch:
            seen.append(change.generation)
            if change.generation >= last:
                return

    def wait_for(watch, last):
        while watch.get(PATIENCE_S).generation < last:
            pass

    for _ in range(20):
        with client.watch("a") as a, client.watch("b") as b:
            last = replace(other, "a") + 5, replace(other, "b") + 5
            thread, ended = in_thread(lambda: wait_for(b, last[1]))

            async def main():
                task = asyncio.ensure_future(follow(a, last[0]))
                for _ in range(5):
                    await asyncio.sleep(0)
                    replace(other, "a")
                    replace(other, "b")
                await asyncio.wait_for(task, PATIENCE_S)

            asyncio.run(main())
            thread.join(PATIENCE_S)
            assert ended == [None]
        x = publish(arena)
        client.unlink("x")
        wait_until(lambda: x() is None)
    assert kept() is not None


def test_what_others_leave_unread_is_looked_at_again(daemon, client, other):
    """As where a thread was about to read, and then had what it waited for."""
    looks = []

    class Client(caid.Client):
        def _dispatch_parts(self):
            looks.append(len(looks))
            if looks[-1] % 3 == 2:
                super()._dispatch_parts()

    with Client(daemon.address) as c, c.arena() as a:
        for _ in range(5):
            x = publish(a)
            other.unlink("x")
            wait_until(lambda: x() is None)
    assert len(looks) >= 5


def test_beside_a_loop_of_the_programs_own(client, other, arena):
    """Its fd is raised for a watch's news, whatever the releaser has read."""
    kept = publish(arena, "kept")
    poll = select.poll()
    poll.register(client.fileno(), select.POLLIN)
    with client.watch("w") as watch:
        for i in range(200):
            x = publish(arena)
            client.unlink("x")
            generation = replace(other, "w")
            if i % 3 == 0:
                wait_until(lambda: x() is None)  # the releaser has read it all
            while True:
                assert poll.poll(PATIENCE_S * 1000), "the fd was lowered"
                client.dispatch()
                try:
                    if watch.get(0).generation == generation:
                        break
                except caid.TimedOutError:
                    pass
    assert kept() is not None


def test_news_that_nobody_takes_keep_nobody_busy(daemon, client, other):
    calls = []

    class Client(caid.Client):
        def _dispatch_parts(self):
            calls.append(1)
            super()._dispatch_parts()

    with Client(daemon.address) as c, c.arena() as a:
        x = publish(a)
        with c.watch("w"):
            replace(other, "w")
            wait_until(lambda: calls)
            time.sleep(0.2)  # for calls that are not made
            assert len(calls) < 20
            c.unlink("x")
            wait_until(lambda: x() is None)


def test_what_ends_may_raise_and_publish(client, arena, monkeypatch):
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda u: unraisable.append(str(u.exc_value)))

    def fail():
        raise RuntimeError("at the end")

    x = publish(arena, at_end=fail)
    y = publish(arena, "y", at_end=lambda: publish(arena, "z"))
    client.unlink("x")
    client.unlink("y")
    wait_until(lambda: x() is None and y() is None)
    assert unraisable == ["at the end"]
    wait_until(lambda: [e.name for e in client.list()] == ["z"] and client._n_kept == 1)
    client.unlink("z")
    wait_until(lambda: n_releasers() == 0)


# --- ends -----------------------------------------------------------------------------------


def test_closing_the_client_lets_go(daemon, client):
    with daemon.connect() as c:
        x = publish(c.arena())
        y = publish(c.arena(), "y")
    wait_until(lambda: x() is None and y() is None)  # the releaser may be in a call, which ends it then
    wait_until(lambda: n_releasers() == 0)
    assert [entry.name for entry in client.list()] == ["x", "y"]
    wait_until(lambda: client.status().leases == 0)  # the blocks went back before


def test_closing_the_client_waits_for_what_is_being_dropped(daemon, client):
    entered, gate = threading.Event(), threading.Event()

    class Slow(Foreign):
        def __del__(self):
            entered.set()
            gate.wait(PATIENCE_S)
            super().__del__()

    c = daemon.connect()
    with c.arena() as arena:
        arena.publish("x", Slow(arena.allocate(64)))
    c.unlink("x")
    assert entered.wait(PATIENCE_S)
    closing, _ = in_thread(c.close)
    closing.join(0.1)
    assert closing.is_alive()
    gate.set()
    closing.join(PATIENCE_S)
    wait_until(lambda: client.status().blocks == 0)


def test_what_ends_may_close_the_client(daemon, client):
    c = daemon.connect()
    x = publish(c.arena(), at_end=c.close)
    y = publish(c.arena(), "y")
    c.unlink("x")
    wait_until(lambda: x() is None and y() is None and c.closed)
    wait_until(lambda: n_releasers() == 0)


def test_a_client_that_is_dropped_is_collected(daemon, client):
    """Neither the thread nor what is kept holds it: nobody is left who could use the memory again."""
    c = daemon.connect()
    alive = weakref.ref(c)
    x = publish(c.arena())
    y = weakref.ref(x().memory)
    with pytest.warns(ResourceWarning, match="unclosed <caid.Client"):
        del c
        # The thread may have looked at it just now.
        wait_until(lambda: gc.collect() >= 0 and alive() is None)
    assert x() is None and y() is None
    wait_until(lambda: n_releasers() == 0)
    assert [entry.name for entry in client.list()] == ["x"]


def test_a_dead_daemon_ends_the_releaser():
    with caid.LocalDaemon() as d, d.connect() as c:
        with c.arena() as a:
            x = publish(a)
            os.kill(d.pid, signal.SIGKILL)
            wait_until(lambda: n_releasers() == 0)
            assert x() is not None  # others may still read it
            ys = [Foreign(a.allocate(64)) for _ in range(5)]
            for y in ys:
                with pytest.raises(caid.DisconnectedError):
                    a.publish("y", y)
            seen = [weakref.ref(y) for y in ys]
            del y, ys
            gc.collect()
            assert [y() for y in seen] == [None] * 5 and c._n_kept == 1
            assert a.info.allocations == a.info.published == 1
            wait_until(lambda: n_releasers() == 0)
        c.close()
        gc.collect()
        assert x() is None


def test_a_forked_child_has_none(client, arena):
    x = publish(arena)

    def work():
        assert n_releasers() == 0 and not _releaser._releasers
        with pytest.raises(caid.ForkedError):
            publish(arena, "y")
        client.close()

    forked(work=work)
    assert n_releasers() == 1
    client.unlink("x")
    wait_until(lambda: x() is None)


AT_EXIT = {
    "kept": "",
    "kept by a client that is closed": "c.close()",
    "kept by a client that is dropped": "del c, a, x",
    "dropped meanwhile": "c.unlink('x')",
    "published at exit": """
import atexit
atexit.register(lambda: a.publish("y", x))""",
    "unlinked at exit": """
import atexit
atexit.register(lambda: c.unlink("x"))""",
    "dropped in a thread all the time": """
def churn():
    while True:
        a.publish("y", Foreign(a.allocate(64)))
        up.set()
up = threading.Event()
threading.Thread(target=churn, daemon=True).start()
up.wait()""",
}

PUBLISHES = """
import threading

class Foreign:
    def __init__(self, memory):
        self.memory = memory
        self.__cuda_array_interface__ = memory.__cuda_array_interface__

c = caid.connect()
a = c.arena()
x = Foreign(a.allocate(64))
a.publish("x", x)
"""


@pytest.mark.parametrize("what", AT_EXIT)
def test_the_end_of_the_interpreter(child, client, what):
    c = child(PUBLISHES + AT_EXIT[what])
    assert c.finish() == (0, "")
    wait_until(lambda: client.status().connections == 1)


SLOW_TO_GO = """
import time

class Slow(Foreign):
    def __del__(self):
        went.set()
        time.sleep(0.3)  # without the GIL
        step("gone")

went = threading.Event()
y = Slow(a.allocate(64))
a.publish("y", y)
del y
c.unlink("y")
went.wait()
"""


def test_what_is_being_dropped_is_waited_for_at_the_end(child, client):
    """A thread that were ended there would be unwound through a destructor of C++."""
    c = child(PUBLISHES + SLOW_TO_GO)
    c.expect("gone")
    c.go()
    assert c.finish() == (0, "")


def test_a_daemon_that_does_not_answer_holds_up_no_exit(child, client, daemon):
    c = child(PUBLISHES + "step('published')")
    c.expect("published")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        c.go()
        assert c.finish() == (0, "")
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
