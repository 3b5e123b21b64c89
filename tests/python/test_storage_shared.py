# SPDX-License-Identifier: Apache-2.0
"""Storages that have a name: one field for several processes, with one sync state."""

import asyncio
import gc
import inspect
import itertools
import json
import pathlib
import re
import subprocess
import threading

import numpy as np
import pytest
from conftest import PATIENCE_S, Child, Held, n_leases, refuses, run_async, softcuda, wait_until
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import caid
import caid.storage as cs

CLEAN, HOST_DIRTY, DEVICE_DIRTY = range(3)
NAMES = (f"field {n}" for n in itertools.count())
GPU = {"device": "gpu"}
KINDS = [{}, {"device": "gpu", "managed": None}, GPU]


@pytest.fixture(autouse=True)
def default_client(daemon, monkeypatch):
    monkeypatch.setenv("CAID_SOCKET", daemon.address)


@pytest.fixture
def name(daemon, request):
    """A free one; nothing is left of it at the end."""
    name = next(NAMES)
    with daemon.connect() as client:
        yield name
        if client.list(prefix=name):
            client.unlink(name)
        if not request.node.failed:
            gc.collect()
            wait_until(lambda: n_leases(caid.default_client()) == 0 and client.status().arrays == 0)


def test_a_copy_has_no_name(name):
    s = cs.ones((2, 3), name=name, **GPU)
    for made in cs.storage(s), cs.zeros_like(s), s.copy():
        assert made.name is None
    del s, made


class CopiesMeanwhile:
    """A value that is read while another process copies what it is set in."""

    def __init__(self, storage):
        self.storage = storage

    def __array__(self, *_args, **_options):
        self.storage.host_to_device()
        return np.ones(3)


def test_what_is_set_is_modified_when_it_is_there(name):
    s = cs.zeros((3,), name=name, **GPU)
    s[...] = CopiesMeanwhile(s)
    assert s.sync_state.state == HOST_DIRTY and caid.as_array(s).copy_to_host().all()
    del s


# Runs each line of Python that it is sent, where `s` is a storage, and answers with its value's repr.
SERVER = """
import traceback
import numpy as np
import caid.storage as cs

def n_copied():
    import conftest
    calls = (line.split() for line in conftest.softcuda("calls").splitlines())
    return sum(int(n) for name, n in calls if name.startswith("cuMemcpy"))

scope = {"cs": cs, "np": np, "caid": caid, "n_copied": n_copied}
def run(line):
    try:
        return repr(eval(line, scope))
    except SyntaxError:
        exec(line.replace("\\\\n", "\\n"), scope)

for line in sys.stdin:
    try:
        print(run(line), flush=True)
    except Exception as e:
        print(f"caid.{type(e).__name__}" if isinstance(e, caid.Error) else repr(traceback.format_exc()), flush=True)
"""


class Elsewhere(Child):
    """A process that does what it is told with storages."""

    def __init__(self, daemon, name=None, mode="rw"):
        super().__init__(SERVER, daemon.env | {"CAID_SOCKET": daemon.address})
        if name is not None:
            self(f"s = cs.open({name!r}, {mode!r})")

    def __call__(self, line):
        self.ask(line)
        return self.answer()

    def ask(self, line):
        self.process.stdin.write(line.replace("\n", "\\n") + "\n")
        self.process.stdin.flush()

    def answer(self):
        answer = self.process.stdout.readline()
        assert answer, self.finish()
        return eval(answer, {"caid": caid, "array": np.array, "np": np})


@pytest.fixture
def elsewhere(daemon):
    made = []

    def start(*args):
        made.append(Elsewhere(daemon, *args))
        return made[-1]

    yield start
    for process in made:
        process.kill()


def fill(s, values, *, on_device):
    with s.write(1 if on_device else None) as a:
        if on_device:
            a.copy_from_host(values)
        else:
            a[...] = values


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", KINDS)
def test_a_name_gives_the_same_storage(name, elsewhere, options):
    dtype = [("a", "<f4"), ("b", "|i1")]
    made = cs.full((5, 6, 7), (3, 4), dtype, name=name, halo=(1, (0, 2), 0), alignment_size=256,
                   layout=(2, 0, 1), **options)
    tell = (
        "(type(s).__name__, s.shape, s.strides, s.dtype.descr, s.halo, s.device, s.name, s.nbytes, "
        "(s._side.ptr if s._host is None else s._host.ctypes.data) % 256, s[0, 0, 0].tolist())"
    )
    other = elsewhere(name)
    assert other(tell) == eval(tell, {"s": made}) and made.name == name
    other("s[2:, 1] = (5, 6)")
    assert made[4, 1, 3].tolist() == (5, 6) and made[4, 2, 3].tolist() == (3, 4)


