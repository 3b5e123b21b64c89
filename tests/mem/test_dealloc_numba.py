# SPDX-License-Identifier: Apache-2.0
"""Numba's own deallocation queue and caid's, side by side (docs/DEALLOCATION.md).

Both get the same histories. What they free, in which order, what they leave and when they begin
must be the same at every step. Where caid departs from Numba on purpose, that is said where it is
compared: after a failure Numba's byte count is stale (R7), caid's is not; the entry that failed is
forgotten there, quarantined and counted here.
"""
import ctypes
import os
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)
pytest.importorskip("numba", reason="Numba is not installed for this Python")
pytest.importorskip("hypothesis", reason="Hypothesis is not installed for this Python")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numba.core import config

try:
    from numba.cuda.cudadrv import driver

    driver._PendingDeallocs
except (ImportError, AttributeError) as error:
    pytest.skip(f"this Numba has no _PendingDeallocs: {error}", allow_module_level=True)
driver._logger = driver.make_logger()  # 0.56.4 makes it when a device is first used

DOOR = ctypes.CDLL(os.path.join(os.environ["CAID_BUILD_DIR"], "tests", "libcaid-mem-door.so"))
DOOR.door_new.restype = ctypes.c_void_p
DOOR.door_max_bytes.restype = ctypes.c_uint64
for _name, _args in {
    "door_free": [],
    "door_limits": [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double],
    "door_max_bytes": [],
    "door_add": [ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64],
    "door_begin": [],
    "door_next": [ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)],
    "door_done": [ctypes.c_uint64, ctypes.c_int],
    "door_hold": [],
    "door_unhold": [],
    "door_figures": [ctypes.POINTER(ctypes.c_uint64)],
}.items():
    getattr(DOOR, _name).argtypes = [ctypes.c_void_p, *_args]
UNKNOWN = None  # a size


class ReleaseFailed(Exception):
    """A destructor's."""


class Item:
    """One thing to free, for both sides."""

    def __init__(self, number, size, owner=0, fails=False, child=None):
        self.number, self.size, self.owner = number, size, owner
        self.fails, self.child = fails, child

    @property
    def bytes(self):
        return self.size or 0


class Ours:
    """caid's queue, flushed as Numba flushes: when an add says so, and by clear()."""

    def __init__(self):
        self.door = DOOR.door_new()
        self.items, self.called = {}, []

    def close(self):
        DOOR.door_free(self.door)

    def add(self, item):
        self.items[item.number] = item
        wanted = DOOR.door_add(self.door, item.owner, item.number, item.bytes)
        assert wanted >= 0
        if wanted:
            self.clear()

    def clear(self):
        number, size = ctypes.c_uint64(), ctypes.c_uint64()
        DOOR.door_begin(self.door)
        while DOOR.door_next(self.door, number, size):
            item = self.items.pop(number.value)
            assert size.value == item.bytes
            self.called.append(item.number)
            if item.child:
                self.add(item.child)
            DOOR.door_done(self.door, size, item.fails)
            if item.fails:
                raise ReleaseFailed

    def figures(self):
        ret = (ctypes.c_uint64 * 5)()
        DOOR.door_figures(self.door, ret)
        return dict(zip(("n", "bytes", "freed", "quarantined", "bytes_quarantined"), ret))


class Numba:
    def __init__(self):
        self.queue = driver._PendingDeallocs(capacity=0)
        self.called = []

    def add(self, item):
        if item.size is UNKNOWN:
            self.queue.add_item(self.destroy, item)
        else:
            self.queue.add_item(self.destroy, item, item.size)

    def destroy(self, item):
        self.called.append(item.number)
        if item.child:
            self.add(item.child)
        if item.fails:
            raise ReleaseFailed

    def exact_bytes(self):
        return sum(int(size) for _, _, size in self.queue._cons)


def outcome(call, *args):
    try:
        call(*args)
    except ReleaseFailed:
        return "failed"
    return "done"


SIZES = st.one_of(st.none(), st.integers(0, 300), st.integers(0, 1 << 40))
OWNERS = st.integers(0, 2)


