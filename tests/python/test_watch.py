# SPDX-License-Identifier: Apache-2.0
"""Watching names: in threads, in asyncio, under publishers, and at every kind of end."""

import asyncio
import contextlib
import errno
import gc
import os
import random
import threading
import time
import weakref

import numpy
import pytest
from conftest import PATIENCE_S, in_thread, run_async, wait_until

import caid

N_GENERATIONS = int(os.environ.get("CAID_TEST_GENERATIONS", 1000))  # ./dev test --long: 10000


def publish(client, name="w"):
    with client.empty(4, "|u1") as a:
        return a.publish(name)


# --- in a thread ----------------------------------------------------------------------------


def test_a_name_that_is_not_there_yet(client):
    with client.watch("w") as watch:
        with pytest.raises(TimeoutError) as caught:
            watch.get(0.01)
        assert caught.value.errno == errno.ETIMEDOUT
        assert isinstance(caught.value, caid.Error)
        with client.create("w", 4) as a:
            assert watch.get(PATIENCE_S).generation == a.generation


def test_a_change_is_hashable_and_frozen(client):
    publish(client)
    with client.watch("w", pool=client.status().pool) as watch:
        change = watch.get()
        assert change.pool == client.status().pool and hash(change)
        with pytest.raises(AttributeError):
            change.name = "x"
        assert "'w'" in repr(watch) and watch.name == "w"
        assert watch.pool == client.status().pool


def test_a_timeout_is_the_iterators(client):
    with client.watch("w", timeout=0.01) as watch:
        for _ in range(2):
            with pytest.raises(caid.TimedOutError):
                next(watch)
        publish(client)
        wait_until(lambda: _got(watch))
    for wrong in (-1, float("nan"), "1"):
        with pytest.raises((ValueError, TypeError)):
            client.watch("w", timeout=wrong)
    with client.watch("w") as watch:
        for wrong in (-1, float("nan")):
            with pytest.raises(ValueError):
                watch.get(wrong)
        with pytest.raises(TypeError):
            watch.get("1")


def _got(watch):
    try:
        return next(watch)
    except caid.TimedOutError:
        return None


def test_close_ends_what_other_threads_wait_for(client):
    watch = client.watch("w")
    thread, ended = in_thread(lambda: list(watch))
    waiting, cancelled = in_thread(watch.get)
    time.sleep(0.01)
    watch.close()
    wait_until(lambda: (client.ping(), ended and cancelled)[1])  # whatever else comes from the daemon
    thread.join()
    waiting.join()
    assert ended == [[]] and watch.closed
    assert isinstance(cancelled[0], (caid.CancelledError, caid.ClosedError))
    watch.close()
    assert list(watch) == []
    with pytest.raises(caid.ClosedError, match="watch of 'w' is closed"):
        watch.get()
    assert repr(watch) == "<caid.Watch 'w' closed>"


def test_closing_the_client_ends_its_watches(daemon, client):
    with daemon.connect() as c:
        watch = c.watch("w")
        thread, ended = in_thread(lambda: list(watch))
        time.sleep(0.01)
    thread.join(PATIENCE_S)
    assert ended == [[]] and watch.closed
    watch.close()
    with pytest.raises(caid.ClosedError):
        watch.get()
    with pytest.raises(caid.ClosedError):
        c.watch("w")


def test_a_daemon_that_dies(child):
    with caid.LocalDaemon() as d, d.connect() as c, c.watch("w") as watch:
        thread, ended = in_thread(lambda: watch.get(PATIENCE_S))

        async def wait():
            with c.watch("x") as other:
                asyncio.get_running_loop().call_later(0.01, d.stop)
                await other.wait()

        with pytest.raises(caid.DisconnectedError):
            asyncio.run(wait())
        thread.join(PATIENCE_S)
        assert isinstance(ended[0], caid.DisconnectedError)


# --- asyncio --------------------------------------------------------------------------------


def test_async_iteration(client):
    async def main():
        seen = []
        with client.watch("w") as watch:

            async def follow():
                async for change in watch:
                    seen.append(change.generation)
                    if change.generation == 0:
                        return

            task = asyncio.ensure_future(follow())
            for _ in range(3):
                await asyncio.sleep(0.01)
                last = publish(client)
            while last not in seen:
                await asyncio.sleep(0.01)
            client.unlink("w")
            await task
            assert seen == sorted(seen[:-1]) + [0] and seen[-2] == last

    run_async(main())


def test_watches_of_a_client_share_one_reader(client):
    async def main():
        loop = asyncio.get_running_loop()
        added = []
        add_reader = loop.add_reader
        loop.add_reader = lambda *args: added.append(args) or add_reader(*args)
        watches = [client.watch(f"n{i}") for i in range(10)]
        waits = [asyncio.ensure_future(w.wait()) for w in watches]
        await asyncio.sleep(0.01)
        for i in reversed(range(10)):
            publish(client, f"n{i}")
        changes = await asyncio.gather(*waits)
        assert [change.name for change in changes] == [f"n{i}" for i in range(10)]
        assert len(added) == 1
        assert not loop.remove_reader(added[0][0]), "the reader is gone with the last"
        for w in watches:
            w.close()

    run_async(main())