def test_it_appears_when_it_is_whole(name, elsewhere):
    s = cs.zeros(4, **GPU)
    assert s.name is None
    with pytest.raises(caid.NotFoundError):
        cs.open(name)
    s[...] = 7
    first = s.publish(name)
    assert elsewhere(name)("s[1]") == 7 and s.name == name
    with pytest.raises(caid.ExistsError):
        cs.ones(4, name=name, **GPU)
    with pytest.raises(caid.ExistsError):
        cs.ones(4, **GPU).publish(name, replace=False)
    held = cs.open(name)
    again = cs.ones(4, **GPU)
    assert again.publish(name) == first + 1
    assert held[0] == 7 and cs.open(name)[0] == 1 and cs.open(name, generation=first)[0] == 7
    again.halo = (1,)
    again.publish(name)
    assert cs.open(name).halo == ((1, 1),)


def test_both_buffers_are_one_name(name, daemon, elsewhere):
    """They are charged, kept and freed together, whoever is killed."""
    maker = elsewhere()
    maker(f"s = cs.ones((1000,), 'u1', name={name!r}, device='gpu')")
    with daemon.connect() as client:
        shown, (unnamed,) = client.show(name), client.unnamed()
        assert unnamed.array == shown.companion and unnamed.companion_of == shown.array
        assert len(unnamed.holders) == 1
        other = elsewhere(name)
        maker.kill()
        assert other("s.to_numpy().sum()") == 1000
        other.kill()
        wait_until(lambda: client.status().leases == 0)
        assert client.status().arrays == 2
        assert cs.open(name, "rw").to_numpy().sum() == 1000
        reader = elsewhere(name, "r")
        client.unlink(name)
        assert reader("s[...].to_numpy().sum()") == 1000
        reader.kill()
        wait_until(lambda: client.status().arrays == 0)


def test_what_cannot_have_a_name(name):
    with pytest.raises(caid.UnsupportedError, match="CUDA has no handle"):
        cs.zeros(3, name=name, device="gpu", managed="cuda")
    with pytest.raises(caid.UnsupportedError, match="as_storage"):
        cs.as_storage(np.zeros(3), name=name)
    for s in cs.zeros(3), cs.as_storage(np.zeros(3), **GPU), cs.zeros(3, device="gpu", managed="cuda"):
        with pytest.raises(caid.UnsupportedError, match="not the daemon's"):
            s.publish(name)
    whole = cs.zeros((4, 4), **GPU)
    for view in whole[1:], whole.T, whole[::-1], cs.as_storage(whole[1:]), cs.as_storage(whole[:-1]):
        with pytest.raises(caid.UnsupportedError, match="a view"):
            view.publish(name)
    with pytest.raises(caid.InvalidError, match="power"):
        cs.zeros(3, alignment_size=24, name=name, **GPU)
    for mode in "r", "rw":
        with pytest.raises(caid.NotFoundError):
            cs.open(name, mode)


def metadata(s):
    return {"caid.storage": 1, **{
        "shape": list(s.shape), "dtype": s.dtype.str, "descr": None, "layout": [0], "alignment_size": 1,
        "aligned_index": [0], "halo": [[0, 0]], "device": None, "managed": None, "leads": [0, 0]}}


@pytest.mark.parametrize("change", [
    {"shape": [9]}, {"shape": [-1]}, {"shape": None}, {"dtype": "O"}, {"dtype": 3}, {"dtype": "<f8", "leads": [4, 0]},
    {"descr": "[]"}, {"layout": [1]}, {"alignment_size": 0}, {"aligned_index": [9]}, {"halo": [[9, 9]]},
    {"device": "tpu"}, {"managed": "gt4py"}, {"device": "gpu", "managed": "gt4py"}, {"leads": [0]},
    {"leads": [2**70, 0]}, {"leads": [-8, 0]},
])
def test_metadata_that_cannot_be(name, change):
    client = caid.default_client()
    right = metadata(np.zeros(8))
    with client.create(name, 64, "|u1", memory="pinned", metadata=right):
        assert type(cs.open(name)) is cs.CPUStorage
    client.unlink(name)
    with client.create(name, 64, "|u1", memory="pinned", metadata={**right, **change}):
        with pytest.raises(caid.CorruptError, match="created by uid"):
            cs.open(name)


