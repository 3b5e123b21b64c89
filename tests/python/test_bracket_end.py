# SPDX-License-Identifier: Apache-2.0
"""Brackets that do not end as they should: by mistake, by Ctrl-C, by the death of a process."""

import gc
import os
import signal
import threading

import pytest
from brackets import begins, contents, ends, entry, figures, filled
from conftest import PATIENCE_S, forked, in_thread, is_asleep, n_leases, wait_until

import caid
from caid._handoff import _pending


# --- what is not whole ----------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, caid.NotFoundError])
def test_a_block_that_is_left_by_an_exception_abandons_its_writes(client, shared, error):
    a, b = shared
    with pytest.raises(error, match="the block's"), client.bracket(write=[a]):
        raise error("the block's")
    assert figures(client) == (0, 0, 0, True)
    assert [e.abandoned for e in client.list()] == [True]
    for bracket in (a.read(), b.read(1), b.read(timeout=0)):
        with pytest.raises(caid.AbandonedError) as caught:
            bracket.begin()
        assert caught.value.code == caid.ErrorCode.ABANDONED
    with pytest.raises(caid.AbandonedError):
        a.publish("another name")
    with b.write():
        assert figures(client) == (0, 1, 0, True)
    wait_until(lambda: figures(client) == (0, 0, 0, False))
    with a.read(timeout=0):
        pass


def test_a_read_that_is_left_by_an_exception_abandons_nothing(client, shared):
    a, _ = shared
    with pytest.raises(KeyError), a.read(1):
        raise KeyError
    with client.create("second", 4) as c:
        with pytest.raises(KeyError), client.bracket(read=[a], write=[c]):
            raise KeyError
        assert not entry(client).abandoned and entry(client, "second").abandoned
        with c.write(), a.write():
            pass
        assert not entry(client, "second").abandoned
    client.unlink("second")


def test_one_that_is_never_ended_is_told_of(client, shared):
    a, b = shared
    bracket = a.write()
    bracket.begin()
    with pytest.warns(ResourceWarning, match=r"unended <caid.Bracket write=\['shared'\] open>"):
        del bracket
        gc.collect()
    assert figures(client) == (0, 0, 0, True)
    bracket = b.read()
    with pytest.raises(caid.AbandonedError):
        bracket.begin()
    del bracket


def test_closing_the_client_abandons_what_it_writes(daemon, client):
    c = daemon.connect()
    with client.create("shared", 4) as kept:
        a = c.open("shared", "rw")
        bracket = a.write()
        with pytest.raises(caid.ClosedError, match="closed"), bracket:
            c.close()
            assert bracket.is_open
        assert not bracket.is_open
        wait_until(lambda: entry(client).abandoned)  # said on another connection than asked
        kept.discard()
        with pytest.raises(caid.ClosedError):
            bracket.check()
    a.close()


def test_closing_the_client_hides_no_exception(daemon, client):
    with client.create("shared", 4):
        c = daemon.connect()
        with c.open("shared", "rw") as a, pytest.raises(KeyError, match="the block's"), a.write():
            c.close()
            raise KeyError("the block's")


def test_closing_the_array_in_the_block(client, shared):
    """The bracket has a share of the lease until it ends."""
    before = n_leases(client)
    a = client.open("shared", "rw")
    with a.write() as v:
        a.close()
        v.copy_from_host(filled(3))
        v.close()
        assert figures(client) == (0, 1, 0, False)
    assert figures(client) == (0, 0, 0, False) and n_leases(client) == before
    assert contents(shared[1]) == filled(3)


def test_closing_the_stream_in_the_block(client, shared, slow):
    a, b = shared
    s = client.stream()
    with a.write(s) as v:
        v.copy_from_host(filled(4), stream=s)
        s.close()
    assert s.closed
    with b.read() as v:
        assert contents(v) == filled(4)
    with pytest.raises(caid.ClosedError, match="the stream is closed"):
        a.read(s).begin()
    assert figures(client) == (0, 0, 0, False)


