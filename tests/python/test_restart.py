# SPDX-License-Identifier: Apache-2.0
"""What outlives the daemon: its death is seen by who was connected, and by nobody else."""

import contextlib
import gc
import os
import pathlib
import pickle
import queue
import signal
import socket
import struct
import subprocess
import tempfile
import textwrap
import threading
import time
import warnings
import weakref

from multiprocessing.reduction import ForkingPickler

import hypothesis
import hypothesis.stateful as stateful
import numpy
import pytest
from conftest import PATIENCE_S, Child, at_last, in_a_thread, in_thread, wait_until
from hypothesis import strategies as st
from restarts import Deaf, Restarts
from uids import taking

import caid
from caid._session import _daemon, _default


@pytest.fixture
def restarts(tmp_path):
    with contextlib.closing(Restarts(tmp_path)) as r:
        yield r


def filled(client, value, n=4, **options):
    a = client.empty(n, "<i4", **options)
    a.copy_from_host(numpy.full(n, value, "<i4"))
    return a


def read(array):
    (value,) = set(array.copy_to_host().tolist())
    return value


def publish(client, name, value, n=4, **options):
    with filled(client, value, n) as a:
        return a.publish(name, **options)


def value_of(client, name):
    with client.open(name) as a:
        return read(a)


def figures(client):
    """Of what has a reason to last, when nobody has anything open."""
    client.flush()
    status, memory = client.status(), client.memory_info()
    return status.arrays, status.names, status.blocks, status.leases, memory.used, memory.allocated


# --- what is promised, by a model --------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c/d", "ä" * 40, "s/x"])
SETS = st.sampled_from(["s/", "t/"])
METADATA = st.sampled_from([None, "", {"step": 1}, "x" * 4000])
SIZES = st.sampled_from([1, 4, 300_000])


class Restarting(stateful.RuleBasedStateMachine):
    """Names, each of a dict of what it shows; a set's members under the whole names."""

    restarts = None

    def __init__(self):
        super().__init__()
        self.client = self.restarts.connect()
        self.names, self.value = {}, 0
        self.kept = []  # arrays without a name, and what each shows
        self.floor = {}  # generations of a name that is gone

    def next(self):
        self.value += 1
        return self.value

    def set_of(self, name):
        return next((s for s, what in self.names.items() if s.endswith("/") and name.startswith(s)), None)

    def put(self, name, generation, **what):
        assert generation > self.floor.get(name, 0)
        self.floor[name] = generation
        self.names[name] = {
            **dict(metadata=None, ttl=False, companion=None, abandoned=False, members=None),
            **what,
            "generation": generation,
        }

    @stateful.rule(name=NAMES, metadata=METADATA, n=SIZES, companion=st.booleans(), ttl=st.booleans())
    def publish(self, name, metadata, n, companion, ttl):
        if self.set_of(name):
            return
        what = dict(value=self.next(), metadata=metadata, ttl=ttl)
        with contextlib.ExitStack() as open_:
            a, beside = open_.enter_context(filled(self.client, what["value"], n)), None
            if companion:
                what["companion"] = self.next()
                beside = open_.enter_context(filled(self.client, what["companion"]))
            generation = a.publish(
                name, metadata=metadata, companion=beside, ttl=1000.0 if ttl else None
            )
        self.put(name, generation, **what)

    @stateful.rule(name=NAMES, kind=st.sampled_from(["device", "pinned", "mapped"]), metadata=METADATA)
    def create(self, name, kind, metadata):
        if name in self.names or self.set_of(name):
            return
        value = self.next()
        with self.client.create(name, 4, "<i4", memory=kind, metadata=metadata) as a:
            a.copy_from_host(numpy.full(4, value, "<i4"))
            self.put(name, a.generation, value=value, metadata=metadata)

    @stateful.rule(name=SETS, keys=st.sets(st.sampled_from(["x", "y", "ä"]), min_size=1), metadata=METADATA)
    def publish_many(self, name, keys, metadata):
        if any(n.startswith(name) and n != name for n in self.names):
            return
        values = {key: self.next() for key in keys}
        with contextlib.ExitStack() as open_:
            arrays = {k: open_.enter_context(filled(self.client, v)) for k, v in values.items()}
            generation = self.client.publish_many(name, arrays, metadata=metadata)
        self.put(name, generation, members=values, metadata=metadata)

    @stateful.rule(name=NAMES, n=st.integers(1, 3))
    def publish_parts(self, name, n):
        """Several in one memory; the last ones of the name and of another."""
        if self.set_of(name):
            return
        with self.client.arena() as arena:
            for _ in range(n):
                value = self.next()
                with arena.allocate(16) as x:
                    self.client.as_array(x).copy_from_host(numpy.full(4, value, "<i4").view("u1"))
                    self.put(name, arena.publish(name, x, shape=4, dtype="<i4"), value=value)

    @stateful.rule(old=NAMES | SETS, new=NAMES | SETS)
    def rename(self, old, new):
        is_set = old.endswith("/")
        if old not in self.names or old == new or is_set != new.endswith("/") or self.set_of(new) not in (None, new):
            return
        if is_set and any(n.startswith(new) and n != new for n in self.names):
            return
        what = self.names.pop(old)
        what.pop("generation")
        self.put(new, self.client.rename(old, new, replace=True), **what)

    @stateful.rule(name=NAMES | SETS)
    def unlink(self, name):
        if self.set_of(name) not in (None, name):
            return
        assert self.client.unlink(name, missing_ok=True) == (self.names.pop(name, None) is not None)

    @stateful.rule(name=NAMES, ttl=st.booleans())
    def expire(self, name, ttl):
        if name in self.names:
            self.client.expire(name, 1000.0 if ttl else None)
            self.names[name]["ttl"] = ttl

    @stateful.rule(name=NAMES, abandons=st.booleans())
    def write(self, name, abandons):
        what = self.names.get(name)
        if not what:
            return
        with self.client.open(name, "rw") as a:
            bracket = a.write()
            view = bracket.begin()
            what["value"] = self.next()
            view.copy_from_host(numpy.full(view.shape, what["value"], "<i4"))
            bracket.abandon() if abandons else bracket.end()
        what["abandoned"] = abandons

    @stateful.rule(n=SIZES)
    def keep(self, n):
        self.kept.append((filled(self.client, self.next(), n), self.value))

    def give_up(self):
        while self.kept:
            self.kept.pop()[0].close()

    @stateful.rule(signum=st.sampled_from([signal.SIGKILL, signal.SIGTERM]), writes=st.booleans())
    def restart(self, signum, writes):
        """The client goes on, also amid a write."""
        before, bracket = figures(self.client), None
        if writes and self.kept:
            a, _ = self.kept.pop()
            bracket, value = a.write(), self.next()
            bracket.begin().copy_from_host(numpy.full(a.shape, value, "<i4"))
        self.restarts.restart(signum)
        if bracket:
            bracket.end()
            with a.read():
                self.kept.append((a, value))
        wait_until(lambda: figures(self.client) == before)
        self.check()

    @stateful.rule(signum=st.sampled_from([signal.SIGKILL, signal.SIGTERM]))
    def restart_alone(self, signum):
        """Nobody is connected meanwhile."""
        self.give_up()
        before = figures(self.client)
        self.client.close()
        with self.restarts.connect() as c:  # who has closed is waited for no more when that is known
            wait_until(lambda: c.status().connections == 1)
        self.restarts.restart(signum)
        self.client = self.restarts.connect()
        wait_until(lambda: figures(self.client) == before)
        self.check()

    def check(self):
        entries = {e.name: e for e in self.client.list()}
        members = {s + k: v for s, what in self.names.items() for k, v in (what["members"] or {}).items()}
        assert entries.keys() == self.names.keys() | members.keys()
        for name, what in self.names.items():
            self.check_name(entries[name], what)
        for name, value in members.items():
            assert value_of(self.client, name) == value
        assert [read(a) for a, _ in self.kept] == [value for _, value in self.kept]

    def check_name(self, entry, what):
        assert entry.generation == what["generation"]
        assert (entry.abandoned, 0 < entry.ttl_ns <= 1e12) == (what["abandoned"], what["ttl"])
        assert self.client.show(entry.name).metadata == what["metadata"]
        if what["members"]:
            assert entry.members == len(what["members"])
            with self.client.open_set(entry.name) as s:
                assert {k: read(a) for k, a in s.items()} == what["members"]
            return
        with self.client.open(entry.name) as a:
            assert what["abandoned"] or read(a) == what["value"]
            if what["companion"]:
                with a.open_companion() as companion:
                    assert read(companion) == what["companion"]
            else:
                with pytest.raises(caid.NotFoundError):
                    a.open_companion()

    def teardown(self):
        self.check()
        self.give_up()
        for name in self.names:
            self.client.unlink(name)
        wait_until(lambda: figures(self.client)[:4] == (0, 0, 0, 0))
        self.client.close()
        wait_until(lambda: self.restarts.kept_memory() == [])


