# SPDX-License-Identifier: Apache-2.0
"""Arrays that go to other processes through pickle and multiprocessing."""

import asyncio
import concurrent.futures
import copy
import copyreg
import gc
import io
import multiprocessing
import os
import pickle
import pickletools
import random
import threading
import time
import traceback
import weakref
from multiprocessing.reduction import ForkingPickler

import caid
import numpy
import pytest
from caid._session import _default
from conftest import Held, PATIENCE_S, in_threads, n_leases, wait_until
from hypothesis import given, strategies as st
from members import STAYS, members, outcome
from senders import answer, doubled, leave_at_work, made, receive, send_on

N_KILLS = int(os.environ.get("CAID_STRESS_KILLS", "100"))
multiprocessing.set_forkserver_preload(["caid", "numpy", "pytest"])
NOT_TAKEN = "taken already, or its sender has withdrawn it"


@pytest.fixture
def here(client, monkeypatch):
    """The client of what arrives in this process, for the children, too."""
    monkeypatch.setenv("CAID_SOCKET", client._socket)
    receiver = _default.client_of(client._socket)
    yield receiver
    receiver.close()


def sent(array):
    """What multiprocessing would send."""
    return bytes(ForkingPickler.dumps(array))


def refused(message, error, match=None):
    """What has arrived says so where its memory is asked for."""
    with pickle.loads(message) as a, pytest.raises(error, match=match):
        a.copy_to_host()


# --- one process ----------------------------------------------------------------------------

KEYS = st.tuples(*[st.slices(6)] * 2) | st.sampled_from([(0,), (..., 1), (None, 2)])


def test_parts_of_arrays_arrive_as_numpy_has_them(client, here, counted):
    a, twin = counted
    base = numpy.arange(24, dtype="<i4").reshape(4, 6)

    @given(key=KEYS, transposed=st.booleans(), named=st.booleans())
    def check(key, transposed, named):
        view, expected = (a.T, base.T) if transposed else (a, base)
        with view[key] as part, pickle.loads(sent(part)) as got:
            assert (got.shape, got.typestr) == (part.shape, part.typestr)
            assert numpy.array_equal(got.copy_to_host(), expected[key])

    check()


def test_a_ticket_is_taken_once_and_keeps_the_memory(client, here):
    with client.empty(4, "<i8") as a:
        a.copy_from_host(numpy.arange(4))
        message = sent(a)
    wait_until(lambda: n_leases(client) == 1)
    (kept,) = client.unnamed()
    assert [(holder.pid, holder.sent) for holder in kept.holders] == [(os.getpid(), True)]
    with pickle.loads(message) as b:
        assert b.copy_to_host().tolist() == [0, 1, 2, 3]
        refused(message, caid.NotFoundError, NOT_TAKEN)
    wait_until(lambda: n_leases(client) + n_leases(here) == 0)


def test_what_is_sent_outlives_its_sender(client, here, daemon):
    with daemon.connect() as sender, sender.full(4, 7, "<i8") as a:
        messages = [sent(a) for _ in range(3)]
    wait_until(lambda: n_leases(client) == 3)
    with pickle.loads(messages[0]) as b:
        assert b.copy_to_host().tolist() == [7] * 4
    assert client.withdraw() == 0 and client.withdraw(pid=os.getpid(), gone=True) == 2
    refused(messages[1], caid.NotFoundError, NOT_TAKEN)


def test_its_sender_withdraws_what_nobody_has_taken(client, here, other):
    with client.empty(4, "<i8") as a, caid.Reference(a) as reference, other.empty(4, "<i8") as b:
        messages = [sent(a), sent(a)]
        pickle.loads(messages[0]).close()
        kept = sent(b)
        assert client.withdraw() == 1 and client.withdraw() == client.withdraw(gone=True) == 0
        refused(messages[1], caid.NotFoundError, NOT_TAKEN)
        pickle.loads(kept).close()
        reference.open(other).close()
        (ticket,) = other.tickets()
        assert (ticket.pid, ticket.gone, ticket.nbytes) == (os.getpid(), False, a.nbytes)
        assert other.withdraw(pid=os.getpid()) == 1  # whatever made it
        with pytest.raises(caid.NotFoundError):
            reference.open(other)