@pytest.mark.parametrize("shape, strides", [((1 << 20,), (0,)), ((8, 64), None), ((64,), (2,))])
def test_memory_that_is_not_bytes_in_a_row(name, shape, strides):
    client, right = caid.default_client(), metadata(np.zeros(8))
    with client.create(name, shape, "|u1", strides=strides, memory="pinned", metadata=right):
        with pytest.raises(caid.CorruptError, match="not in its memory"):
            cs.open(name)


def test_metadata_of_others(name):
    with caid.default_client().create(name, 64, "|u1", memory="pinned", metadata={"caid.storage": 2}) as a:
        with pytest.raises(caid.InvalidError, match="version 2"):
            cs.open(name)
        for other in None, "text", [1]:
            a.publish(name, metadata=other or {})
            with pytest.raises(caid.InvalidError, match="no storage"):
                cs.open(name)


# --- the sync state -------------------------------------------------------------------------

WRITES = {
    "by index": ("s[key] = value", HOST_DIRTY),
    "host's array": ("s.to_numpy()[key] = value", HOST_DIRTY),
    "write()": ("with s.write() as a: a[key] = value", HOST_DIRTY),
    "write(stream)": ("with s.write(1) as a: a.copy_from_host(changed(a))", DEVICE_DIRTY),
    "fields": (  # the state changes again when the work is there
        "with cs.fields(write=[s], device='gpu') as (a,): a.copy_from_host(changed(a))\na.synchronize()",
        DEVICE_DIRTY,
    ),
    "says so": ("a = caid.as_array(s); a.copy_from_host(changed(a)); s.set_device_modified()", DEVICE_DIRTY),
}
READS = {
    "by index": "s[np.arange(len(s))]",
    "host's array": "np.array(s.to_numpy())",
    "read()": "read(None)",
    "read(stream)": "read(1)",
    "interface": "caid.as_array(s).copy_to_host()",
}
SETUP = """
def changed(a):
    new = a.copy_to_host()
    new[key] = value
    return new

def read(stream):
    with s.read(stream) as a:
        return a.copy() if stream is None else a.copy_to_host()
"""


class TwoProcesses(RuleBasedStateMachine):
    """One storage, of which this process and another one have views; held against NumPy."""

    daemon = None

    @initialize(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), data=st.data(),
                alignment=st.sampled_from([1, 8, 64, 1024]), dtype=st.sampled_from(["f8", "i2", "c8"]))
    def make(self, shape, data, alignment, dtype):
        self.name, self.model = next(NAMES), np.zeros(shape, dtype)
        layout = data.draw(st.permutations(range(len(shape))))
        storage = cs.zeros(shape, dtype, name=self.name, layout=layout, alignment_size=alignment, **GPU)
        self.scope = {"s": storage, "cs": cs, "np": np, "caid": caid}
        exec(SETUP, self.scope)
        self.process = TwoProcesses.process
        self.process(f"s = cs.open({self.name!r}, 'rw')")
        self.process(SETUP)
        self.state = storage.sync_state.state

    def run(self, here, line):
        if not here:
            return self.process(line)
        try:
            return eval(line, self.scope)
        except SyntaxError:
            exec(line, self.scope)

    @rule(here=st.booleans(), data=st.data())
    def view(self, here, data):
        """That process goes on with a view, and its twin keeps the model's."""
        key = data.draw(basic_indices(self.model.shape, allow_ellipsis=False, allow_newaxis=False, min_dims=1))
        if self.model[key].ndim and self.model[key].size:
            self.model = self.model[key]
            for each in True, False:
                self.run(each, f"s = s[{key!r}]")

    @rule(here=st.booleans(), how=st.sampled_from(sorted(WRITES)), value=st.integers(1, 99), data=st.data())
    def write(self, here, how, value, data):
        key = data.draw(basic_indices(self.model.shape, allow_ellipsis=False, allow_newaxis=False))
        line, self.state = WRITES[how]
        self.run(here, f"key, value = {key!r}, {value}")
        assert self.run(here, line) is None
        self.model[key] = value
        self.check()

    @rule(here=st.booleans(), how=st.sampled_from(sorted(READS)))
    def read(self, here, how):
        found = self.run(here, f"({READS[how]}).tolist()")
        assert found == self.model.tolist()
        self.state = self.run(True, "s.sync_state.state")
        self.check()

    @rule(here=st.booleans(), call=st.sampled_from(["synchronize", "device_to_host", "host_to_device"]))
    def synchronize(self, here, call):
        self.run(here, f"s.{call}()")
        if call != {HOST_DIRTY: "device_to_host", DEVICE_DIRTY: "host_to_device"}.get(self.state):
            self.state = CLEAN
        self.check()

    def check(self):
        assert [self.run(here, "s.sync_state.state") for here in (True, False)] == [self.state] * 2

    def teardown(self):
        if hasattr(self, "name"):
            self.scope.clear()
            self.process("s = None")
            caid.default_client().unlink(self.name)