class SideBySide(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.saved = config.CUDA_DEALLOCS_COUNT, config.CUDA_DEALLOCS_RATIO
        self.ours, self.numba = Ours(), Numba()
        self.disabled = []
        self.number = self.failures = 0

    def teardown(self):
        config.CUDA_DEALLOCS_COUNT, config.CUDA_DEALLOCS_RATIO = self.saved
        while self.disabled:
            self.disabled.pop().__exit__(None, None, None)
        self.ours.close()

    def item(self, *args, **kwargs):
        self.number += 1
        return Item(self.number, *args, **kwargs)

    def both(self, ours, numba, *args):
        here, there = outcome(ours, *args), outcome(numba, *args)
        assert here == there
        if there == "failed":
            self.failures += 1
            exact = self.numba.exact_bytes()
            assert self.numba.queue._size >= exact  # R7: stale
            self.numba.queue._size = exact

    @initialize(capacity=st.sampled_from([0, 1, 1000, 1 << 40]))
    def start(self, capacity):
        self.limits(capacity, 10, 0.2)

    @rule(capacity=st.one_of(st.integers(0, 2000), st.integers(0, 1 << 48)),
          count=st.integers(0, 12), ratio=st.one_of(st.just(0.2), st.floats(0, 1)))
    def limits(self, capacity, count, ratio):
        config.CUDA_DEALLOCS_COUNT, config.CUDA_DEALLOCS_RATIO = count, ratio
        self.numba.queue.memory_capacity = capacity
        DOOR.door_limits(self.ours.door, count, capacity, ratio)

    @rule(size=SIZES, owner=OWNERS)
    def add(self, size, owner):
        self.both(self.ours.add, self.numba.add, self.item(size, owner))

    @rule(sizes=st.lists(st.integers(0, 300), min_size=5, max_size=12), owner=OWNERS)
    def add_many(self, sizes, owner):
        for size in sizes:
            self.add(size, owner)

    @rule(size=SIZES, owner=OWNERS)
    def add_one_that_fails(self, size, owner):
        self.both(self.ours.add, self.numba.add, self.item(size, owner, fails=True))

    # A destructor of Numba's that adds may flush in the middle of a flush. In caid a flush is one
    # loop. The order is the same as long as such a destructor adds one entry and then succeeds.
    @rule(size=SIZES, owner=OWNERS, child_size=SIZES, child_owner=OWNERS, child_fails=st.booleans())
    def add_one_that_adds(self, size, owner, child_size, child_owner, child_fails):
        child = self.item(child_size, child_owner, fails=child_fails)
        self.both(self.ours.add, self.numba.add, self.item(size, owner, child=child))

    @rule()
    def clear(self):
        self.both(self.ours.clear, self.numba.queue.clear)

    @precondition(lambda self: len(self.disabled) < 4)
    @rule()
    def disable(self):
        self.disabled.append(self.numba.queue.disable())
        self.disabled[-1].__enter__()
        DOOR.door_hold(self.ours.door)

    @precondition(lambda self: self.disabled)
    @rule()
    def enable(self):
        self.disabled.pop().__exit__(None, None, None)
        DOOR.door_unhold(self.ours.door)

    @invariant()
    def agree(self):
        figures = self.ours.figures()
        assert self.ours.called == self.numba.called
        assert figures["n"] == len(self.numba.queue)
        assert figures["bytes"] == self.numba.queue._size == self.numba.exact_bytes()
        assert figures["quarantined"] == self.failures
        assert figures["freed"] + figures["quarantined"] == len(self.ours.called)
        assert DOOR.door_max_bytes(self.ours.door) == self.numba.queue._max_pending_bytes


SideBySide.TestCase.settings = settings(
    max_examples=int(os.environ.get("CAID_TEST_EXAMPLES", "150")),
    stateful_step_count=60,
    deadline=None,
    database=None,
    print_blob=True,
)
TestSideBySide = SideBySide.TestCase


@pytest.fixture
def sides():
    machine = SideBySide()
    yield machine
    machine.teardown()


def test_r7_the_fourth_of_eleven_fails(sides):
    sides.limits(1000, 10, 0.2)
    items = [sides.item(1, fails=i == 3) for i in range(11)]
    for item in items[:10]:
        sides.numba.add(item)
        sides.ours.add(item)
    for side in sides.numba, sides.ours:
        with pytest.raises(ReleaseFailed):
            side.add(items[10])
    assert sides.numba.called == sides.ours.called == [item.number for item in items[:4]]
    assert len(sides.numba.queue) == sides.ours.figures()["n"] == 7
    assert sides.numba.queue._size == 11  # stale, until all has been drained
    assert sides.ours.figures() == {
        "n": 7, "bytes": 7, "freed": 3, "quarantined": 1, "bytes_quarantined": 1}


def test_r3_the_limit_is_exclusive(sides):
    sides.limits(1000, 10, 0.2)
    sides.add(200, 0)
    assert sides.numba.called == []
    sides.add(1, 1)
    assert sides.numba.called == sides.ours.called == [1, 2]


def test_r16_what_a_destructor_adds_is_freed_in_the_same_flush(sides):
    sides.limits(1 << 40, 10, 0.2)
    sides.add_one_that_adds(1, 0, 1, 1, False)
    sides.clear()
    assert len(sides.numba.called) == 2
    sides.agree()
