# SPDX-License-Identifier: Apache-2.0
"""The two C functions that PyTorch's pluggable allocator is made of, by themselves. caid.torch and
caid.cupy are in test_frameworks.py."""

import ctypes
import itertools
import os
import random
import signal

import frameworks
import pytest
from conftest import in_threads, wait_until

import caid
from caid import _caid

KIB, MIB = 1 << 10, 1 << 20
SMALL = f'[pool "small"]\nowner = {os.getuid()}\nmode = 0600\nquota = 64M\n'

ordinals = itertools.count(100)  # the table of arenas is the process's: each test has its own entry
functions = frameworks.PluggableAllocator(_caid.__file__, "caid_torch_malloc", "caid_torch_free")


def torch_error():
    error = _caid.torch_error()
    assert _caid.torch_error() is None
    return error


@pytest.fixture(autouse=True)
def no_error_left():
    yield
    assert _caid.torch_error() is None


class Entry:
    """An entry of the table: an ordinal, its arena, and the two functions for it."""

    def __init__(self, arena):
        self.arenas, self.ordinal = [], next(ordinals)
        self.set(arena)

    @property
    def arena(self):
        return self.arenas[-1]

    def set(self, arena):
        self.arenas.append(arena)
        _caid.torch_set(self.ordinal, arena)

    def malloc(self, nbytes, stream=None):
        return functions.malloc(nbytes, self.ordinal, stream)

    def free(self, ptr, nbytes=0):
        functions.free(ptr, nbytes, self.ordinal, None)


@pytest.fixture
def entry(client):
    e = Entry(client.arena(max_pending_count=0))
    yield e
    for arena in e.arenas:
        assert arena.info.allocations == 0
        arena.trim()
        assert arena.info.blocks == 0


# --- the two functions ----------------------------------------------------------------------


def test_nothing_else_is_exported():
    library = ctypes.CDLL(_caid.__file__)
    assert hasattr(library, "caid_torch_malloc") and hasattr(library, "PyInit__caid")
    for name in ("caid_connect", "caid_arena_alloc", "py_torch_set"):
        assert not hasattr(library, name), name


def test_memory_is_the_arenas(entry, soft):
    ptr = entry.malloc(MIB)
    assert ptr % 512 == 0
    assert entry.arena.find(ptr + 100)[:2] == (ptr, MIB)
    ctypes.memset(ptr, 7, MIB)
    assert entry.malloc(MIB + 1) not in (None, ptr)
    assert (entry.arena.info.allocations, entry.arena.info.allocated) == (2, 2 * MIB + 1)
    entry.free(ptr, MIB)
    for p in [p for p in range(ptr, ptr + 4 * MIB, 512) if is_allocated(entry, p)]:
        entry.free(p)


def is_allocated(entry, ptr):
    try:
        return entry.arena.find(ptr)[:2] == (ptr, MIB + 1)
    except caid.NotFoundError:
        return False


def test_no_bytes_are_no_memory_and_no_error(entry):
    assert entry.malloc(0) is None
    entry.free(None)
    assert _caid.torch_error() is None


@pytest.mark.parametrize("nbytes", [-1, -(1 << 63)])
def test_fewer_bytes_than_none(entry, nbytes):
    assert entry.malloc(nbytes) is None
    error = torch_error()
    assert type(error) is caid.InvalidError and str(nbytes) in str(error)


@pytest.mark.parametrize("nbytes", [1 << 45, 1 << 62, (1 << 63) - 1])
def test_more_than_there_is(entry, nbytes):
    assert entry.malloc(nbytes) is None
    assert isinstance(torch_error(), caid.Error)
    ptr = entry.malloc(KIB)
    assert ptr
    entry.free(ptr)


def test_a_device_that_has_no_arena(client):
    assert functions.malloc(KIB, 99, None) is None
    error = torch_error()
    assert type(error) is caid.DeviceError and "device 99" in str(error)
    functions.free(4096, KIB, 99, None)
    assert type(torch_error()) is caid.InvalidError


def test_only_the_last_error_is_told(entry):
    entry.malloc(-5)
    entry.malloc(-6)
    assert "-6" in str(torch_error())


def test_freeing_what_was_not_allocated(entry):
    ptr = entry.malloc(KIB)
    for wrong in (ptr + 512, 512, 1 << 60):
        entry.free(wrong)
        assert type(torch_error()) is caid.InvalidError
    functions.free(ptr, KIB, entry.ordinal + 1000, None)
    assert type(torch_error()) is caid.InvalidError
    entry.free(ptr)
    entry.free(ptr)
    assert type(torch_error()) is caid.InvalidError


def test_only_arenas_are_set(client):
    with pytest.raises(TypeError):
        _caid.torch_set(1, client)
    with pytest.raises(TypeError):
        _caid.torch_set("cuda", client)
    arena = client.arena()
    arena.close()
    with pytest.raises(caid.ClosedError):
        _caid.torch_set(next(ordinals), arena)


def test_nothing_that_is_freed_waits_in_a_queue(entry):
    """PyTorch has a cache of its own."""
    for _ in range(20):
        entry.free(entry.malloc(20 * MIB))
        assert entry.arena.info.pending == 0
    entry.arena.trim()
    assert entry.arena.info.bytes == 0


