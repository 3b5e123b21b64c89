# SPDX-License-Identifier: Apache-2.0
"""A client that is suspended, so that the driver can checkpoint the process, and resumed."""

import contextlib
import ctypes
import os
import threading

import numpy
import pytest
from conftest import Stream, n_leases, n_live, refuses, softcuda, wait_until
from restarts import Restarts

import caid

MIB = 1 << 20
N = MIB  # of "<i4": a block of its own
NOT_SUPPORTED = 801


@pytest.fixture(autouse=True)
def on_soft(soft):
    """What hardware does: tests/gpu."""


def checkpoint():
    """What the driver says to the restore of this process, which goes on in any case."""
    driver = ctypes.CDLL(caid.softcuda_path())
    for step in "Lock", "Checkpoint":
        assert getattr(driver, f"cuCheckpointProcess{step}")(os.getpid(), None) == 0
    restored = driver.cuCheckpointProcessRestore(os.getpid(), None)
    assert driver.cuCheckpointProcessUnlock(os.getpid(), None) == 0
    return restored


@contextlib.contextmanager
def suspended(client, **how):
    client.suspend(**how)
    yield
    client.resume()


MEMORY = "device", "pinned", "mapped"


def made(client, name, value, memory="device"):
    a = client.create(name, N, "<i4", memory=memory)
    a.fill(value)
    return a


@pytest.fixture
def arrays(client):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(made(client, m, i, m)) for i, m in enumerate(MEMORY)]


def values(arrays):
    return [set(a.copy_to_host().tolist()) for a in arrays]


def test_a_process_can_be_restored_and_has_all_where_it_was(client, arrays):
    small = client.full(10, 3, "<i4")
    stream = client.stream()
    for a in arrays:  # pages of timelines are registered
        with a.read(stream) as b:
            b.copy_to_host(stream=stream)
    seen = numpy.asarray(arrays[1])
    there = [a.ptr for a in (*arrays, small)]
    assert n_live("registrations") > 0 and checkpoint() == NOT_SUPPORTED
    for _ in range(2):
        with suspended(client):
            assert checkpoint() == 0
            assert n_live("registrations") == 0
            assert seen[7] == 1  # memory of the host stays mapped
        assert [a.ptr for a in (*arrays, small)] == there
        assert values((*arrays, small)) == [{0}, {1}, {2}, {3}]
    with arrays[0].write(stream) as b:
        b.fill(9, stream=stream)
    stream.synchronize()
    assert values(arrays)[0] == {9}
    small.close()
    stream.close()


def test_each_client_of_the_process_is_suspended(client, other, arrays):
    """Also where they have the same memory."""
    with other.open("device") as theirs, other.open("pinned") as pinned:
        with suspended(client):
            assert checkpoint() == NOT_SUPPORTED
            assert values([theirs, pinned]) == [{0}, {1}], "it goes on"
            with suspended(other):
                assert checkpoint() == 0
            assert values([theirs, pinned]) == [{0}, {1}]
        assert values(arrays) == [{0}, {1}, {2}]


def test_others_go_on(client, arrays, child):
    """The other process reads what this one wrote on a stream, and writes, while this one is suspended."""
    stream = client.stream()
    with arrays[0].write(stream) as b:
        b.fill(5, stream=stream)
    second = child("""
    with caid.connect() as c, c.open("device", "rw") as a:
        with a.write(c.stream()) as b:
            step(int(b.copy_to_host().max()))
            b.fill(6)
        step("written")
        print("done", flush=True)
    """)
    with suspended(client):
        second.expect(5)
        second.go()
        second.expect("written")
    with arrays[0].read(stream) as b:
        assert set(b.copy_to_host().tolist()) == {6}
    stream.close()
    second.go()
    second.expect("done")
    assert second.finish()[0] == 0


def test_calls_meanwhile_say_so_and_closes_go_on(client, arrays):
    stream, arena, watch = client.stream(), client.arena(), client.watch("news")
    allocation = arena.allocate(100)
    closed = client.full(N, 1, "<i4")
    with suspended(client):
        for call in (
            lambda: client.empty(1),
            lambda: client.open("device"),
            lambda: client.open_set("s/"),
            lambda: client.suspend(),
            lambda: client.channel("c", 1),
            lambda: client.timeline("t"),
            lambda: client.bracket(stream, read=arrays).begin(),
            lambda: arena.allocate(100),
            lambda: arrays[0].copy_to_host(out=numpy.empty(N, "<i4")),
        ):
            with pytest.raises((caid.NotReadyError, caid.ClosedError), match="suspended|unmapped"):
                call()
        with refuses(caid.ClosedError, match="unmapped"):
            arrays[0].ptr  # noqa: B018
        assert {e.name for e in client.list()} == set(MEMORY)
        client.dispatch()
        closed.close()
        allocation.close()
    with pytest.raises(caid.InvalidError, match="not suspended"):
        client.resume()
    with client.create("news", 1):
        assert watch.get().name == "news"
    assert values(arrays) == [{0}, {1}, {2}]
    for thing in arena, watch, stream:
        thing.close()