@pytest.mark.parametrize("setting", ["ticket_ttl = 50ms", "ticket_age = 50ms"])
def test_what_nobody_takes_runs_out(setting):
    """In its time, of which an age begins at once, and is none of a reference's."""
    with caid.LocalDaemon(config=f"[memory]\n{setting}\n") as d, d.connect() as c:
        with d.connect() as sender, sender.empty(4, "<i8") as a, caid.Reference(a) as reference:
            message = sent(a)
            time.sleep(0.1)
            wait_until(lambda: ("nobody took in time" in d.log()) == ("age" in setting))
            reference.open(c).close()
        wait_until(lambda: f"pid {os.getpid()}, uid {os.geteuid()} sent an array of 32 bytes" in d.log())
        refused(message, caid.NotFoundError, "nobody took the array in time")


# What was pickled while private modules lay beside the public ones, at protocol 0, where text has no length: the socket, the ids and the generation are this test's.
REFERENCE_OF_BEFORE = (
    "ccaid._reference\n_arrived\n(V{machine}\nV{daemon}\nV{pool}\nVx\nI{generation}\nVrw\n(I2\nI3\nt(I12\nI4\nt(V<i4\nI4\nNtNN"
    "I01\nI00\nc_codecs\nencode\n(V0123456789abcdef\nVlatin1\ntRtR")
OF_BEFORE = {
    "array": "ccaid._reference\n_open_at\n(V{socket}\n" + REFERENCE_OF_BEFORE + "tR.",
    "reference": REFERENCE_OF_BEFORE + ".",
    "unsent": "ccaid._reference\n_unsent\n(" + REFERENCE_OF_BEFORE + "ccaid\nNotFoundError\n(I2\nVgone\ntRtR.",
    "error": "ccaid\nNotFoundError\n(I2\nVgone\ntR.",
    "code": "c__builtin__\ngetattr\n(ccaid\nErrorCode\nVCLOSED\ntR.",
    "handle": "ccopy_reg\n_reconstructor\n(ccaid\nIpcHandle\nc__builtin__\ntuple\n(Vabc\nI8\nI16\nttR.",
}


def names_in(message):
    """What it has of caid's."""
    return {arg for op, arg, _ in pickletools.genops(message) if op.name == "GLOBAL" and arg.startswith("caid")}


def test_what_an_earlier_release_has_pickled(client, here):
    """It arrives, and is pickled by the same names again."""
    with client.create("x", (2, 3), "<i4") as a:
        ids = {"machine": client.machine_id, "daemon": client.daemon_id, "pool": f"uid:{os.geteuid()}",
               "generation": a.generation}
        a.fill(5)
        messages = {what: text.format(socket=client._socket, **ids).encode() for what, text in OF_BEFORE.items()}
        got = {what: pickle.loads(message) for what, message in messages.items()}
        for what, message in messages.items():
            assert names_in(pickle.dumps(got[what], 0)) == names_in(message), what
        with got["array"] as b, got["reference"].open(client) as c, got["unsent"] as missing:
            assert b.copy_to_host().tolist() == c.copy_to_host().tolist() == [[5] * 3] * 2
            assert (missing.shape, missing.name) == (a.shape, "x")
            with pytest.raises(caid.NotFoundError, match="gone"):
                missing.copy_to_host()
    assert repr(got["error"]) == "NotFoundError(2, 'gone')" and got["code"] is caid.ErrorCode.CLOSED
    assert got["handle"] == caid.IpcHandle("abc", 8, 16)


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_the_mode_is_the_senders(client, here, mode):
    client.create("x", 4, "<i8").close()
    with client.open("x", mode) as a, pickle.loads(sent(a)) as b, pickle.loads(pickle.dumps(a)) as c:
        assert a.readonly == b.readonly == c.readonly == (mode == "r")
        assert b.name == c.name == "x" and b.generation == c.generation == a.generation


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket away")
def test_the_socket_of_somebody_else_is_not_connected_to(client, here):
    """What arrives is looked for at this process's own daemon then."""
    with caid.LocalDaemon() as d:
        os.chown(d.address, 60001, -1)
        own = _default.client_of(d.address)
        assert own._socket == client._socket
        os.chown(d.address, 0, -1)
        with _default.client_of(d.address) as its:
            assert its._socket == d.address
        own.close()