def test_two_processes_have_one_state(elsewhere):
    TwoProcesses.process = elsewhere()
    run_state_machine_as_test(
        TwoProcesses,
        settings=settings(max_examples=80, stateful_step_count=25, deadline=None, database=None,
                          suppress_health_check=list(HealthCheck)),
    )


def test_a_modification_is_copied_once(name, elsewhere):
    s = cs.zeros(1000, name=name, **GPU)
    others = [elsewhere(name) for _ in range(3)]
    for turn in range(1, 4):
        fill(s, np.full(1000, turn, "f8"), on_device=True)
        assert [other("s.sync_state.state") for other in others] == [DEVICE_DIRTY] * 3
        before = [other("n_copied()") for other in others]
        for other in others:
            other.ask("s.to_numpy()[0]")
        assert [other.answer() for other in others] == [turn] * 3
        copied = sum(other("n_copied()") for other in others) - sum(before)
        assert copied == 1
        s[...] = turn  # host's: the next is copied from the device


def test_what_several_processes_modify_is_copied_together(name, elsewhere):
    s = cs.zeros(8, name=name, **GPU)
    other = elsewhere(name)
    s.synchronize()
    s[0] = 1
    other("s.__setitem__(5, 2)")
    s[1] = 3
    assert caid.as_array(s).copy_to_host().tolist() == [1, 3, 0, 0, 0, 2, 0, 0]


def test_a_copy_on_a_stream_counts_when_it_is_there(name, elsewhere):
    client = caid.default_client()
    s = cs.zeros(8, name=name, **GPU)
    other = elsewhere(name)
    s[...] = 5
    with client.stream() as stream:
        with Held(stream):
            s.host_to_device(stream=stream)
            assert other("s.sync_state.state") == HOST_DIRTY
            before = softcuda("calls")
            s.host_to_device(stream=stream)  # it is on its way
            assert softcuda("calls") == before
        stream.synchronize()
    assert other("s.sync_state.state") == s.sync_state.state == CLEAN
    with client.stream() as stream:
        s[...] = 6
        with Held(stream):
            s.host_to_device(stream=stream)
            s.set_host_modified()
        stream.synchronize()
    assert other("s.sync_state.state") == HOST_DIRTY and other("caid.as_array(s).copy_to_host()[0]") == 6
    del s


def test_work_that_is_under_way_is_copied_when_it_is_done(name, elsewhere):
    """Where another process has made a copy before."""
    client = caid.default_client()
    s, other = cs.zeros(8, "u1", name=name, client=client, **GPU), elsewhere(name)
    values = caid.pinned_array(8, "u1", client=client)
    values[:] = 7
    s.synchronize()
    with client.stream() as stream:
        with Held(stream):
            with cs.fields(write=[s], device="gpu", stream=stream) as (a,):
                a.copy_from_host(values, stream)
            assert other("s.to_numpy()[0]") == 0
        stream.synchronize()
        assert other("s.to_numpy()[0]") == 7
        s[...] = 5
        with Held(stream), s.read(stream, timeout=PATIENCE_S) as a:
            assert s.sync_state.state == HOST_DIRTY
        stream.synchronize()
        assert a.copy_to_host()[0] == 5
    del s, a