def test_threads_that_use_the_client_meanwhile_get_an_answer(client, arrays):
    """None hangs, and none gets wrong data."""
    ends, odd = threading.Event(), []
    stream = client.stream()

    def use(a, value):
        while not ends.is_set():
            try:
                with client.open(a.name) as again:
                    got = set(again.copy_to_host().tolist())
                if value == 0:  # an open bracket is in the way
                    with a.read(stream) as b:
                        got |= set(b.copy_to_host().tolist())
                if got != {value}:
                    odd.append(got)
            except (caid.NotReadyError, caid.ClosedError):
                pass
            except Exception as e:
                odd.append(e)
                raise

    threads = [threading.Thread(target=use, args=(a, i)) for i, a in enumerate(arrays)]
    for thread in threads:
        thread.start()
    restored = []
    try:
        while len(restored) < 5:
            with contextlib.suppress(caid.InvalidError):  # a bracket was open
                client.suspend()
                restored.append(checkpoint())
                client.resume()
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        stream.close()
    assert restored == [0] * 5
    assert odd == [] and values(arrays) == [{0}, {1}, {2}]


def test_what_is_in_the_way_is_named(client, other, arrays):
    def refused(error, match):
        with pytest.raises(error, match=match):
            client.suspend(timeout=0)
        assert values(arrays) == [{0}, {1}, {2}]  # it is as before

    with client.stream() as stream, arrays[0].read(stream):
        refused(caid.InvalidError, 'bracket on "device"')
    with client.timeline("t"):
        refused(caid.InvalidError, 'timeline "t"')
    with client.channel("frames", 4):
        refused(caid.InvalidError, 'channel "frames"')
    with client.create("old", 1, memory="legacy"):
        refused(caid.UnsupportedError, '"old" is legacy')
    with contextlib.closing(Stream()) as gated, client.stream() as stream:
        with other.open("device", "rw") as a, a.write(gated.number):
            gated.hold_up()
        with arrays[0].read(stream):
            pass
        print("read", flush=True)
        with pytest.raises(caid.TimedOutError, match="waits for another process"):
            client.suspend(timeout=0)
        gated.gate.set()
        with suspended(client):
            pass
    assert values(arrays) == [{0}, {1}, {2}]


def test_a_client_that_is_closed_is_not_suspended_any_more(daemon, client):
    """Its stream waits for another client; close() of another thread comes after the suspend() has begun."""
    ended = []

    def suspend():
        try:
            c.suspend()
        except caid.Error as e:
            ended.append(e)

    with contextlib.closing(Stream()) as stream, client.timeline("t") as t, daemon.connect() as c:
        with c.open_timeline("t") as theirs:
            theirs.wait(stream.number, 1, ahead=True)
        thread = threading.Thread(target=suspend)
        thread.start()
        wait_until(lambda: not is_awake(c))
        c.close()
        thread.join()
        t.signal(None, 1)
    assert [type(e) for e in ended] == [caid.CancelledError] and "the client was closed" in str(ended[0])


def is_awake(client):
    try:
        client.resume()
    except caid.InvalidError as e:
        return "not suspended" in str(e)


def test_a_captured_graph_is_in_the_way(client, arrays):
    stream = Stream()
    with stream.captures(), pytest.raises(caid.InvalidError, match="captures"):
        client.suspend()
    stream.close()
    assert values(arrays) == [{0}, {1}, {2}]


def test_what_was_replaced_meanwhile_is_said(client, arrays, other):
    with client.full(10, 1, "<i4") as a, client.full(10, 2, "<i4") as b:
        client.publish_many("s/", {"a": a, "b": b})
    old = client.open_set("s/")
    opened, unnamed = dict(old.items()), client.full(10, 3)
    client.suspend()
    other.unlink("pinned")
    with other.full(N, 7, "<i4") as new:
        generation = new.publish("device")
    with other.full(10, 8, "<i4") as new:
        of_set = other.publish_many("s/", {"a": new})
    pool = unnamed.pool
    assert client.resume() == [("device", pool, generation), ("pinned", pool, 0), ("s/", pool, of_set)]
    assert values(arrays) == [{0}, {1}, {2}] and values(opened.values()) == [{1}, {2}]
    with suspended(client):
        pass
    with client.open("device") as a:
        assert a.copy_to_host()[0] == 7
    unnamed.close()
    old.close()