def test_what_was_acknowledged_is_there(restarts):
    Restarting.restarts = restarts
    stateful.run_state_machine_as_test(
        Restarting, settings=hypothesis.settings(max_examples=20, stateful_step_count=30)
    )


# --- processes that were connected --------------------------------------------------------------


@pytest.fixture
def child(restarts):
    """child(code, *args): a process that is there for the rest of the test."""
    children = []

    def start(code, *args, **options):
        children.append(Child("client = caid.Client()\n" + textwrap.dedent(code), restarts.env, *args, **options))
        return children[-1]

    yield start
    for c in children:
        c.kill()


HOLDS = """
a = client.open("x")
step("open")
step(f"{set(a.copy_to_host().tolist())} {a.copy_to_host().size}")
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("n", [250, 1 << 20])
def test_what_a_process_has_mapped_is_its_own_until_it_exits(restarts, child, n, signum):
    """Its array has lost the name, so that nobody else knows of it."""
    with restarts.connect() as c:
        publish(c, "x", 7, n)
        publish(c, "stays", 1, n)
        place = c.show("x")
        holder = child(HOLDS)
        holder.expect("open")
        publish(c, "x", 8, n)
    with restarts.connect() as c:  # the daemon has seen that the one before is closed: it holds nothing
        wait_until(lambda: c.status().connections == 2)
    restarts.restart(signum)
    with restarts.connect() as c:
        for i in range(10):
            publish(c, f"new{i}", 9, n)
        assert (value_of(c, "x"), value_of(c, "stays")) == (8, 1)
        holder.go()
        holder.expect(f"{{7}} {n}")
        c.flush()
        used = c.memory_info().used
        holder.kill()
        if n > 1000:
            wait_until(lambda: (c.flush(), c.memory_info().used)[1] == used - n * 4)
        else:  # the block stays
            wait_until(lambda: place_again(c, place, n))


def place_again(client, place, n):
    publish(client, "again", 9, n)
    at = client.show("again")
    return (at.block, at.offset) == (place.block, place.offset)


WRITES = """
import threading
from conftest import Held
a = client.open("x", "rw")
if sys.argv[1] == "opens":
    bracket = a.write()
    bracket.begin()
    reader = client.open("y").read()
    reader.begin()
    step("open")
s = client.stream()
held = Held(s)
with a.write(s) as v:
    v.copy_from_host(bytes([2, 0, 0, 0] * 4), stream=s)
step("enqueued")
held.gate.set()
s.synchronize()
step("done")
"""


@pytest.mark.parametrize("lives", [True, False])
def test_a_bracket_that_is_open(restarts, child, lives):
    """Who writes goes on: others wait for the end. Who has died has abandoned it."""
    with restarts.connect() as c:
        publish(c, "x", 1)
        publish(c, "y", 1)
    writer = child(WRITES, "opens")
    writer.expect("open")
    restarts.end()
    if not lives:
        writer.kill()
    restarts.start()
    with restarts.connect() as c, c.open("x", "rw") as a, c.open("y", "rw") as b:
        if lives:
            for other in (a.read(timeout=0.2), a.write(timeout=0.2), b.write(timeout=0.2)):
                with pytest.raises(caid.TimedOutError):
                    other.begin()
            with b.read(timeout=PATIENCE_S):
                pass
            writer.kill()
        wait_until(lambda: [(e.name, e.abandoned) for e in c.list()] == [("x", True), ("y", False)])
        with a.write() as v:
            v.copy_from_host(numpy.full(4, 3, "<i4"))
        assert value_of(c, "x") == 3
    restarts.restart()
    with restarts.connect() as c:
        assert not c.show("x").entry.abandoned


WRITES_A_SLICE = """
n = int(sys.argv[1])
a = client.open("x", "rw")
s = client.stream()
with a[4 * n : 4 * n + 4].write(s) as v:
    step("open")
    v.copy_from_host(bytes([n + 2, 0, 0, 0] * 4), stream=s)