def test_what_a_killed_process_has_copied_is_used(name, elsewhere):
    s, other = cs.zeros(8, "u1", name=name, **GPU), elsewhere(name)
    s[...] = 4
    other("import os, signal\nreal = cs.SyncState._copy_here\ndef copy(*args):\n"
          "    real(*args)\n    os.kill(os.getpid(), signal.SIGKILL)\ncs.SyncState._copy_here = copy")
    other.ask("s.host_to_device()")
    assert other.process.wait(PATIENCE_S) < 0 and s.sync_state.state == CLEAN
    with s.read(1) as a:
        assert (a.copy_to_host() == 4).all()


KILLED = """
import os, signal
def half(self, modified, part, stream):
    host, device = self._sides((0, 8))
    (device.copy_from if modified == 1 else device.copy_to)(host)
    os.kill(os.getpid(), signal.SIGKILL)
cs.SyncState._copy_part = half
"""


@pytest.mark.parametrize("call, state", [("host_to_device", HOST_DIRTY), ("device_to_host", DEVICE_DIRTY)])
def test_who_is_killed_in_a_copy_leaves_the_state(name, elsewhere, call, state):
    s = cs.zeros(8, "u1", name=name, **GPU)
    fill(s, np.full(8, 9, "u1"), on_device=state == DEVICE_DIRTY)
    other = elsewhere(name)
    other(KILLED)
    other.ask(f"s.{call}()")
    assert other.process.stdout.readline() == "" and other.process.wait(PATIENCE_S) < 0
    assert s.sync_state.state == state
    for stream in None, 1:
        with s.read(stream) as a:
            assert ((a if stream is None else a.copy_to_host()) == 9).all()
    assert s.sync_state.state == CLEAN


def test_who_is_killed_in_a_bracket_abandons_both_sides(name, elsewhere):
    s = cs.zeros(8, name=name, **GPU)
    for stream in None, 1:
        other = elsewhere(name)
        other(f"b = s.write({stream}); a = b.__enter__()")
        with pytest.raises(caid.TimedOutError), s.read(timeout=0):
            pass
        other.kill()
        with pytest.raises(caid.AbandonedError), s.read(stream):
            pass
        s.discard()
        with s.read(stream), pytest.raises(caid.DeadlockError), s.write():
            pass
        with pytest.raises(ZeroDivisionError), s.write(stream):
            1 / 0
        with pytest.raises(caid.AbandonedError), s.read():
            pass
        with s.write(stream):
            pass
        with s.read():
            pass


def test_an_impossible_state_is_refused(name, elsewhere):
    s = cs.zeros(4, "u1", name=name, **GPU)
    s[...] = 3
    other = elsewhere(name)
    for words in ((7, 0), (4 << 2 | 3, 0), (4 << 2 | 1, 9), (4 << 2, 0), (2**64 - 2, 0)):
        other(f"np.frombuffer(s._sync._words, 'u8')[:] = {words}")
        uses = (lambda: s.sync_state.state, s.synchronize, s.to_numpy, s.set_device_modified,
                lambda: s.read(1).__enter__())
        for use in uses:
            with pytest.raises(caid.CorruptError):
                use()
    other("np.frombuffer(s._sync._words, 'u8')[:] = 4 << 2 | 1, 3")
    assert (s.to_numpy() == 3).all() and s.sync_state.state == HOST_DIRTY


# --- mode "r" -------------------------------------------------------------------------------


@pytest.mark.parametrize("dirty", [CLEAN, HOST_DIRTY, DEVICE_DIRTY])
def test_mode_r_copies_for_itself_what_is_out_of_date(name, elsewhere, dirty):
    s = cs.zeros((3, 4), "i4", name=name, **GPU)
    values = np.arange(12, dtype="i4").reshape(3, 4)
    fill(s, values, on_device=dirty == DEVICE_DIRTY)
    if dirty == CLEAN:
        s.synchronize()
    other = elsewhere(name, "r")
    other("v = s[::-1, 1:3].T")
    reads = ("np.asarray(v)", "v.to_numpy()", "v[np.arange(2)]",
             "[a for a, in [cs.fields(read=[v]).__enter__()]][0]",
             "cs.fields(read=[v], device='gpu').__enter__()[0].copy_to_host()",
             "v.read().__enter__()", "v.copy().to_numpy()")
    for read in reads:
        assert other(f"np.asarray({read}).tolist()") == values[::-1, 1:3].T.tolist(), read
        assert s.sync_state.state == other("s.sync_state.state") == dirty
    kept = "np.asarray(s)"
    other(f"kept = {kept}; flags = kept.flags.writeable, s.to_numpy().flags.writeable")
    assert other("flags") == (False, False)
    fill(s, values + 1, on_device=True)
    assert other("np.asarray(s).tolist()") == (values + 1).tolist()
    if dirty == DEVICE_DIRTY:
        assert other("kept.tolist()") == values.tolist()
    for change in ("s.set_host_modified()", "s.write()", "s.publish('x')", "s.sync_state.__setattr__('state', 0)",
                   "cs.fields(write=[s], device='gpu').__enter__()"):
        assert other(change) is caid.ReadOnlyError
    assert other("s.device_to_host()") is caid.StaleError