def test_a_name_that_was_replaced_gives_what_was_sent(client, here):
    with client.create("x", 1, "<i8") as old:
        old.copy_from_host(numpy.array([7]))
        message, by_name = sent(old), pickle.dumps(old)
        with client.empty(1, "<i8") as new:
            new.publish("x")
        with pickle.loads(by_name) as held:
            assert held.copy_to_host() == 7
    with pickle.loads(message) as b:
        assert b.copy_to_host() == 7
    wait_until(lambda: n_leases(client) + n_leases(here) == 0)
    for gone in message, by_name:
        refused(gone, caid.StaleError)


def test_who_knows_things_by_their_pickles_does_not_know_an_array(client, here):
    """What it shows may be other than it was: joblib and others would take an old result for its."""
    with client.create("x", 4, "<i8") as a, a[1:] as part, caid.Reference(a) as reference:
        for x in a, part, reference, pickle.loads(pickle.dumps(reference)):
            assert len({pickle.dumps(x) for _ in range(3)}) == 3


class Mine(caid.Array):
    """A user's class: an array becomes one by its __class__."""

    __slots__ = ()


def test_a_subclass_is_pickled_as_an_array_by_any_pickler(client, here, counted, monkeypatch):
    private = io.BytesIO()
    pickler = pickle.Pickler(private)
    pickler.dispatch_table = {}  # knows nothing of copyreg's
    with client.create("x", 4, "<i8") as a:
        a.copy_from_host(numpy.arange(4))
        a.__class__ = Mine
        pickler.dump(a)
        messages = [pickle.dumps(a, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for message in *messages, private.getvalue(), sent(a):
            with pickle.loads(message) as b:
                assert type(b) is caid.Array and b.copy_to_host().tolist() == [0, 1, 2, 3]
        monkeypatch.setitem(copyreg.dispatch_table, Mine, lambda x: (len, ("own",)))
        assert pickle.loads(pickle.dumps(a)) == 3
        with pickle.loads(pickle.dumps(a[1:])) as b:  # an array of the base
            assert b.copy_to_host().tolist() == [1, 2, 3]
    unnamed, _ = counted
    unnamed.__class__ = Mine
    monkeypatch.undo()
    with pytest.raises(TypeError, match="no name.*multiprocessing"):
        pickle.dumps(unnamed)


def test_what_cannot_be_pickled_says_why(client, counted):
    a, twin = counted
    with pytest.raises(TypeError, match="no name.*multiprocessing"):
        pickle.dumps(a)
    with client.empty(4, "<i8", memory="managed") as managed:
        with pytest.raises(TypeError, match="this process alone"):
            sent(managed)
    for copying in copy.copy, copy.deepcopy:
        with pytest.raises(TypeError, match=r"view\(\)"):
            copying(a)
    a.close()
    with pytest.raises(caid.ClosedError):
        sent(a)


def test_a_part_outside_of_its_array_is_refused(client, here):
    with client.empty(4, "<i8") as a:
        take, (socket, reference) = ForkingPickler(io.BytesIO()).dispatch_table[caid.Array](a)
    reference._start = 8
    with take(socket, reference) as b, pytest.raises(caid.CorruptError, match="not within its 32 bytes"):
        b.copy_to_host()
    wait_until(lambda: n_leases(client) + n_leases(here) == 0)


@pytest.fixture
def gone(client, here):
    """What has come of an array that was taken before, and closed."""
    with client.empty((2, 3), "<i4") as a:
        message = sent(a[:])
    pickle.loads(message).close()
    with pickle.loads(message) as b:
        yield b


def test_what_is_missing_says_why_where_its_memory_is_asked_for(gone):
    for name in set(members(caid.Array)) - set(STAYS[caid.Array].split()):
        said = asyncio.run(outcome(caid.Array, gone, name))
        assert said.startswith("NotFoundError: ") and "taken already" in said, name


def test_what_is_missing_is_known_closed_and_sent_on(gone, client):
    assert (gone.shape, gone.strides, gone.typestr, gone.nbytes) == ((2, 3), (12, 4), "<i4", 24)
    assert "shape=(2, 3)" in repr(gone) and "missing: NotFoundError" in repr(gone)
    assert gone in {gone} and not gone.closed
    for message in sent(gone), pickle.dumps(gone), sent(pickle.loads(sent(gone))):
        refused(message, caid.NotFoundError, NOT_TAKEN)
    gone.close()
    assert gone.closed and "closed" in repr(gone)
    with pytest.raises(caid.ClosedError):
        sent(gone)


def test_what_is_missing_keeps_nothing_of_those_that_ask(gone):
    class Local:
        pass

    def ask(alive):
        local = Local()
        alive.append(weakref.ref(local))
        with pytest.raises(caid.NotFoundError) as raised:
            gone.copy_to_host()
        return len(traceback.extract_tb(raised.value.__traceback__))

    alive = []
    assert ask(alive) == ask(alive) == ask(alive)
    gc.collect()
    assert not any(each() for each in alive)


def test_whatever_keeps_an_array_from_being_opened_it_arrives(client, here, monkeypatch):
    with client.empty(4, "<i8") as a:
        message = sent(a)
    with client.create("x", 4, "<i8") as a:
        by_name = pickle.dumps(a)
    client.unlink("x")
    monkeypatch.setenv("CAID_SOCKET", "/nonexistent")
    elsewhere = message.replace(client._socket.encode(), b"/" * len(client._socket.encode()))
    refused(elsewhere, caid.NoDaemonError)
    monkeypatch.undo()
    monkeypatch.setenv("CAID_SOCKET", client._socket)
    refused(message.replace(client.daemon_id.encode(), b"0" * 32), caid.NotFoundError, "by value")
    refused(message.replace(b"<i8", b"<x8"), caid.CorruptError)
    refused(message.replace(b"rw", b"xx"), caid.CorruptError)
    refused(by_name, (caid.NotFoundError, caid.StaleError))
    pickle.loads(message).close()


def test_work_under_way_travels_as_a_fence(client, here, soft):
    with client.stream() as s, client.empty(4, "<i8") as a:
        with Held(s):
            a.copy_from_host(numpy.arange(4), stream=s)
            message = sent(a)  # waits for nothing
            b = pickle.loads(message)  # nor does this
            assert b.__cuda_array_interface__["stream"] is not None
        with b:
            assert b.copy_to_host().tolist() == [0, 1, 2, 3]


def test_work_behind_what_is_read_travels_too(client, here, soft):
    client.create("x", 4, "<i8").close()
    with client.stream() as s, client.open("x", "rw") as w, client.open("x") as a:
        with Held(s):
            w.copy_from_host(numpy.arange(4), stream=s)
            with w.write(s):
                pass
            with a.read(s):
                pass
            b = pickle.loads(sent(a))
            assert b.readonly and b.__cuda_array_interface__["stream"] is not None
        with b:
            assert b.copy_to_host().tolist() == [0, 1, 2, 3]


def test_a_view_of_a_bracket_is_sent_with_what_is_on_its_stream(client, here, soft):
    with client.stream() as s, client.empty(4, "<i8") as a, a.write(s) as v:
        v.copy_from_host(numpy.arange(4), stream=s)
        with pickle.loads(sent(v)) as b:
            assert b.copy_to_host().tolist() == [0, 1, 2, 3]


def test_what_is_abandoned_stays_so(client, here, other, soft):
    client.create("x", 4, "<i8").close()
    with client.stream() as s, client.open("x", "rw") as a, other.open("x") as reader:
        with pytest.raises(KeyError), a.write():
            raise KeyError
        a[:1].copy_from_host(numpy.arange(1), stream=s)
        with pickle.loads(sent(a)), pytest.raises(caid.AbandonedError):
            reader.read().begin()


@pytest.mark.parametrize("memory", ["device", "legacy", "pinned", "mapped"])
@pytest.mark.parametrize("n", [0, 5])
def test_all_that_the_daemon_has_can_be_sent(client, here, memory, n):
    with client.full(n, 3, "<i8", memory=memory) as a, pickle.loads(sent(a)) as b:
        assert b.memory == memory and b.copy_to_host().tolist() == [3] * n


def test_threads_share_the_client_that_keeps_what_they_send(client, here, monkeypatch):
    here.close()
    messages = []

    def work(i):
        with caid.default_client().full(1, i, "<i8") as a:
            messages.append(sent(a))

    in_threads(8, work)
    got = [pickle.loads(message) for message in messages]
    assert sorted(int(a.copy_to_host()[0]) for a in got) == list(range(8))
    for a in got:
        a.close()
    caid.default_client().close()


def test_parts_of_arenas(client, here, arena):
    x = arena.allocate(32)
    a = caid.from_cuda_array_interface({**x.__cuda_array_interface__, "shape": (4,), "typestr": "<i8"}, x)
    a.copy_from_host(numpy.arange(4))
    messages = sent(a[1:3]), sent(x)
    a.close()
    del a, x  # which the arena keeps
    with pickle.loads(messages[0]) as b, pickle.loads(messages[1]) as c:
        assert b.copy_to_host().tolist() == [1, 2] and (c.typestr, c.shape) == ("|u1", (32,))
        assert arena.info.published == 2
    wait_until(lambda: n_leases(here) + n_leases(client) and not arena.info.published)


def test_work_on_what_somebody_reads_is_waited_for(client, here, soft):
    with client.stream() as s, client.empty(4, "<i8") as a, client.empty(4, "<i8") as target:
        a.copy_from_host(numpy.arange(4))
        target.copy_from(a, stream=s)
        with target.read():
            message = sent(target)
        with pickle.loads(message) as b:
            assert b.copy_to_host().tolist() == [0, 1, 2, 3]


class Gate:
    """It holds up the thread that pickles until it is opened."""

    opened = threading.Event()

    def __reduce__(self):
        Gate.opened.wait(PATIENCE_S)
        return int, ()


def test_what_a_queue_cannot_send_arrives_and_says_why(client, here):
    queue = multiprocessing.Queue()
    queue.put(Gate())
    with client.empty((2, 3), "<i4") as a, client.empty(4, memory="managed") as managed:
        view = a.view()
        for each in a, managed, view:
            queue.put(each)
        a.close()
        Gate.opened.set()
        assert queue.get(timeout=PATIENCE_S) == 0
        got = [queue.get(timeout=PATIENCE_S) for _ in range(3)]
    view.close()
    queue.close()
    queue.join_thread()
    assert [(each.shape, each.typestr) for each in got] == [((2, 3), "<i4"), ((4,), "<f8"), ((2, 3), "<i4")]
    for each in got[0], pickle.loads(sent(got[0])):
        with each, pytest.raises(caid.ClosedError, match=r"closed before it was sent.*put\(a.view\(\)\)"):
            each.synchronize()
    with got[1] as b, pytest.raises(TypeError, match="this process alone"):
        b.synchronize()
    with got[2] as b:
        b.synchronize()


# --- several --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_through_queues_and_pipes(client, here, counted, method):
    a, twin = counted
    context = multiprocessing.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=answer, args=(inbox, outbox))
    process.start()
    with a[1:3, ::2] as part:
        for each in a, part:
            inbox.put(each)
            name, pid = outbox.get(timeout=PATIENCE_S)
            assert name is None and pid == process.pid
    inbox.put(None)
    process.join(PATIENCE_S)
    twin *= 2
    twin[1:3, ::2] *= 2
    assert process.exitcode == 0 and numpy.array_equal(a.copy_to_host(), twin)


def test_a_process_that_ends_waits_for_what_its_queues_have_sent(client, here, soft):
    context = multiprocessing.get_context("forkserver")  # it leaves by os._exit()
    inbox = context.Queue()
    process = context.Process(target=leave_at_work, args=(inbox,))
    process.start()
    inbox.get(timeout=PATIENCE_S)
    with inbox.get(timeout=PATIENCE_S) as a:
        process.join(PATIENCE_S)
        assert a.copy_to_host().tolist() == [7] * a.size


def test_so_does_one_that_sends_by_itself(here, soft, child):
    sender = child("""
        import ctypes, pickle, senders
        a, s = senders.at_work()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(a))  # nobody closes it, nor its client
        with caid.Reference(a) as reference:
            step(pickle.dumps(reference).hex())
    """)
    reference = pickle.loads(bytes.fromhex(sender.process.stdout.readline()))
    with reference.open(here) as a:
        sender.go()
        assert sender.finish()[0] == 0
        assert a.copy_to_host().tolist() == [7] * a.size


def test_through_pools_and_executors(client, here, counted):
    a, twin = counted
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(doubled, (a,))[0] is None
        with pool.apply(made, (5,)) as b:
            assert b.copy_to_host().tolist() == [0, 1, 2, 3, 4]
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(doubled, a).result()[0] is None
    assert numpy.array_equal(a.copy_to_host(), 4 * twin)


def test_pools_that_fork_say_how_to_start(client, counted):
    """Not BrokenProcessPool: the worker lives, and what it raises comes back."""
    a, _ = counted
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool, concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        for result in (pool.apply_async(doubled, (a,)).get, executor.submit(doubled, a).result):
            with pytest.raises(caid.ForkedError, match="use spawn or forkserver"):
                result(timeout=PATIENCE_S)


def test_through_a_manager(client, here, counted):
    a, twin = counted
    with multiprocessing.get_context("spawn").Manager() as manager:
        box = manager.dict()
        box["a"] = a
        for _ in range(2):  # each get() sends it anew
            with box["a"] as b:
                assert numpy.array_equal(b.copy_to_host(), twin)
        del box["a"]


# --- kills ----------------------------------------------------------------------------------


def test_kills_leave_nothing():
    """What was on its way runs out."""
    context = multiprocessing.get_context("forkserver")
    chance = random.Random(18)
    with caid.LocalDaemon(config="[memory]\nticket_ttl = 20ms\n") as d, d.connect() as client:
        for n in range(N_KILLS):
            ends = context.Pipe(duplex=False)
            processes = [
                context.Process(target=target, args=(end, d.address))
                for target, end in zip((receive, send_on), ends)
            ]
            for process, end in zip(processes, ends):
                process.start()
                end.close()
            if n % 4:
                wait_until(lambda: client.status().leases)
            time.sleep(chance.random() * 0.02)
            victim = processes[n % 2]
            victim.kill()
            for process in processes:
                process.join(PATIENCE_S)
                assert process is victim or process.exitcode == 0
            wait_until(lambda: (client.status().arrays, client.status().leases) == (0, 0))
        (user,) = client.users()
        assert (user.arrays, user.leases, user.bytes) == (0, 0, 0)