s.synchronize()
step("ended")
"""


@pytest.mark.parametrize("all_live", [True, False])
def test_several_writers_of_slices(restarts, child, all_live):
    """Each goes on with its own: nobody reads before all have ended. Where one has died, all is abandoned."""
    with restarts.connect() as c:
        publish(c, "x", 1, 16)
    writers = [child(WRITES_A_SLICE, n) for n in range(4)]
    for writer in writers:
        writer.expect("open")
    restarts.end()
    if not all_live:
        writers[3].kill()
    restarts.start()
    with restarts.connect() as c, c.open("x", "rw") as a:
        wait_until(lambda: c.show("x").entry.writers == 3 + all_live)
        for writer in writers[: 3 + all_live]:
            with pytest.raises(caid.TimedOutError):
                a.read(timeout=0).begin()
            writer.go()
            writer.expect("ended")
        if all_live:
            with a.read(timeout=PATIENCE_S) as v:
                assert v.copy_to_host().tolist() == [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4
        else:
            with pytest.raises(caid.AbandonedError):
                a.read(timeout=PATIENCE_S).begin()


@pytest.fixture
def enqueued(restarts, child):
    """A process whose stream is to write "x" when the daemon is killed, and a client of the next one."""
    with restarts.connect() as c:
        publish(c, "x", 1)
    writer = child(WRITES, "ends")
    writer.expect("enqueued")
    restarts.restart()
    with restarts.connect() as c, c.open("x", "rw") as a:
        for other in (a.read(timeout=0.2), a.write(timeout=0.2)):
            with pytest.raises(caid.TimedOutError):
                other.begin()
        yield writer, c, a


def test_work_on_its_way_is_waited_for(enqueued):
    writer, c, a = enqueued
    writer.go()
    writer.expect("done")
    with a.read() as v:
        assert read(v) == 2
    with a.write(timeout=PATIENCE_S):
        assert not c.show("x").entry.abandoned


CLOSES = """
from conftest import Held
a = client.open("x", "rw")
s = client.stream()
held = Held(s)
with a.write(s) as v:
    v.copy_from_host(bytes([2, 0, 0, 0] * 4), stream=s)
del v
a.close()
step("closed")
held.gate.set()
step("let go")
"""


def test_what_is_closed_is_kept_until_its_work_is_done(restarts, child):
    """The daemon hears of a close, and that a block is forgotten, when the GPU is done with them, and not before a
    restart that comes meanwhile."""
    with restarts.connect() as c:
        publish(c, "x", 1)
    writer = child(CLOSES)
    writer.expect("closed")
    with restarts.connect() as c:
        c.unlink("x")
    restarts.restart()
    with restarts.connect() as c:
        for _ in range(3):
            c.flush()
            assert c.status().arrays == 1
            time.sleep(0.1)
        writer.go()
        writer.expect("let go")
        wait_until(lambda: c.status().arrays == 0)


@pytest.mark.parametrize("again", [False, True])
def test_work_whose_process_is_killed_is_abandoned(restarts, enqueued, again):
    writer, c, a = enqueued
    if again:
        restarts.restart()
    writer.kill()
    wait_until(lambda: c.show("x").entry.abandoned)
    with pytest.raises(caid.AbandonedError):
        a.read().begin()
    with a.write(timeout=PATIENCE_S):
        pass


def test_parts_of_an_arena(restarts):
    """Their place is used again when nobody reaches them any more, also where that came to pass meanwhile."""
    with restarts.connect() as c, restarts.connect() as other, c.arena() as arena:
        for name in ("x", "y", "z"):
            with arena.allocate(4096) as x:
                c.as_array(x).fill(7)
                arena.publish(name, x, shape=4096, dtype="u1")
        other.unlink("x")
        restarts.restart()
        wait_until(lambda: arena.info.published == 2)
        with other.open("y") as y:
            other.unlink("y")
            restarts.restart()
            assert (read(y), value_of(other, "z")) == (7, 7)
            assert arena.info.published == 2
        wait_until(lambda: arena.info.published == 1)
        arena.allocate(4096).close()


def test_a_start_is_no_turn(restarts):
    """Nobody waits for a turn before the daemon serves; what comes back then does so in many."""
    with restarts.connect() as c:
        for i in range(30):
            c.create(f"x{i}", 1000, "<f4", exclusive=True).close()
    restarts.end()
    restarts.start("env", "CAID_SOFTCUDA_FAIL=cuInit=delay:3000000,cuMemImportFromShareableHandle=delay:100000")
    with restarts.connect() as c:
        assert 0 < c.status().turn_wall_ns < 3_000_000_000


def test_nobody_waits_for_what_another_one_has():
    """Who connects for the first time while it comes back, and makes something."""
    them = taking(SOMEBODY, SOMEBODY)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        r = stack.enter_context(contextlib.closing(Restarts(folder)))
        with r.connect() as c:
            for i in range(30):
                c.create(f"x{i}", 1000, "<f4", exclusive=True).close()
        r.end()
        code = "step('up')\nwith caid.Client() as client:\n    client.create('y', 10, '<f4').close()\n    print('made')"
        other = Child(code, r.env, **them)
        stack.callback(other.kill)
        other.expect("up")
        r.start("env", "CAID_SOFTCUDA_FAIL=cuMemImportFromShareableHandle=delay:100000")
        other.go()
        other.expect("made")
        assert "are back" not in r.log()
        with r.connect() as c:
            assert c.status().arrays == 31
        assert "are back" in r.log()


def test_all_is_back_also_where_nobody_asks(restarts):
    with restarts.connect() as c:
        c.create("x", 1000, "<f4").close()
    restarts.end()
    restarts.launch()
    wait_until(lambda: "are back" in restarts.log())


def test_a_member_has_one_record(restarts):
    """Whatever sets an array is put into, and under how many keys."""
    text = "x" * 4000
    with restarts.connect() as c, c.create("x", 10, "<f4", metadata=text) as x:
        before = c.status().journal_bytes
        c.publish_many("s/", {f"{i}": x for i in range(25)})
        assert c.status().journal_bytes - before < 25 * len(text)
        restarts.restart()
        assert c.show("s/9").metadata == text


def test_a_timeline_keeps_its_name(restarts):
    with restarts.connect() as c, restarts.connect() as other:
        with c.timeline("t") as t, other.open_timeline("t") as before:
            t.signal(None, 1)
            restarts.restart()
            t.signal(None, 2)
            with other.open_timeline("t") as after:
                for u in (before, after):
                    u.wait(None, 2, timeout=PATIENCE_S)
        wait_until(lambda: not other.timelines())


OPENS_Y = """
import signal, os
a = client.open("x", "rw")
step("open")
step(set(a.copy_to_host().tolist()))
with a.write() as v:
    v.fill(3)
