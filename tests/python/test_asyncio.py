# SPDX-License-Identifier: Apache-2.0
"""What waits, in asyncio: the loop goes on meanwhile, and a task that is cancelled leaves nothing. Brackets: test_bracket.py;
watches: test_watch.py; streams: test_stream.py."""

import asyncio
import functools
import inspect
import threading

import models
import pytest
from conftest import PATIENCE_S, Held, run_async, wait_until

import caid
from caid import weights

FORMS = {  # what waits for others, or for a device
    caid.connect: caid.async_connect,
    weights.open: weights.async_open,
    caid.Array.read: caid.Bracket.__aenter__,
    caid.Array.write: caid.Bracket.__aenter__,
    caid.Array.synchronize: caid.Array.async_done,
    caid.Client.bracket: caid.Bracket.__aenter__,
    caid.Channel.frames: caid.Channel.__aiter__,
    caid.Channel.get: caid.Channel.async_get,
    caid.Channel.put: caid.Channel.async_put,
    caid.Client.channel: caid.Client.async_channel,
    caid.Client.open: caid.Client.async_open,
    caid.Client.open_channel: caid.Client.async_open_channel,
    caid.Client.open_set: caid.Client.async_open_set,
    caid.Client.open_timeline: caid.Client.async_open_timeline,
    caid.Client.watch: caid.Watch.wait,
    caid.Event.synchronize: caid.Event.async_done,
    caid.Stream.synchronize: caid.Stream.async_done,
    caid.Timeline.wait: caid.Timeline.async_wait,
    caid.Watch.get: caid.Watch.wait,
    caid.Watch.wait: caid.Watch.wait,
}


def test_what_waits_has_a_form_for_asyncio():
    public = {caid.connect, weights.open}
    for thing in vars(caid).values():
        if isinstance(thing, type) and thing.__module__ == "caid":
            public |= {member for name, member in vars(thing).items() if inspect.isfunction(member) and name[0] != "_"}
    waits = {each for each in public if {"wait", "timeout"} & {*inspect.signature(each).parameters}}
    waits |= {each for each in public if each.__name__ == "synchronize"}
    waits.remove(caid.Client.suspend)  # nothing else goes on in a process that is about to be checkpointed
    assert waits - {*FORMS.values()} <= {*FORMS}


async def begun(coroutine):
    """The task of a coroutine that waits by now."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0.01)
    assert not task.done()
    return task


async def refused_and_cancelled(form, error=caid.TimedOutError):
    with pytest.raises(error):
        await form(timeout=0)
    with pytest.raises(error):
        await form(timeout=0.01)
    with pytest.raises(ValueError, match="timeout -1"):
        await form(timeout=-1)
    task = await begun(form())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_names_that_come_later(client, other):
    async def main():
        await refused_and_cancelled(lambda **options: client.async_open("a", **options))
        task = await begun(client.async_open("a", "rw"))
        with other.create("a", 3) as a, await task as b, await client.async_open("a") as c:
            assert (b.shape, b.readonly, c.readonly, c.generation) == ((3,), False, True, a.generation)
        with pytest.raises(caid.NotFoundError):
            await client.async_open("a", pool="absent")

        task = await begun(client.async_open_set("s/"))
        with other.create("x", 1) as x:
            other.publish_many("s/", {"x": x})
        with await task as opened:
            assert [*opened] == ["x"]

    run_async(main())
    assert client.status().watches == 0


def test_weights_that_come_later(client, tmp_path):
    path = models.write_version(tmp_path / "m.safetensors", 1)

    async def main():
        task = await begun(weights.async_open("m", client=client))
        version = await asyncio.to_thread(weights.load, path, "m", client=client)
        with await task as w:
            assert w.version == version
        with pytest.raises(caid.StaleError):
            await weights.async_open(f"m@{version + 1}", client=client)

    run_async(main())


def test_timelines(client, other):
    async def main():
        await refused_and_cancelled(lambda **options: client.async_open_timeline("t", **options))
        with pytest.raises(caid.NotFoundError):
            await client.async_open_timeline("t", pool="absent")
        task = await begun(client.async_open_timeline("t"))
        with other.timeline("t") as signals, client.stream() as s, await task as waits:
            for value, where in (1, None), (2, s):
                await refused_and_cancelled(functools.partial(waits.async_wait, where, value))
                task = await begun(waits.async_wait(where, value))
                signals.signal(None, value)
                await task
                await s.async_done()
            with pytest.raises(caid.InvalidError):
                await waits.async_wait(None, 0)
            task = await begun(waits.async_wait(None, 9))
            signals.close()
            with pytest.raises(caid.AbandonedError):
                await task

    run_async(main())


def test_channels(client, other):
    async def main():
        await refused_and_cancelled(lambda **options: client.async_open_channel("c", **options))
        task = await begun(client.async_open_channel("c"))
        with await other.async_channel("c", (2, 3), mode="fifo", slots=2, memory="pinned") as puts, await task as gets:
            await refused_and_cancelled(gets.async_get)
            task = await begun(gets.async_get())
            for _ in range(2):
                puts.put().end()
            with await task as frame:
                assert frame.sequence == 1
                puts_next = await begun(puts.async_put(timeout=PATIENCE_S))
            with await puts_next:
                pass
            with pytest.raises(caid.BusyError):
                await client.async_channel("c", (2, 3), mode="fifo", slots=2, memory="pinned")

    run_async(main())


def test_arrays(client):
    async def main():
        with client.array(bytes(8)) as a, client.stream() as s:
            with Held(s):
                with a.write(s):
                    pass
                task = await begun(a.async_done())
            await task
        with pytest.raises(caid.ClosedError):
            await a.async_done()

    run_async(main())


def test_events(client):
    async def main():
        e = client.event()
        with client.stream() as s:
            await e.async_done()  # nothing was recorded
            with Held(s):
                e.record(s)
                task = await begun(e.async_done())
                left = await begun(e.async_done())
                left.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await left
            await task
            s.synchronize()

    run_async(main())


def test_connect(daemon, client, monkeypatch):
    def slow(*args, **options):
        assert gate.wait(PATIENCE_S)
        return connect(*args, **options)

    async def main():
        with await caid.async_connect(daemon.address, name="a") as c:
            assert c.status().connections == 2
        with pytest.raises(caid.NoDaemonError):
            await caid.async_connect("/nonexistent")
        monkeypatch.setattr(caid, "Client", slow)
        task = await begun(caid.async_connect(daemon.address, name="b"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        while any(thread.name == "caid-call" for thread in threading.enumerate()):
            await asyncio.sleep(0.001)

    gate, connect = threading.Event(), caid.Client
    run_async(main())
    wait_until(lambda: client.status().connections == 1)