def test_a_stream_that_was_closed_in_the_block_is_waited_for(client, shared):
    """It is there until the bracket ends."""
    a, _ = shared
    gate = threading.Event()
    s = client.stream()
    with a.write(s) as v:
        s.add_callback(lambda *_: gate.wait(PATIENCE_S))
        v.copy_from_host(filled(4), stream=s)
        s.close()
        assert v.__cuda_array_interface__["stream"] == s._number
        thread, ended = in_thread(v.synchronize)
        thread.join(0.05)
        was_waiting = not ended
        gate.set()
        thread.join(PATIENCE_S)
        assert was_waiting and ended == [None] and contents(v) == filled(4)
    assert v.__cuda_array_interface__["stream"] != s._number
    v.synchronize()


BETWEEN = {"_order": caid.Bracket, "note": _pending}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at", BETWEEN)
@pytest.mark.parametrize("how", ["end", "abandon", "an exception"])
def test_whatever_comes_in_between_the_bracket_is_abandoned(
    client, shared, monkeypatch, error, at, how
):
    a, _ = shared

    def fail(*_):
        raise error("in between")

    with client.stream() as s:
        bracket = a.write(s)
        if how == "an exception":  # which goes on
            with pytest.raises(KeyError, match="the block's"), bracket:
                monkeypatch.setattr(BETWEEN[at], at, fail)
                raise KeyError("the block's")
        else:
            bracket.begin()
            monkeypatch.setattr(BETWEEN[at], at, fail)
            with pytest.raises(error, match="in between"):
                getattr(bracket, how)()
        assert figures(client) == (0, 0, 0, True) and not bracket.is_open
        with pytest.raises(caid.InvalidError, match="already ended"):
            bracket.abandon()


def test_closing_the_client_ends_a_begin_of_another_thread(daemon, client, shared):
    a, _ = shared
    c = daemon.connect()
    b = c.open("shared", "rw")
    with a.write():
        thread, ended = in_thread(b.write().begin)
        wait_until(lambda: figures(client)[2] == 1)
        c.close()
        thread.join(PATIENCE_S)
        assert isinstance(ended[0], (caid.CancelledError, caid.ClosedError)), ended
        wait_until(lambda: figures(client) == (0, 1, 0, False))
    b.close()


# --- other processes that wait, hang and die ------------------------------------------------

WRITER = """
import time
with caid.connect(name="writer") as c, c.stream() as s, c.open("shared", "rw") as a:
    bracket = a.write(s)
    v = bracket.begin()
    step("begun")
    v.copy_from_host(b"\\7\\0\\0\\0" * 1000, stream=s)
    bracket.end()
    step("ended")
    s.synchronize()
    step("done")
"""


def test_one_that_does_not_end_is_seen(child, client, shared):
    a, _ = shared
    c = child(WRITER)
    c.expect("begun")
    assert figures(client) == (0, 1, 0, False)
    [holder] = [h for h in client.show("shared").holders if h.pid == c.pid]
    assert (holder.client, holder.writing, holder.reading, holder.waiting) == ("writer", 1, 0, 0)
    with pytest.raises(caid.TimedOutError):
        a.read(timeout=0.01).begin()
    reader = begins(a.read())
    wait_until(lambda: figures(client)[2] == 1)
    [holder] = [h for h in client.show("shared").holders if h.pid == os.getpid() and h.waiting]
    assert (holder.reading, holder.writing, holder.waiting) == (0, 0, 1)
    c.go()
    c.expect("ended")
    assert reader.begun.wait(PATIENCE_S)
    ends(reader)
    c.kill()


@pytest.fixture
def writer(child, shared):
    """Its bracket has ended, the work in it is to take half a minute."""
    c = child(WRITER, CAID_SOFTCUDA_DELAY_US="30000000")
    c.expect("begun")
    c.go()
    c.expect("ended")
    return c