a.publish("y")
step("published")
"""


def test_a_name_that_is_taken_before_its_reader_is_back(restarts, child):
    """What he has is his, though nobody else knows of it."""
    with restarts.connect() as c:
        publish(c, "x", 1)
        reader = child(OPENS_Y)
        reader.expect("open")
        os.kill(reader.pid, signal.SIGSTOP)
        restarts.restart()
        publish(c, "x", 2)
        for value in range(3, 100):
            publish(c, "z", value)
        os.kill(reader.pid, signal.SIGCONT)
        reader.go()
        reader.expect({1})
        reader.go()
        reader.expect("published")
        assert [value_of(c, name) for name in "xyz"] == [2, 3, 99]


SENDS = """
import numpy
from multiprocessing.reduction import ForkingPickler
for value in range(1, 4):
    with client.empty(4, "<i4") as a:
        a.copy_from_host(numpy.full(4, value, "<i4"))
        message = bytes(ForkingPickler.dumps(a)).hex()
    step(message)
client.ping()
step("back")
"""


def test_what_was_sent_arrives(restarts, child):
    """Before its sender is back, after that, and when the sender has exited no more."""
    sender, messages = child(SENDS), []
    for _ in range(3):
        messages.append(bytes.fromhex(sender.process.stdout.readline()))
        if len(messages) < 3:
            sender.go()
    with _default.client_of(restarts.address) as here:
        os.kill(sender.pid, signal.SIGSTOP)
        restarts.restart()
        assert [holder.sent for a in here.unnamed() for holder in a.holders] == [True] * 3
        with pickle.loads(messages[0]) as a:
            assert read(a) == 1
            os.kill(sender.pid, signal.SIGCONT)
            sender.go()
            sender.expect("back")
            restarts.restart()
            with pickle.loads(messages[1]) as b:
                assert (read(a), read(b)) == (1, 2)
        sender.kill()
        restarts.restart()
        with pickle.loads(messages[2]) as c:
            assert read(c) == 3
        for message in messages:
            with pytest.raises(caid.NotFoundError, match="taken already, or its sender has withdrawn it"):
                pickle.loads(message).synchronize()


def test_all_come_back_where_no_more_may_connect(tmp_path):
    with contextlib.ExitStack() as stack:
        restarts = stack.enter_context(contextlib.closing(Restarts(tmp_path, "[limits]\nconnections = 3\n")))
        clients = [stack.enter_context(restarts.connect()) for _ in range(3)]
        arrays = [stack.enter_context(filled(c, i)) for i, c in enumerate(clients)]
        restarts.restart()
        for i, (c, a) in enumerate(zip(clients, arrays)):
            with a.write() as v:
                v.fill(i + 1)
            assert (read(a), c.status().connections) == (i + 1, 3)
        with pytest.raises(caid.LimitError, match="limit of 3 connections"):
            restarts.connect()


@pytest.fixture
def deaf(restarts):
    with contextlib.closing(Deaf(restarts)) as d:
        yield d


def test_a_take_that_was_not_answered_is_done_once(restarts, deaf):
    with restarts.connect() as c, caid.Client(deaf.address) as sender, _default.client_of(deaf.address):
        with filled(sender, 1) as a:
            message = bytes(ForkingPickler.dumps(a))
        deaf.loses = True
        thread, taken = in_thread(lambda: pickle.loads(message))
        wait_until(lambda: not any(holder.sent for a in c.unnamed() for holder in a.holders))
        restarts.end()
        deaf.loses = False
        restarts.start()
        thread.join()
        with taken[0] as a:
            assert read(a) == 1
            with pytest.raises(caid.NotFoundError):
                pickle.loads(message).synchronize()
        wait_until(lambda: not c.unnamed())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_client_that_is_cut_off_as_it_comes_back(restarts, deaf, n):
    """After its hello; when it has told of what it has; of a bracket, too."""
    with restarts.connect() as c, caid.Client(deaf.address) as one, filled(one, 1) as a, one.create("x", 4, "<i4") as x:
        message = bytes(ForkingPickler.dumps(a))
        with x.write() as v:
            restarts.end()
            deaf.cuts_after = n
            restarts.start()
            wait_until(lambda: not deaf.cuts_after)
            v.fill(2)
        assert (read(a), value_of(c, "x")) == (1, 2)
        with _default.client_of(deaf.address), pickle.loads(message) as b:
            assert read(b) == 1


def test_what_waits_is_answered_at_once(restarts, deaf):
    """More requests than a socket has room for: neither side waits for the other to read."""
    with restarts.connect() as c, caid.Client(deaf.address) as one, filled(one, 1):
        watches = [one.watch("x") for _ in range(1250)]
        deaf.loses = True
        generation = publish(c, "x", 1)
        restarts.end()
        deaf.loses = False
        restarts.start()
        assert {watch.get(PATIENCE_S).generation for watch in watches} == {generation}
        for watch in watches:
            watch.close()
        wait_until(lambda: one.status().watches == 0)


def test_names_that_changed_while_a_client_was_away(restarts, deaf):
    with restarts.connect() as c, caid.Client(deaf.address) as one, filled(one, 1):
        publish(c, "n/a", 1)
        publish(c, "n/b", 1)
        with one.watch(prefix="n/", timeout=PATIENCE_S) as watch:
            assert [next(watch).name, next(watch).name] == ["n/a", "n/b"]
            deaf.loses = True
            restarts.restart()
            c.unlink("n/a")
            generation = publish(c, "n/c", 1)
            deaf.loses = False
            restarts.restart()
            assert {next(watch)[::2], next(watch)[::2]} == {("n/a", 0), ("n/c", generation)}
            generation = publish(c, "n/b", 1)
            assert next(watch)[::2] == ("n/b", generation)


def caught(error, call):
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("error, options", [
    (caid.TimeoutError, {"call_timeout": 0.5}),  # by itself, and comes back
    (caid.DisconnectedError, {"reconnect_timeout": 0.1}),  # for good
])  # fmt: skip
def test_a_create_that_was_given_up_leaves_no_name(restarts, deaf, error, options):
    with restarts.connect() as c, caid.Client(deaf.address, **options) as one:
        publish(c, "other", 1)
        deaf.loses = True
        thread, ended = in_thread(lambda: caught(error, lambda: one.create("x", 4, "<i4")))
        wait_until(lambda: len(c.list()) == 2)
        if error is caid.TimeoutError:
            thread.join()
        restarts.end()
        thread.join()
        assert ended == [None]
        deaf.loses = False
        restarts.start()
        wait_until(lambda: [entry.name for entry in c.list()] == ["other"])


def test_what_is_deferred_stays_so(restarts):
    with restarts.connect() as c, restarts.connect() as other, c.defer_cleanup():
        with c.defer_cleanup():
            restarts.restart()
            wait_until(lambda: [user.deferred for user in other.users()] == [1])
        restarts.restart()
        wait_until(lambda: [user.deferred for user in other.users()] == [1])
    with restarts.connect() as c:
        assert [user.deferred for user in c.users()] == [0]


def test_a_deferral_whose_end_is_answered_late(restarts):
    with restarts.connect() as c, caid.Client(restarts.address, call_timeout=0.2) as one:
        deferral = one.defer_cleanup()
        at_last(deferral.__enter__)
        restarts.process.send_signal(signal.SIGSTOP)
        with pytest.raises(caid.TimeoutError):
            deferral.__exit__(None, None, None)
        restarts.process.send_signal(signal.SIGCONT)
        wait_until(lambda: [user.deferred for user in c.users()] == [0])
        at_last(one.status)
        restarts.restart()
        at_last(one.status)
        assert [user.deferred for user in c.users()] == [0]


def test_who_gives_up_says_so(restarts):
    """Others write what he had open, and he has what he has mapped. Who waits for ever does not."""
    with (
        restarts.connect() as c,
        caid.Client(restarts.address, reconnect_timeout=0.1) as gone,
        caid.Client(restarts.address, reconnect_timeout=float("inf")) as patient,
    ):
        publish(c, "x", 1)
        a = gone.open("x")
        patient.open("x").close()
        restarts.end()
        with pytest.raises(caid.DisconnectedError, match="not come back in 0.1 s"):
            gone.ping()
        restarts.start()
        patient.ping()
        with c.open("x", "rw") as b, caid.Client(restarts.address, reconnect_timeout=0) as never:
            opened = never.open("x")
            restarts.end()
            with pytest.raises(caid.DisconnectedError):
                never.ping()
            restarts.start()
            with b.write(timeout=PATIENCE_S) as v:
                v.fill(2)
            assert read(a) == read(opened) == 2
            a.close()
            opened.close()


def test_who_closes_while_the_daemon_is_away_says_so(restarts):
    with restarts.connect() as c:
        publish(c, "x", 1)
        with restarts.connect() as gone, gone.open("x"):
            restarts.end()
            gone.close()
            restarts.start()
            with c.open("x", "rw") as b, b.write(timeout=PATIENCE_S) as v:
                v.fill(2)
        assert value_of(c, "x") == 2


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_who_comes_back_starts_no_service(restarts, signum):
    """A service manager listens in the place of a daemon that was stopped, and would start one."""
    with restarts.connect() as c, filled(c, 1) as a:
        restarts.end(signum)
        pathlib.Path(restarts.address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(restarts.address)
            sock.listen()
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.accept()
        restarts.start()
        a.publish("a")
        assert value_of(c, "a") == 1


def test_a_drain_that_waits_is_the_next_daemons_too(restarts):
    caidctl = pathlib.Path(_daemon.find_daemon()).resolve().with_name("caidctl")
    with restarts.connect() as c, filled(c, 1):
        drain = subprocess.Popen([caidctl, "-s", restarts.address, "drain"], stderr=subprocess.PIPE)
        with drain, drain.stderr as told:
            assert b"arrays are left" in told.readline()
            restarts.restart(signal.SIGTERM)
            wait_until(lambda: c.status().draining)
            with pytest.raises(caid.ShutdownError, match="no new arrays"):
                c.empty(1)
            c.close()
            assert drain.wait(PATIENCE_S) == 0
    restarts.restart()
    with restarts.connect() as c:
        assert not c.status().draining
        c.empty(1).close()


def test_a_wait_for_a_version_that_is_read_is_the_next_daemons_too(restarts):
    members = (("a", 0, "<i4", None, (10,), None), ("b", 40, "<i4", None, (90,), None))
    with restarts.connect() as publisher, restarts.connect() as reader:
        wholes = [filled(publisher, value, 100) for value in range(2)]
        sets = tuple(publisher._set_create(whole._memory, members) for whole in wholes)
        old, new = (each.publish("s/", None, 0, False, None, 0) for each in sets[:1] * 2)
        a = reader.open("s/a")
        assert sets[1].publish("s/", None, 0, False, None, 0) > new > old
        thread, ended = in_a_thread(lambda: publisher._vacate(sets[:1], (wholes[0]._memory,), 2**64 - 1))
        restarts.restart()
        wait_until(lambda: reader.status().arrays)
        assert read(a) == 0 and not ended
        a.close()
        thread.join(PATIENCE_S)
        assert ended == [0]
        with pytest.raises(caid.StaleError):
            reader.open("s/a", generation=new)
        wholes[0].copy_from_host(numpy.full(100, 7, "<i4"))
        assert sets[0].publish("s/", None, 0, False, None, 0) > new + 1
        assert value_of(reader, "s/b") == 7


# --- the keeper ---------------------------------------------------------------------------------


def has_all(restarts, client):
    status = client.status()
    return len(restarts.kept_memory()) >= status.blocks + status.pages


def test_a_keeper_that_died_and_a_daemon_after_it(restarts):
    """While names come and go."""
    over, published = threading.Event(), {}

    def work():
        with restarts.connect() as c:
            while not over.is_set():
                name = f"n{len(published) % 200}"
                published[name] = publish(c, name, len(published)), len(published)

    thread, ended = in_thread(work)
    with restarts.connect() as c:
        for _ in range(3):
            restarts.end_keeper()
            restarts.start_keeper()
            n = len(published)
            wait_until(lambda n=n: len(published) > n or n == 200)
            wait_until(lambda: has_all(restarts, c))
        over.set()
        thread.join()
        assert ended == [None]
        wait_until(lambda: has_all(restarts, c))
    restarts.restart()
    with restarts.connect() as c:
        assert {e.name: e.generation for e in c.list()} == {k: g for k, (g, _) in published.items()}
        for name, (_, value) in published.items():
            assert value_of(c, name) == value


def test_a_timeline_outlives_a_daemon_then_the_keeper_then_a_daemon(restarts):
    """Its page, which the daemon in the midst has not made, is given to the new keeper."""
    with restarts.connect() as c, restarts.connect() as other, c.timeline("t") as t:
        t.signal(None, 1)
        restarts.restart()
        wait_until(lambda: c.status().restarts == 1)
        restarts.end_keeper()
        restarts.start_keeper()
        wait_until(lambda: c.status().keeper and has_all(restarts, c))
        restarts.restart()
        t.signal(None, 2)
        with other.open_timeline("t") as u:
            u.wait(None, 2, timeout=PATIENCE_S)


def limited(n_bytes):
    """What a file may have: then the journal cannot grow."""
    return "prlimit", f"--fsize={n_bytes}"


def test_a_start_that_fails_leaves_what_it_has_taken_over(restarts):
    """Here for want of memory."""
    with restarts.connect() as c, c.timeline("t") as t:
        publish(c, "x", 1)
        restarts.end()
        kept = sorted(restarts.kept_memory())
        restarts.launch("env", "CAID_SOFTCUDA_FAIL=cuMemImportFromShareableHandle=CUDA_ERROR_OUT_OF_MEMORY")
        assert restarts.ended() == 1
        assert "cannot take over" in restarts.log()
        assert sorted(restarts.kept_memory()) == kept
        restarts.start()
        assert value_of(c, "x") == 1
        t.signal(None, 1)
        t.wait(None, 1, timeout=PATIENCE_S)


def test_both_die(restarts):
    with restarts.connect() as c:
        publish(c, "x", 1)
    restarts.end()
    restarts.end_keeper()
    restarts.start_keeper()
    restarts.start()
    with restarts.connect() as c:
        assert c.list() == []
        assert c.memory_info().used == 0


# --- the journal --------------------------------------------------------------------------------


def journal_of(restarts, pid=None):
    """A file of it, as the daemon left it at the keeper; or the sizes of those of that process."""
    folder = f"/proc/{pid or restarts.keeper.pid}/fd"
    found = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            if "memfd:caid-journal" in os.readlink(f"{folder}/{fd}"):
                found.append(f"{folder}/{fd}")
    if pid:
        return sum(os.stat(path).st_size for path in found)
    (path,) = found
    return open(path, "r+b", buffering=0)


VERSION_AT, COMMITTED_AT, RECORDS_AT = 8, 16, 64  # daemon/core/journal.c


def test_a_journal_of_a_newer_version_is_left(restarts):
    with restarts.connect() as c:
        publish(c, "x", 1)
    restarts.end()
    with journal_of(restarts) as journal:
        (version,) = struct.unpack("=I", os.pread(journal.fileno(), 4, VERSION_AT))
        os.pwrite(journal.fileno(), struct.pack("=I", version + 1), VERSION_AT)
        kept = sorted(restarts.kept_memory())
        restarts.launch()
        assert restarts.ended() == 1
        assert "it was of a newer version" in restarts.log()
        wait_until(lambda: sorted(restarts.kept_memory()) == kept)
        os.pwrite(journal.fileno(), struct.pack("=I", version), VERSION_AT)
    restarts.start()
    with restarts.connect() as c:
        assert value_of(c, "x") == 1


def test_a_journal_that_cannot_grow(restarts):
    """It is none from that moment on, wherever it lies: a daemon that died then would leave what is not
    true any more."""
    restarts.end()
    restarts.start(*limited(4 << 20))
    with restarts.connect() as c, contextlib.ExitStack() as open_:
        for i in range(2000):
            with contextlib.suppress(ValueError):  # another one comes in its place
                journal = open_.enter_context(journal_of(restarts))
            if "the journal cannot grow" in restarts.log():
                break
            publish(c, f"n{i}", i, metadata="x" * 4000)
        assert len(c.list()) == i > 500
        assert journal.read(8) == bytes(8)
    assert "File too large" in restarts.log()
    restarts.restart()
    with restarts.connect() as c:
        assert c.list() == []
    wait_until(lambda: restarts.kept_memory() == [])


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer has a malloc of its own")
def test_each_death_of_a_request_is_told_and_makes_the_next_start_later(tmp_path, monkeypatch):
    """The second time it is the last. (What its client is told: tests/client/test_deadly.c.)"""
    nbytes, deadly = 3333, tmp_path / "deadly"
    deadly.write_bytes(struct.pack("<qq", nbytes, 1000))
    monkeypatch.setenv("DEADLY_MALLOC", str(deadly))
    monkeypatch.setenv("LD_PRELOAD", os.environ["CAID_BUILD_DIR"] + "/tests/fail-malloc.so")
    with contextlib.closing(Restarts(tmp_path)) as restarts, restarts.connect() as c:
        thread, ended = in_thread(lambda: c.create("x", 0, "|u1", metadata="m" * nbytes))
        for ms in 100, 200:
            assert restarts.ended() == -signal.SIGKILL
            restarts.launch()  # which its client may end before anybody else has seen it
            wait_until(lambda: f"waiting {ms} ms" in restarts.log())
        assert restarts.log().count("while it handled a client's request: create") == 2
        thread.join(PATIENCE_S)
        assert [type(e) for e in ended] == [caid.InternalError]


def test_who_is_kicked_is_told_and_does_not_come_back(restarts):
    """Not to a later daemon, either, as who is not does."""
    with restarts.connect() as c:
        (it,) = c.connections()
        with restarts.connect() as other:
            publish(other, "x", 1)
            a = c.open("x", "rw")
            waits, ended = in_thread(lambda: next(iter(c.watch("y"))))
            wait_until(lambda: other.status().watches == 1)
            other.kick(it.conn)
            waits.join(PATIENCE_S)
            assert [type(e) for e in ended] == [caid.KickedError]
            wait_until(lambda: [holder.hung_up for holder in other.show("x").holders] == [True])
            for _ in range(2):
                with pytest.raises(caid.KickedError, match=rf"uid {os.getuid()} has ended this connection \(kick\)"):
                    c.create("z", 1)
                there = {it.hung_up: it for it in other.connections()}
                assert len(there) == 2 and not there[True].former
                with pytest.raises(caid.NotFoundError, match="what it has left waits for its process to exit"):
                    other.kick(there[True].conn)
                restarts.restart()
            a.close()


IS_AWAY = """
a = client.create("x", 1)
step("open")
try:
    client.status()