def test_async_timeouts(client):
    async def main():
        with client.watch("w", timeout=0.01) as watch:
            with pytest.raises(caid.TimedOutError):
                await watch.wait(0.01)
            with pytest.raises(caid.TimedOutError):
                async for _ in watch:
                    pass
            publish(client)
            assert (await watch.wait(PATIENCE_S)).name == "w"

    run_async(main())


def test_a_cancelled_task_leaves_the_watch(client):
    async def main():
        with client.watch("w") as watch:
            task = asyncio.ensure_future(watch.wait())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            generation = publish(client)
            assert (await watch.wait()).generation == generation

    run_async(main())


@pytest.mark.parametrize("how", ["the watch", "the client", "in a thread"])
def test_close_ends_async_iteration(daemon, client, how):
    async def main():
        with daemon.connect() as c, c.watch("w") as watch:

            async def follow():
                return [change async for change in watch]

            task = asyncio.ensure_future(follow())
            await asyncio.sleep(0.01)
            if how == "the client":
                c.close()
            elif how == "the watch":
                watch.close()
            else:
                in_thread(watch.close)[0].join()
            assert await task == []
            with pytest.raises(caid.ClosedError):
                await watch.wait()

    run_async(main())


def test_calls_in_the_loop_do_not_swallow_news(client):
    """A call of the same client may read the packet that a watch waits for."""

    async def main():
        with client.watch("w") as watch:
            for _ in range(200):
                task = asyncio.ensure_future(watch.wait())
                await asyncio.sleep(0)
                generation = publish(client)
                for _ in range(5):
                    client.ping()
                assert (await task).generation == generation

    run_async(main())


def publish_unseen(client, name="w"):
    """Its news is in the clients' sockets, while the event loop of this thread has not run."""
    generation = publish(client, name)
    time.sleep(0.05)
    return generation


@pytest.mark.parametrize("by", ["dispatch", "default_client"])
def test_dispatch_outside_the_loop_does_not_swallow_news(daemon, client, monkeypatch, by):
    monkeypatch.setenv("CAID_SOCKET", daemon.address)

    async def main():
        c = caid.default_client()
        with c, c.watch("w") as watch:
            task = asyncio.ensure_future(watch.wait(PATIENCE_S))
            await asyncio.sleep(0.01)
            generation = publish_unseen(client)
            if by == "dispatch":
                c.dispatch()
            else:
                assert caid.default_client() is c
            assert (await task).generation == generation

    run_async(main())


def test_dispatch_of_one_loop_wakes_the_others(daemon, client):
    """A loop that is busy while another reads its news."""
    with daemon.connect() as c, c.watch("w") as watch, c.watch("x") as other:
        busy, seen = threading.Event(), threading.Event()

        async def first():
            task = asyncio.ensure_future(watch.wait(PATIENCE_S))
            await asyncio.sleep(0.01)
            busy.set()
            seen.wait(PATIENCE_S)
            time.sleep(0.05)  # the other loop has lowered the fd
            return await task

        thread, ended = in_thread(lambda: asyncio.run(first()))
        busy.wait(PATIENCE_S)

        async def second():
            asyncio.get_running_loop().call_later(0.01, publish, client, "w")
            asyncio.get_running_loop().call_later(0.1, publish, client, "x")
            await other.wait()
            seen.set()

        run_async(second())
        thread.join(PATIENCE_S)
        assert isinstance(ended[0], caid.Change), ended


def test_a_new_client_with_the_old_ones_fd(daemon, client):
    """Both in one step of the loop: nothing of the old one is left in its selector."""

    async def main():
        c = daemon.connect()
        old = asyncio.ensure_future(c.watch("w").wait())
        await asyncio.sleep(0.01)
        c.close()
        with daemon.connect() as c, c.watch("w") as watch:
            new = asyncio.ensure_future(watch.wait(PATIENCE_S))
            with pytest.raises(caid.CancelledError):
                await old
            await asyncio.sleep(0.01)
            assert publish(client) == (await new).generation

    run_async(main())


def test_news_is_not_lost_with_a_task_cancelled_by_the_reader(client):
    """Cancelled in the very step that found the news."""

    async def main():
        loop = asyncio.get_running_loop()
        add_reader, task = loop.add_reader, None

        def add(fd, ready):
            def ready_and_cancel():
                ready()
                task.cancel()

            return add_reader(fd, ready_and_cancel)

        with client.watch("w") as watch:
            loop.add_reader = add
            task = asyncio.ensure_future(watch.wait())
            await asyncio.sleep(0.01)
            loop.add_reader = add_reader
            generation = publish_unseen(client)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await watch.wait(PATIENCE_S)).generation == generation

    run_async(main())