def test_a_writer_that_dies_before_its_work_is_done(writer, client, shared, memops):
    """Whose stream waited is let go, and told: at the end of the bracket, by check(), by
    synchronize()."""
    a, b = shared
    with client.stream() as s:
        bracket = a.read(s)
        with pytest.raises(caid.AbandonedError), bracket:
            bracket.check()
            assert not s.query()
            writer.kill()
            wait_until(s.query)
            with pytest.raises(caid.AbandonedError):
                bracket.check()
        with pytest.raises(caid.AbandonedError):
            bracket.check()
        with pytest.raises(caid.AbandonedError):
            s.synchronize()
        s.synchronize()
        with pytest.raises(caid.AbandonedError):
            b.read(s).begin()
        with b.write(s):  # who writes does not read
            pass
        with a.read(s):
            pass
        s.synchronize()


def test_the_stream_is_told_once_in_another_context_too(writer, client, shared, memops, elsewhere):
    """What this process does at the bracket's end does not take the news from it."""
    a, _ = shared
    s = caid.Stream.from_handle(elsewhere.number, client)
    with pytest.raises(caid.AbandonedError), a.read(s):
        writer.kill()
        wait_until(s.query)
    with pytest.raises(caid.AbandonedError):
        s.synchronize()
    s.synchronize()
    a.discard()


def test_the_end_hides_no_exception_of_the_block(writer, client, shared, memops):
    a, _ = shared
    with client.stream() as s:
        with pytest.raises(KeyError, match="the block's"), a.read(s):
            writer.kill()
            wait_until(s.query)
            raise KeyError("the block's")
        with pytest.raises(caid.AbandonedError):
            s.synchronize()
    a.discard()


@pytest.mark.parametrize("stream", ["None", "s"])
def test_ctrl_c_gives_the_bracket_up(child, client, shared, stream):
    a, _ = shared
    with a.write():
        c = child(
            f"""
            with caid.connect() as c, c.stream() as s, c.open("shared", "rw") as a:
                print("up", flush=True)
                bracket = a.write({stream})
                try:
                    bracket.begin()
                except KeyboardInterrupt:
                    assert not bracket.is_open
                    step("given up")
                    bracket.begin()
                    bracket.end()
                    sys.exit(7)
            """
        )
        c.expect("up")
        wait_until(lambda: figures(client)[2] == 1 and is_asleep(str(c.pid)))
        os.kill(c.pid, signal.SIGINT)
        c.expect("given up")
        wait_until(lambda: figures(client) == (0, 1, 0, False))
    c.go()
    assert c.finish()[0] == 7


EXITS = {
    "a bracket of the host is open": "a.write().begin()",
    "a bracket of a stream is open": "keep = a.write(s); keep.begin()",
    "a thread waits": """
import threading
c2 = caid.connect()
b = c2.open("shared", "rw")
keep = a.write(s)
keep.begin()
threading.Thread(target=b.write().begin, daemon=True).start()
""",
    "a block is left": "with a.write(s): sys.exit(0)",
}


@pytest.mark.parametrize("what", EXITS.values(), ids=EXITS.keys())
def test_the_interpreter_exits_cleanly(child, client, shared, soft, what):
    """And what it was writing is abandoned."""
    code = "import warnings\nwarnings.simplefilter('ignore')\n"
    code += "c = caid.connect()\ns = c.stream()\na = c.open('shared', 'rw')\n"
    assert child(code + what).finish() == (0, "")
    wait_until(lambda: figures(client) == (0, 0, 0, True))


def test_a_forked_child_leaves_brackets_alone(client, shared):
    a, b = shared
    with a.write() as v:
        bracket = b.read()
        forked(bracket.begin, lambda: a.write().begin(), a.discard, work=lambda: (v.close(), gc.collect()))
        assert figures(client) == (0, 1, 0, False)
    assert figures(client) == (0, 0, 0, False)