except caid.KickedError as e:
    step(str(e))
"""


def test_who_is_kicked_while_he_is_away_is_told_when_he_is_back(restarts, child):
    away = child(IS_AWAY)
    away.expect("open")
    os.kill(away.pid, signal.SIGSTOP)
    restarts.restart()
    with restarts.connect() as c:
        (it,) = (it for it in c.connections() if it.pid == away.pid)
        assert it.former
        c.kick(it.conn)
        os.kill(away.pid, signal.SIGCONT)
        away.go()
        assert f"uid {os.getuid()} has ended this connection (kick)" in away.process.stdout.readline()


def test_what_is_no_journal(restarts):
    with restarts.connect() as c:
        publish(c, "x", 1)
    restarts.end()
    with journal_of(restarts) as journal:
        journal.write(b"garbage.")
    restarts.start()
    assert "is no journal: nothing of a former daemon comes back" in restarts.log()
    with restarts.connect() as c:
        assert c.list() == []
    wait_until(lambda: restarts.kept_memory() == [])


@pytest.mark.parametrize("n", [0, 20])
def test_damage_of_a_journal_is_told(restarts, n):
    """Where it is, behind n records, and how much is not read."""
    with restarts.connect() as c:
        for i in range(10):
            publish(c, f"n{i}", i)
    restarts.end()
    with journal_of(restarts) as journal:
        (whole,) = struct.unpack("=Q", os.pread(journal.fileno(), 8, COMMITTED_AT))
        at = RECORDS_AT
        for _ in range(n):
            (size,) = struct.unpack("=4xH", os.pread(journal.fileno(), 6, at))
            at += 16 + (size + 7) // 8 * 8
        assert at < whole
        (checksum,) = os.pread(journal.fileno(), 1, at)
        os.pwrite(journal.fileno(), bytes([checksum ^ 1]), at)
    restarts.start()
    assert f"the journal is damaged at byte {at}: the {whole - at} from there on are not read" in restarts.log()
    with restarts.connect() as c:
        assert len(c.list()) < 10


@hypothesis.settings(max_examples=10)
@hypothesis.given(at=st.integers(0, 1999), byte=st.integers(0, 255))
def test_a_journal_that_is_damaged(at, byte):
    """What comes back is as it was: the rest is not there."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Restarts(pathlib.Path(folder))) as r:
        with r.connect() as c:
            generations = {f"n{i}": publish(c, f"n{i}", i) for i in range(10)}
        r.end()
        with journal_of(r) as journal:
            os.pwrite(journal.fileno(), bytes([byte]), RECORDS_AT + at)
        r.start()
        with r.connect() as c:
            for entry in c.list():
                assert entry.generation == generations[entry.name]
                assert entry.abandoned or value_of(c, entry.name) == int(entry.name[1:])
            c.unlink(prefix="n")
            publish(c, "n0", 1)
            assert value_of(c, "n0") == 1


