# SPDX-License-Identifier: Apache-2.0
"""What all tests share: a daemon, a client whose arrays have to be gone at the end, and child
processes that are told what to do line by line."""

import asyncio
import contextlib
import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
import time
import uuid

import hypothesis
import numpy
import pytest

os.environ.setdefault("CAID_CUDA_DRIVER", "soft")
# A software device of our own: in the figures of a shared one there would be others' memory.
os.environ.setdefault("CAID_SOFTCUDA_UUID", str(uuid.uuid4()))
os.environ.pop("CAID_CAI_EXPORT_VERSION", None)
os.environ.pop("CAID_CAI_SYNC", None)

import caid  # noqa: E402

PATIENCE_S = 60  # for what has to happen: passing it is a failure, no measure of speed
LEGACY = "[user-pools]\nlegacy = yes\n"  # arrays of that kind may be created

hypothesis.settings.register_profile("caid", database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("caid")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    # Python's warning of fork() in a process with threads: some tests are about just that.
    config.addinivalue_line("filterwarnings", "ignore:.*fork:DeprecationWarning")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    item.failed = getattr(item, "failed", False) or outcome.get_result().failed


def wait_until(condition, facts=lambda: ""):
    """Waits for what another thread or process brings about. facts() is said if it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about {facts()}"
        time.sleep(0.005)


def is_asleep(task):
    """Whether that task of /proc has come to wait: it sleeps whenever one looks."""
    states = set()
    for _ in range(3):
        states.add(pathlib.Path("/proc", task, "stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.01)
    return states == {"S"}


def until_it_waits(thread):
    """Until its call waits. A thread that has not come so far, or waits for a processor, does not sleep."""
    wait_until(lambda: is_asleep(f"self/task/{thread.native_id}"))


def at_last(call):
    """What a call gives, however often its client has too little time for it."""
    results = []

    def is_done():
        with contextlib.suppress(caid.TimeoutError):
            results.append(call())
        return results

    wait_until(is_done)
    return results[0]


def n_blocks(client):
    """That memory is freed in is kept for the next who wants some, and for a while: not now."""
    client.flush()
    return client.memory_info().blocks


def n_leases(client):
    """A close is told when the GPU is done with the array; flush() waits for its own client's."""
    client.flush()
    return client.status().leases


@pytest.fixture(scope="session")
def daemon():
    """One for all tests of a file. At its end it has leaked nothing, where that is looked for."""
    d = caid.LocalDaemon(config=LEGACY, env={"ASAN_OPTIONS": "detect_leaks=1"})
    yield d
    log = d.log()
    assert d.stop() == 0, log


def figures(status):
    return status.connections, status.arrays, status.leases, status.names


@pytest.fixture
def client(daemon, request):
    """A client; afterwards nothing may be left at the daemon, but of a test that has failed: its traceback
    keeps what it had."""
    with daemon.connect() as c:
        yield c
        if not c.closed:
            for entry in c.list():
                if not entry.of_set:
                    c.unlink(entry.name)
    if request.node.failed:
        return
    gc.collect()
    with daemon.connect() as c:
        wait_until(lambda: (c.withdraw(gone=True), n_blocks(c))[1] == 0, facts=lambda: (c.status(), c.memory_info(), gc.collect(), n_blocks(c)))
        wait_until(lambda: figures(c.status()) == (1, 0, 0, 0), facts=c.status)  # what a set had goes one by one
        assert c.status().release_errors == 0


@pytest.fixture
def arena(client):
    with client.arena() as a:
        yield a
    gc.collect()  # what holds memory when its client is closed keeps it until the process exits


@pytest.fixture
def soft(client):
    """For tests of what only the software driver has."""
    if not client.host_accessible:
        pytest.skip("on the software driver only")


class Stream:
    """A CUDA stream of the software driver, with a gate that holds up what comes after."""

    def __init__(self, flags=0, own_context=False):
        self.driver = ctypes.CDLL(caid.softcuda_path())
        context, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        self.own_context = context if own_context else None
        self.call("cuInit", 0)
        if own_context:
            self.call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        else:
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", ctypes.byref(self.handle), flags)
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.hold)

    @property
    def number(self):
        return self.handle.value

    def call(self, name, *args):
        assert getattr(self.driver, name)(*args) == 0, name

    def hold(self, _unused):
        self.waiting.set()
        self.gate.wait()

    def hold_up(self):
        self.call("cuLaunchHostFunc", self.handle, self.callback, None)
        self.waiting.wait()

    def hold_up_copy(self, array, value):
        """A copy of the value to all elements is on the stream, and held up."""
        data = caid.pinned_array(array.shape, array.typestr, client=array._memory.client)
        data[...] = value
        self.hold_up()
        array.copy_from_host(data, stream=self.number)

    def fill(self, array, byte):
        address, n = ctypes.c_uint64(array.ptr), ctypes.c_size_t(array.nbytes)
        self.call("cuMemsetD8Async", address, ctypes.c_ubyte(byte), n, self.handle)

    def read(self, array, out):
        """Enqueues a copy to page-locked memory."""
        address, n = ctypes.c_uint64(array.ptr), ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(out.ctypes.data), address, n, self.handle)

    @contextlib.contextmanager
    def captures(self, mode=2):
        """A graph, of nothing, in mode RELAXED as CuPy's. It fails where something has ended it."""
        graph = ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.handle, mode)
        yield
        self.call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
        self.call("cuGraphDestroy", graph)

    def synchronize(self):
        self.call("cuStreamSynchronize", self.handle)

    def close(self):
        self.gate.set()
        self.synchronize()
        self.call("cuStreamDestroy_v2", self.handle)
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        if self.own_context:
            self.call("cuCtxDestroy_v2", self.own_context)
        else:
            self.call("cuDevicePrimaryCtxRelease_v2", 0)