def test_from_many_threads(entry, soft):
    """With no GIL, as PyTorch's own threads: nobody gets what another has."""

    def work(seed):
        rng, held = random.Random(seed), []
        for _ in range(300):
            if held and rng.random() < 0.5:
                ptr, nbytes = held.pop(rng.randrange(len(held)))
                assert ctypes.string_at(ptr, nbytes) == bytes([seed]) * nbytes
                entry.free(ptr, nbytes)
            else:
                nbytes = rng.randrange(1, 8 * KIB)
                ptr = entry.malloc(nbytes)
                ctypes.memset(ptr, seed, nbytes)
                held.append((ptr, nbytes))
        for ptr, nbytes in held:
            entry.free(ptr, nbytes)

    in_threads(6, lambda i: work(i + 1))


def test_a_later_arena_allocates_and_the_earlier_frees(entry, client):
    first, old = entry.arena, entry.malloc(KIB)
    entry.set(client.arena())
    entry.set(entry.arena)  # once more is nothing
    new = entry.malloc(KIB)
    assert entry.arena.find(new)[0] == new
    assert first.info.allocations == entry.arena.info.allocations == 1
    entry.free(old)
    assert (first.info.allocations, entry.arena.info.allocations) == (0, 1)
    entry.free(new)


def test_an_allocation_does_not_end_a_capture(entry, client, streams):
    """What was freed is not made reusable meanwhile, although another block has to be leased: nor by
    threads that do not capture."""
    entry.set(client.arena(block_size=2 * MIB))
    entry.free(entry.malloc(KIB))
    with streams[0].captures():
        mine, others = entry.malloc(30 * MIB, streams[0].number), entry.malloc(30 * MIB, streams[1].number)
    assert mine and others and entry.arena.info.pending == 1
    entry.free(mine)
    entry.free(others)


def test_nor_does_one_that_is_short(streams):
    """It fails, rather than the graph."""
    with caid.LocalDaemon(config=SMALL) as d, d.connect() as c:
        e = Entry(c.arena(pool="small"))
        e.free(e.malloc(40 * MIB))
        with streams[0].captures():
            assert e.malloc(50 * MIB, streams[0].number) is None
            assert type(torch_error()) is caid.QuotaError
        ptr = e.malloc(50 * MIB, streams[0].number)
        assert ptr
        e.free(ptr)


def test_threads_that_are_short_at_once():
    """What one has freed is for the other."""
    with caid.LocalDaemon(config=SMALL) as d, d.connect() as c:
        e = Entry(c.arena(pool="small", max_pending_count=0))

        def work(seed):
            for i in range(60):  # blocks of 17 to 20 MiB, of which three have room
                ptr = e.malloc((17 + (7 * i + seed) % 4) * MIB)
                if ptr is None:
                    return torch_error()
                e.free(ptr)

        in_threads(3, work)


CODE = """
import ctypes, os
import frameworks
from caid import _caid
f = frameworks.PluggableAllocator(_caid.__file__, "caid_torch_malloc", "caid_torch_free")
c = caid.connect()
arena = c.arena()
_caid.torch_set(0, arena)
ptr = f.malloc(1000, 0, None)
ctypes.memset(ptr, 7, 1000)
"""


def test_after_the_arena_and_the_client_are_closed(child, soft):
    """What was allocated stays; there is no more; all can be freed."""
    c = child(CODE + """
arena.close()
assert f.malloc(1000, 0, None)
c.close()
del arena, c
assert f.malloc(64 << 20, 0, None) is None
print(type(_caid.torch_error()).__name__)
assert ctypes.string_at(ptr, 1000) == bytes([7]) * 1000
f.free(ptr, 1000, 0, None)
print(_caid.torch_error())
""")
    c.expect("ClosedError")
    c.expect("None")
    assert c.finish() == (0, "")


def test_when_the_daemon_is_gone(soft):
    """What was leased is used on, and then there is no more."""
    with caid.LocalDaemon() as d, d.connect() as c:
        e = Entry(c.arena())
        ptr = e.malloc(KIB)
        os.kill(d.pid, signal.SIGKILL)
        wait_until(
            lambda: e.malloc(64 * MIB) is None
            and type(_caid.torch_error()) is caid.DisconnectedError
        )
        other = e.malloc(KIB)
        assert other and other != ptr
        e.free(other)
        e.free(ptr)


def test_in_a_forked_child(child, soft):
    c = child(CODE + """
pid = os.fork()
if pid == 0:
    nothing = f.malloc(1000, 0, None)
    error = _caid.torch_error()
    f.free(ptr, 1000, 0, None)
    os._exit(0 if nothing is None and type(error) is caid.ForkedError else 1)
print(os.waitpid(pid, 0)[1])
f.free(ptr, 1000, 0, None)
print(_caid.torch_error())
c.close()
""")
    c.expect("0")
    c.expect("None")
    status, errors = c.finish()
    assert status == 0, errors


@pytest.mark.parametrize("closed", [False, True])
def test_after_the_interpreter(child, soft, closed):
    """The C library calls malloc(status of the process, 0), when Python is gone."""
    c = child(CODE + """
libc = ctypes.CDLL(None)
libc.on_exit.argtypes = ctypes.c_void_p, ctypes.c_void_p
assert libc.on_exit(ctypes.cast(f.malloc, ctypes.c_void_p), 0) == 0
if CLOSED:
    c.close()
sys.exit(64)
""".replace("CLOSED", str(closed)))
    status, errors = c.finish()
    assert status == 64, errors