def test_what_was_written_is_whole_where_its_array_was_closed_meanwhile(restarts):
    with restarts.connect() as c, restarts.connect() as other:
        publish(c, "x", 1)
        a = c.open("x", mode="rw")
        bracket = a.write()
        bracket.begin().copy_from_host(numpy.full(a.shape, 2, "<i4"))
        restarts.end()
        bracket.end()
        a.close()
        restarts.start()
        with other.open("x") as x, x.read():
            assert x.copy_to_host()[0] == 2


def test_a_device_that_is_not_there_any_more(tmp_path, monkeypatch):
    monkeypatch.setenv("CAID_SOFTCUDA_DEVICES", "2")
    with contextlib.closing(Restarts(tmp_path)) as r:
        with r.connect() as c:
            for device in range(2):
                c.create(f"n{device}", 4, device=device).close()
        r.end()
        monkeypatch.setenv("CAID_SOFTCUDA_DEVICES", "1")
        r.start()
        with r.connect() as c:
            assert ([e.name for e in c.list()], [e.name for e in c.lost()]) == (["n0"], ["n1"])


def test_the_time_of_a_ticket_goes_on(tmp_path):
    """That of one whose sender has died with the daemon, however often the next ones do."""
    sends = "import caid; from multiprocessing.reduction import ForkingPickler\nx = caid.Client().empty(4)\nForkingPickler.dumps(x)"
    with contextlib.closing(Restarts(tmp_path, "[memory]\nticket_ttl = 2s\n")) as r:
        sender = Child(f"{sends}; print('sent', flush=True); input()", r.env)
        sender.expect("sent")
        r.process.send_signal(signal.SIGSTOP)
        sender.kill()
        r.restart()

        def has_gone():
            r.restart()
            with r.connect() as c:
                return c.status().arrays == 0

        with r.connect() as c:
            assert c.status().arrays == 1 or "sent an array" in r.log()
        wait_until(has_gone)