def softcuda(command):
    """What this process's software driver answers to a command of driver/soft/control.h."""
    answer = ctypes.create_string_buffer(1 << 16)
    driver = ctypes.CDLL(caid.softcuda_path())
    assert driver.caid_softcuda_control(command.encode(), answer, len(answer)) >= 0, command
    return answer.value.decode()


def n_live(kind):
    """How many "streams", "events", ... this process has."""
    return int(dict(line.split() for line in softcuda("live").splitlines())[kind])


@pytest.fixture
def other(daemon, client):
    """Another connection: its brackets and timelines are another's."""
    with daemon.connect() as c:
        yield c


@pytest.fixture
def shared(client, other):
    """One array that two clients have open."""
    with client.create("shared", 1000, "<i4") as a, other.open("shared", "rw") as b:
        a.copy_from_host(bytes(4000))
        yield a, b


@pytest.fixture
def memops(client):
    """For tests in which streams wait and the host does not."""
    if client.devices[0].handoff != "memops":
        pytest.skip(f"the hand-off of the device is by {client.devices[0].handoff!r}")


@pytest.fixture
def slow(soft):
    """Every operation on a stream of this process starts late."""
    softcuda("delay 20000")
    yield
    softcuda("delay 0")


def import_foreign(name):
    """Of the environment of foreign programs, which ./dev fetches, but nothing else from there."""
    root = pathlib.Path(__file__).resolve().parents[2] / "build" / "consumers"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path.append(str(root / "lib" / version / "site-packages"))
    try:
        return pytest.importorskip(name)
    finally:
        sys.path.pop()


@contextlib.contextmanager
def refuses(*errors, match=None):
    """pytest.raises(), of an attribute, too."""
    with pytest.raises((*errors, caid.UnavailableError), match=match) as raised:
        yield
    e = raised.value
    is_one = isinstance(e.__cause__ if isinstance(e, caid.UnavailableError) else e, errors)
    del e, raised  # whose traceback has what the test has
    assert is_one


def in_thread(work):
    """(thread, list that gets its result or its exception)"""
    ended = []

    def run():
        try:
            ended.append(work())
        except BaseException as e:
            ended.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


def in_threads(n, work):
    """work(i) in n threads at once: they come to their ends, and none fails."""
    threads = [in_thread(lambda i=i: work(i)) for i in range(n)]
    for thread, _ in threads:
        thread.join(PATIENCE_S)
    assert [ended for _, ended in threads] == [[None]] * n


def in_a_thread(call):
    """(thread, [result]) of a call that has to wait: [] until then."""
    thread, results = in_thread(call)
    thread.join(0.05)  # whether it waits is shown by what it gives, not by the time
    return thread, results


def after_gate(gate, call):
    """What a call gives that has to wait, until the gate is opened."""
    thread, results = in_a_thread(call)
    assert results == []
    gate.set()
    thread.join()
    return results[0]


def run_async(main):
    return asyncio.run(asyncio.wait_for(main, PATIENCE_S))


class Held:
    """Holds a stream of caid's up until it is let go."""

    def __init__(self, stream):
        self.gate, self.waiting = threading.Event(), threading.Event()
        stream.add_callback(self.hold)
        assert self.waiting.wait(PATIENCE_S)

    def hold(self, *_):
        self.waiting.set()
        self.gate.wait(PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gate.set()


@pytest.fixture
def counted(client):
    """An array that counts up, and its twin."""
    twin = numpy.arange(24, dtype="<i4").reshape(4, 6)
    with client.array(twin) as a:
        yield a, twin


def forked(*refused, work=lambda: None):
    """A forked child, in which the calls raise ForkedError and work() does not fail."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for use in refused:
                with refuses(caid.ForkedError):
                    use()
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


NON_BLOCKING = 1  # of CU_STREAM_*: apart from the legacy default stream


@pytest.fixture
def stream(soft):
    s = Stream()
    yield s
    s.close()


@pytest.fixture
def elsewhere(soft):
    """A stream of a context that the test has made, not of the primary one."""
    s = Stream(own_context=True)
    yield s
    s.close()


@pytest.fixture
def streams(soft):
    """Two streams that nothing orders."""
    made = Stream(NON_BLOCKING), Stream(NON_BLOCKING)
    yield made
    for s in made:
        s.gate.set()
    for s in made:
        s.close()


class Child:
    """A Python process that runs `code`. It answers each line that it is sent with one line."""

    def __init__(self, code, env, *args, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), *map(str, args)],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.pid = self.process.pid

    def expect(self, line):
        got = self.process.stdout.readline()
        assert got == f"{line}\n", f"{got!r}, not {line!r}; {self.finish()}"

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def finish(self):
        """(status, stderr) at its end."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


PREAMBLE = f"""\
import sys
sys.path.append({os.path.dirname(__file__)!r})
import caid

def step(line):
    print(line, flush=True)
    if not sys.stdin.readline():
        sys.exit("the test has gone")

"""


@pytest.fixture
def child(daemon):
    """child(code, *args, **env): starts one; all are ended with the test."""
    children = []

    def start(code, *args, **env):
        children.append(Child(code, {**daemon.env, **env}, *args))
        return children[-1]

    yield start
    for c in children:
        c.kill()