def test_a_loop_that_is_closed_under_a_wait_keeps_nothing(daemon):
    c = daemon.connect()
    n_fds = len(os.listdir("/proc/self/fd"))
    watch, alive = c.watch("w"), weakref.ref(c)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a task is destroyed that waits
    task = loop.create_task(watch.wait())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    with pytest.warns(ResourceWarning):
        del task, watch, loop, c
        gc.collect()
    assert alive() is None
    gc.collect()  # the warnings had named the objects
    assert len(os.listdir("/proc/self/fd")) < n_fds


def test_a_task_that_nobody_keeps_goes_on_waiting(client):
    async def main():
        ended = asyncio.Event()

        async def wait():
            with client.watch("w") as watch:
                await watch.wait()
                ended.set()

        asyncio.ensure_future(wait())
        await asyncio.sleep(0.01)
        gc.collect()
        publish(client)
        await asyncio.wait_for(ended.wait(), PATIENCE_S)

    run_async(main())


def test_the_latest_generation_is_never_missed_in_asyncio(daemon, client):
    """Several watches in one loop, and a publisher in another thread."""
    last = []

    def work():
        with daemon.connect() as c:
            last.append(publish(c) + N_GENERATIONS - 1)  # before anybody can have seen it
            for _ in range(N_GENERATIONS - 1):
                publish(c)

    async def follow(watch):
        seen = 0
        while not last or seen != last[0]:
            change = await watch.wait()
            assert change.generation > seen
            seen = change.generation

    async def main():
        watches = [client.watch("w") for _ in range(4)]
        thread, _ = in_thread(work)
        await asyncio.gather(*map(follow, watches))
        thread.join()
        for w in watches:
            w.close()

    asyncio.run(asyncio.wait_for(main(), 150))


# --- all names with a prefix ------------------------------------------------------------------


def test_names_with_a_prefix(client, other):
    with other.create("run/1", 1) as one, client.watch(prefix="run/", timeout=PATIENCE_S) as watch:
        assert watch.get(0) == ("run/1", None, one.generation) and watch.name == "run/"
        other.publish_many("run/s/", {key: numpy.zeros(1) for key in "ab"})
        generation = other.show("run/s/").entry.generation
        assert [next(watch)[::2] for _ in range(3)] == [(f"run/s/{key}", generation) for key in ("", "a", "b")]
        with client.watch(prefix="run/s/b") as members:
            assert members.get(0).generation == generation
            other.publish_many("run/s/", {"b": numpy.zeros(1)})
            assert members.get(PATIENCE_S) == ("run/s/b", None, generation + 1)
        changes = {change.name: change.generation for change in (next(watch) for _ in range(3))}
        assert changes == {"run/s/": generation + 1, "run/s/a": 0, "run/s/b": generation + 1}
        other.create("run", 1).close()
        with pytest.raises(caid.TimedOutError):
            watch.get(0.01)
    for wrong in {}, {"name": "a", "prefix": "b"}:
        with pytest.raises(TypeError, match="either a name or a prefix"):
            client.watch(**wrong)
    with pytest.raises(caid.NotFoundError):
        client.watch(prefix="", pool="absent")
    assert client.status().watches == 0


@pytest.mark.parametrize("where", ["threads", "asyncio"])
def test_the_latest_of_each_name_is_never_missed(client, other, where):
    """Of names that come, change and go."""
    rng, last, seen = random.Random(1), {}, {}

    def note(change):
        if change.name == "n/end":
            return True
        seen[change.name] = change.generation

    def write():
        for _ in range(N_GENERATIONS // 5):
            name = f"n/{rng.randrange(8)}"
            if last.get(name) and rng.random() < 0.4:
                other.unlink(name)
                last[name] = 0
            else:
                last[name] = publish(other, name)
        other.create("n/end", 1).close()

    def note_rest(watch):
        """That look has found all the others, too."""
        with contextlib.suppress(caid.TimedOutError):
            while True:
                note(watch.get(0))

    def read():
        with client.watch(prefix="n/", timeout=PATIENCE_S) as watch:
            while not note(next(watch)):
                pass
            note_rest(watch)

    async def read_async():
        with client.watch(prefix="n/", timeout=PATIENCE_S) as watch:
            writer = threading.Thread(target=write)
            writer.start()
            async for change in watch:
                if note(change):
                    break
            note_rest(watch)
            writer.join()

    if where == "threads":
        writer = threading.Thread(target=write)
        writer.start()
        read()
        writer.join()
    else:
        run_async(read_async())
    assert {name: generation for name, generation in seen.items() if generation} == {
        name: generation for name, generation in last.items() if generation
    }
    assert all(not last.get(name) for name, generation in seen.items() if not generation)


# --- bad input ------------------------------------------------------------------------------


def test_a_pool_that_is_not_there(client):
    with pytest.raises(caid.NotFoundError):
        client.watch("w", pool="absent")
    assert client.status().watches == 0