@pytest.fixture
def legacy(tmp_path):
    with contextlib.closing(Restarts(tmp_path, "[user-pools]\nlegacy = yes\n")) as r:
        yield r


def is_lost(client, name):
    for ask in (client.open, client.show, lambda n: client.rename(n, "z"), lambda n: client.expire(n, 9.0)):
        with pytest.raises(caid.LostError, match=f'"{name}".* lost .*legacy memory ends with the daemon'):
            ask(name)
    assert name not in client
    return True


def test_what_is_lost_is_told(legacy):
    """Through restarts, until somebody gives the name to another array, or takes it away."""
    with legacy.connect() as c, c.create("k", 4, memory="legacy"):
        for n in range(3):
            c.create(f"n{n}", 4, "<i4", memory="legacy").close()
        publish(c, "here", 1)
        generations = {e.name: e.generation for e in c.list()}
        names, uid = c.users()[0].names, c.list()[0].uid
    for _ in range(3):
        legacy.restart()
        with legacy.connect() as c:
            assert c.lost() == c.lost(all=True)
            assert [e[:5] for e in c.lost()] == [
                (c.status().pool, name, generations[name], uid, "legacy memory ends with the daemon")
                for name in ("k", "n0", "n1", "n2")
            ]
            assert [e.name for e in c.lost(prefix="n1")] == ["n1"] and c.lost(prefix="o") == []
            assert all(is_lost(c, e.name) for e in c.lost())
            assert c.users()[0].names == names and c.status().names == 1
            assert value_of(c, "here") == 1
    with legacy.connect() as c:
        c.unlink("k")
        with pytest.raises(caid.NotFoundError):
            c.open("k")
        assert publish(c, "n0", 2) > generations["n0"]
        with c.create("n1", 4) as a:
            assert a.generation > generations["n1"]
    legacy.restart()
    with legacy.connect() as c:
        assert [e.name for e in c.lost()] == ["n2"] and [e.name for e in c.list()] == ["here", "n0", "n1"]
        assert c.users()[0].names == names - 1
        c.unlink("n2")
        assert c.lost() == [] and c.users()[0].names == names - 2