def test_mode_r_without_a_copy(name, elsewhere):
    s = cs.zeros(4, name=name, **GPU)
    s[...] = 1
    reader = cs.open(name, copy=False)
    assert reader.to_numpy()[0] == 1 and reader.sync_state.state == HOST_DIRTY
    for use in (lambda: reader.read(1).__enter__(), lambda: cs.fields(read=[reader], device="gpu").__enter__(),
                lambda: reader.__cuda_array_interface__, lambda: reader.host_to_device()):
        with refuses(caid.StaleError, match="out of date"):
            use()
    with refuses(caid.StaleError):  # a dict keeps no copy
        cs.open(name).__cuda_array_interface__
    s.synchronize()
    assert caid.as_array(reader).copy_to_host()[0] == 1


# --- brackets -------------------------------------------------------------------------------


def add(s, stream):
    with s.write(stream) as a:
        if isinstance(a, np.ndarray):
            a += 1
        else:
            a.copy_from_host(a.copy_to_host() + 1)


@pytest.mark.parametrize("options", KINDS)
def test_brackets_order_processes(name, elsewhere, options):
    s = cs.zeros((4,), "i8", name=name, **options)
    other = elsewhere(name)
    other(inspect.getsource(add))
    for _ in range(20):
        other.ask("[add(s, stream) for stream in (None, 1)]")
        for stream in None, 1:
            add(s, stream)
        assert other.answer() == [None, None]
    for stream in None, 1:
        with s.read(stream) as a:
            assert np.asarray(a).tolist() == [80] * 4
    with pytest.raises(caid.InvalidError, match="no brackets"):
        cs.zeros(3).read()


@pytest.mark.parametrize("options", [{}, GPU])
def test_tasks_take_turns(name, options):
    """In the block the storage is used as the bracket's, by its task; the bracket's end is its thread's."""
    s = cs.zeros((4,), "i8", name=name, **options)

    async def add_one(stream):
        async with s.write(stream) as a:
            await asyncio.sleep(0)
            a[...] = np.asarray(s)[0] + 1
            s.set_device_modified() if stream and options else s.set_host_modified()
            s.synchronize()

    async def main():
        async with s.read() as a, s.read(1):
            tasks = [asyncio.ensure_future(add_one(stream)) for stream in (None, 1, None)]
            while caid.default_client().status().brackets < 3:
                await asyncio.sleep(0.001)
            tasks[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[1]
            assert np.asarray(a).tolist() == [0] * 4
        await asyncio.gather(tasks[0], tasks[2])
        with pytest.raises(KeyError):
            async with s.write():
                raise KeyError
        with pytest.raises(caid.AbandonedError):
            async with s.read():
                pass

    run_async(main())
    wait_until(lambda: "caid-bracket" not in [thread.name for thread in threading.enumerate()])
    for array in s._shared.arrays:
        array.discard()
    assert np.asarray(s).tolist() == [2] * 4 and caid.default_client().status().brackets == 0


# --- what is told ---------------------------------------------------------------------------


def test_caidctl_tells_the_state(name, daemon):
    s = cs.zeros((2, 3), name=name, **GPU)
    caidctl = pathlib.Path(caid.__file__).parent / "bin" / "caidctl"

    def show(*more):
        command = [caidctl, "--socket", daemon.address, *more, "show", name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def told():
        return re.search("^storage:? +(.*)$", show(), re.MULTILINE)[1], json.loads(show("--json"))["storage"]

    for state, words in enumerate(("in sync", "host modified", "device modified")):
        s.sync_state.state = state
        assert told() == (words, words)
    np.frombuffer(s._sync._words, "u8")[1] = 2**63
    assert told() == ("unknown", "unknown")
    s = cs.zeros((2, 3), **KINDS[1])
    s.publish(name)
    assert told() == ("one buffer", "one buffer")