def test_what_was_unmapped_stays_so(client):
    with client.full(N, 1, "<i4") as a:
        client.publish_many("s/", {"a": a})
    with client.open_set("s/") as s:
        a = s["a"]
        there = a.ptr
        s.unmap()
        with suspended(client):
            with pytest.raises(caid.NotReadyError, match="suspended"):
                s.map()
            assert checkpoint() == 0
        with refuses(caid.ClosedError, match="unmapped"):
            a.ptr  # noqa: B018
        s.map()
        assert a.ptr == there and values([a]) == [{1}]


def test_what_is_unmapped_meanwhile_stays_so(client):
    with client.full(N, 1, "<i4") as a:
        client.publish_many("s/", {"a": a})
    with client.open_set("s/") as s:
        a = s["a"]
        with suspended(client):
            s.unmap()
        with refuses(caid.ClosedError, match="unmapped"):
            a.ptr  # noqa: B018
        s.map()
        assert values([a]) == [{1}]


def test_what_was_closed_is_not_in_the_way(client):
    """Legacy memory, which stays open for a while; and a handle that another thread is giving back."""
    client.full(N, 1, "<i4", memory="legacy").close()
    with suspended(client):
        assert checkpoint() == 0
    large = client.full(100 * MIB, 1, "|u1")
    softcuda("reset")
    softcuda("fail cuMemRelease@1=delay:200000")
    large.close()
    wait_until(lambda: softcuda("calls cuMemRelease") != "0\n")
    with suspended(client):
        assert checkpoint() == 0
    softcuda("clear")


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemHostUnregister"])
def test_after_a_failure_it_is_as_before(client, arrays, call):
    there = [a.ptr for a in arrays]
    for n in 1, 2, 3:
        softcuda(f"fail {call}@{n}=CUDA_ERROR_UNKNOWN")
        with contextlib.suppress(caid.DriverError):
            client.suspend()
            client.resume()
        softcuda("clear")
        assert [a.ptr for a in arrays] == there and values(arrays) == [{0}, {1}, {2}]


def test_after_two_failures_it_is_suspended(client, arrays):
    """The second one: that it cannot be as before."""
    there = [a.ptr for a in arrays]
    softcuda("fail cuMemHostUnregister@1=CUDA_ERROR_UNKNOWN,cuMemMap@1=CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(caid.DriverError):
        client.suspend()
    softcuda("clear")
    with pytest.raises(caid.NotReadyError, match="suspended"):
        client.open("device")
    assert client.resume() == []
    assert [a.ptr for a in arrays] == there and values(arrays) == [{0}, {1}, {2}]


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess", "cuMemHostRegister", "cuMemImportFromShareableHandle"])
def test_a_resume_that_fails_is_made_again(client, arrays, call):
    there = [a.ptr for a in arrays]
    client.suspend()
    softcuda(f"fail {call}@1=CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(caid.OutOfMemoryError):
        client.resume()
    softcuda("clear")
    with pytest.raises(caid.NotReadyError, match="suspended"):
        client.open("device")
    client.resume()
    assert [a.ptr for a in arrays] == there and values(arrays) == [{0}, {1}, {2}]


def test_a_client_that_is_closed_or_whose_process_ends_leaves_nothing(client, daemon, child):
    before = n_leases(client)
    with daemon.connect() as c:
        a = c.full(N, 1, "<i4")
        c.suspend()
    a.close()
    killed = child("""
    c = caid.connect()
    a = c.full(1 << 20, 1, "<i4")
    c.suspend()
    step(1)
    """)
    killed.expect(1)
    killed.process.kill()
    wait_until(lambda: n_leases(client) == before)


def test_a_child_of_fork_has_none_of_it(client, arrays):
    with suspended(client):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                try:
                    client.resume()
                except caid.ForkedError:
                    os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
    assert values(arrays) == [{0}, {1}, {2}]


def test_the_daemon_may_die_meanwhile(tmp_path):
    restarts = Restarts(tmp_path)
    with contextlib.closing(restarts), restarts.connect() as c, made(c, "a", 4) as a:
        there = a.ptr
        c.suspend()
        restarts.restart()
        assert c.resume() == [] and a.ptr == there and values([a]) == [{4}]
        with a.write(c.stream()) as b:
            b.fill(5)
        assert values([a]) == [{5}]
        c.suspend()
        restarts.end()
        thread = threading.Thread(target=c.resume)
        thread.start()
        restarts.start()
        thread.join()
        assert values([a]) == [{5}]
        c.unlink("a")


def test_without_what_the_daemon_kept_it_stays_suspended(daemon):
    with caid.LocalDaemon() as d, d.connect() as c:
        a = c.full(N, 4, "<i4")
        c.suspend()
        d.stop()
        with pytest.raises(caid.DisconnectedError):
            c.resume()
        with refuses(caid.ClosedError, match="unmapped"):
            a.ptr  # noqa: B018