def test_a_client_hears_that_it_is_back_and_what_it_has_lost(legacy, monkeypatch):
    """From a thread of the hook's own, which may close the client; one that is collected is not told."""
    told, warned = queue.SimpleQueue(), []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *args: warned.append(message))
    warnings.simplefilter("always", caid.LostWarning)

    def heard(client):
        told.put((client, read(kept)))
        client.close()

    with legacy.connect() as c:
        kept, lost = filled(c, 7), c.empty(4, memory="legacy")
        c.on_reconnect = heard
        with pytest.warns(ResourceWarning, match="unclosed"):
            collected = legacy.connect()
            collected.on_reconnect = told.put
            filled(collected, 1).close()
            collected = weakref.ref(collected)
            gc.collect()
        assert collected() is None
        legacy.restart()
        assert told.get(timeout=PATIENCE_S) == (c, 7)
        wait_until(lambda: c.closed)
        (warning,) = warned
        assert isinstance(warning, caid.LostWarning) and "1 of the client's arrays" in str(warning)
        assert told.empty() and lost.closed


def test_what_goes_with_what_is_lost(legacy):
    """A set with one of its arrays, and its names; an array with its companion."""
    with legacy.connect() as c:
        with c.empty(4, memory="legacy") as x, filled(c, 1) as y:
            c.publish_many("s/", {"x": x, "y": y})
        with c.empty(4, memory="legacy") as x, filled(c, 1) as y:
            y.publish("a", companion=x)
    legacy.restart()
    with legacy.connect() as c:
        assert {e.name: e.why for e in c.lost()} == {
            "a": "its companion is lost", "s/": "an array of the set is lost"
        }  # fmt: skip
        for name in ("s/", "s/x", "s/y", "a"):
            with pytest.raises(caid.LostError, match=f'unlink "{name[:2]}"'):
                c.open(name)
        with pytest.raises(caid.NotFoundError):
            c.open("a/x")
        with filled(c, 5) as y:
            c.publish_many("s/", {"y": y})
        assert value_of(c, "s/y") == 5 and [e.name for e in c.lost()] == ["a"]
        with pytest.raises(caid.NotFoundError):
            c.open("s/x")


def test_many_are_lost(legacy):
    """More than a page, and a journal that is written anew."""
    with legacy.connect() as c:
        for n in range(1200):
            c.create(f"n{n:04}", 1, memory="legacy").close()
    legacy.restart()
    with legacy.connect() as c:
        for n in range(4000):
            publish(c, "x" * 200, n)
    legacy.restart()
    with legacy.connect() as c:
        assert [e.name for e in c.lost()] == [f"n{n:04}" for n in range(1200)]


def test_status_tells_what_is_kept(restarts):
    for n in range(3):
        with restarts.connect() as c:
            publish(c, f"n{n}", n)
            before, files = c.status(), restarts.kept()
            assert before.keeper and before.restarts == n
            assert before.kept == sum("memfd:" in f or "pidfd" in f for f in files) > n
            publish(c, "x" * 200, n)
            assert c.status().journal_bytes >= before.journal_bytes + 200
        restarts.restart()
    with restarts.connect() as c:
        restarts.end_keeper()
        wait_until(lambda: not c.status().keeper)
        assert c.status()[24:28] == (False, 0, 3, c.status().journal_bytes)
        restarts.start_keeper()
        wait_until(lambda: c.status().keeper)
        restarts.restart()
    with restarts.connect() as c:
        assert c.status().restarts == 4


# --- users --------------------------------------------------------------------------------------


SOMEBODY = 61234
ASKS = """
for ask in (client.open, client.unlink, client.show):
    try:
        ask("n", pool="uid:0")
    except caid.NotFoundError:
        print("nothing")
print(client.lost(all=True), flush=True)
"""
PUBLISHES = """
for pool in (None, "team", "other"):
    with client.empty(4, "<i4", pool=pool) as a:
        a.copy_from_host(bytes([5, 0, 0, 0] * 4))
        a.publish("x")
step("published")
"""
POOLS = '[pool "team"]\nmode = 0666\nowner = 1234\n[pool "other"]\nmode = 0666\n'


def pools(client):
    """Two of them; what is free in them is nobody's as long as the writer lives."""
    found = {p.name: p._replace(holes=0, largest=0) for p in client.pools()}
    return [found["team"], found[f"uid:{SOMEBODY}"]]


def test_pools():
    """Those of others are theirs again; what was in one that is not configured any more is told."""
    them = taking(SOMEBODY, SOMEBODY)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        r = stack.enter_context(contextlib.closing(Restarts(folder, POOLS)))
        writer = Child("client = caid.Client()\n" + PUBLISHES, r.env, **them)
        stack.callback(writer.kill)
        writer.expect("published")
        with r.connect() as c:
            before = pools(c)
        assert {(p.name, p.uid, p.mode) for p in before} == {("team", 1234, 0o666), (f"uid:{SOMEBODY}", SOMEBODY, 0o600)}
        r.end()
        r.config.write_text(POOLS[: POOLS.index("[pool \"other")])
        r.start()
        with r.connect() as c:
            c.status()  # when all is back
        assert 'array "x" in pool "other" is lost: its pool is not configured' in r.log()
        with r.connect() as c:
            assert pools(c) == before
            assert {(e.pool, e.name, e.uid) for e in c.list(all=True)} == {
                ("team", "x", SOMEBODY), (f"uid:{SOMEBODY}", "x", SOMEBODY)
            }  # fmt: skip
            assert {u.uid: u.names for u in c.users()}[SOMEBODY] == 2


def test_what_is_lost_is_told_to_those_who_might_have_it():
    them = taking(SOMEBODY, SOMEBODY)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        r = stack.enter_context(contextlib.closing(Restarts(folder, "[user-pools]\nlegacy = yes\n")))
        with r.connect() as c:
            c.create("n", 4, memory="legacy").close()
        r.restart()
        other = Child("client = caid.Client()\n" + ASKS, r.env, **them)
        stack.callback(other.kill)
        for answer in ["nothing"] * 3 + ["[]"]:
            other.expect(answer)
        with r.connect() as c:
            assert [(e.pool, e.name) for e in c.lost(all=True)] == [("uid:0", "n")]
