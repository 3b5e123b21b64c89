# SPDX-License-Identifier: Apache-2.0
"""Copies of any layout to any layout, with NumPy as the oracle."""

import array
import gc
import sys
import weakref

import numpy as np
import pytest
from conftest import in_a_thread, in_threads, softcuda
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import caid

in_fixture = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def layouts(draw, shape):
    """(base shape, view): a function that shows `shape` in an array of the base shape."""
    axes = draw(st.permutations(range(len(shape))))
    steps = draw(st.tuples(*[st.sampled_from([1, 1, 2, -1, -2]) for _ in shape]))
    starts = draw(st.tuples(*[st.integers(0, 2) for _ in shape]))
    base = tuple(shape[axis] * abs(by) + start for axis, by, start in zip(axes, steps, starts))

    def view(a):
        for i, (axis, by, start) in enumerate(zip(axes, steps, starts)):
            lead = (slice(None),) * i
            a = a[(*lead, slice(start, None))][(*lead, slice(None, None, by))]
            a = a[(*lead, slice(0, shape[axis]))]
        back = [axes.index(i) for i in range(len(shape))]
        return a.transpose(back) if shape else a

    return base, view


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def counting(shape, dtype="<i4"):
    return np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)


@in_fixture
@given(st.data(), shapes, st.sampled_from(["|u1", "<i2", "<i4", "<c16", "|V3"]))
def test_from_the_host_and_back(client, data, shape, dtype):
    base, view = data.draw(layouts(shape))
    host_base, host_view = data.draw(layouts(shape))
    rng = np.random.default_rng(0)
    itemsize = np.dtype(dtype).itemsize
    source = rng.integers(0, 255, (*host_base, itemsize), "u1").view(dtype)[..., 0]
    twin = np.zeros(base, dtype)
    with client.empty(base, dtype) as a:
        a.copy_from_host(twin)
        view(a).copy_from_host(host_view(source))
        view(twin)[...] = host_view(source)
        assert a.copy_to_host().tobytes() == twin.tobytes()
        back, back_twin = np.zeros(host_base, dtype), np.zeros(host_base, dtype)
        view(a).copy_to_host(host_view(back))
        host_view(back_twin)[...] = view(twin)
        assert back.tobytes() == back_twin.tobytes()


@in_fixture
@given(st.data(), shapes)
def test_from_device_to_device(client, data, shape):
    (base_a, view_a), (base_b, view_b) = data.draw(layouts(shape)), data.draw(layouts(shape))
    with client.empty(base_a, "<i4") as a, client.empty(base_b, "<i4") as b:
        a.copy_from_host(counting(base_a))
        b.copy_from_host(np.zeros(base_b, "<i4"))
        view_b(b).copy_from(view_a(a))
        expected = np.zeros(base_b, "<i4")
        view_b(expected)[...] = view_a(counting(base_a))
        np.testing.assert_array_equal(b.copy_to_host(), expected)


@in_fixture
@given(st.data(), shapes)
def test_within_one_array(client, data, shape):
    """Overlapping or not, also through two mappings of the same memory."""
    (base_a, view_a), (base_b, view_b) = data.draw(layouts(shape)), data.draw(layouts(shape))
    n = max(int(np.prod(base_a)), int(np.prod(base_b)))
    shown = {base: (slice(0, int(np.prod(base))),) for base in (base_a, base_b)}
    with client.create("within", n, "<i4") as a, client.open("within") as read:
        client.unlink("within")
        for source in (a, read):
            a.copy_from_host(counting(n))
            expected = counting(n)
            view_b(expected[shown[base_b]].reshape(base_b))[...] = view_a(
                counting(n)[shown[base_a]].reshape(base_a)
            )
            target = view_b(a[shown[base_b]].reshape(base_b))
            target.copy_from(view_a(source[shown[base_a]].reshape(base_a)))
            np.testing.assert_array_equal(a.copy_to_host(), expected)


def test_copy_to_is_copy_from_the_other_way(client):
    x = np.zeros((2, 3), "<i4")
    with client.empty((2, 3), "<i4") as a, client.empty((2, 3), "<i4") as b:
        a.copy_from(counting((2, 3)))
        a.copy_to(b)
        b.copy_to(x)
    np.testing.assert_array_equal(x, counting((2, 3)))


def test_buffers_without_numpy(client):
    with client.empty((2, 3), "<i4") as a:
        a.copy_from_host(bytes(range(24)))
        for out in (bytearray(24), memoryview(bytearray(24)), array.array("B", bytes(24))):
            assert a.copy_to_host(out) is out
            assert bytes(out) == bytes(range(24))
        typed = array.array("i", [0] * 3)
        a[1].copy_to_host(typed)
        assert typed.tobytes() == bytes(range(12, 24))
        a[:, ::2].copy_from(b"\xff" * 16)
        assert (a.copy_to_host()[:, ::2] == -1).all() and (a.copy_to_host()[:, 1] >= 0).all()


def test_broadcast_sources_are_arrays_like_others(client):
    with client.empty((3, 4), "<i4") as a:
        a.copy_from_host(np.broadcast_to(np.int32(7), (3, 4)))
        assert (a.copy_to_host() == 7).all()


def test_lists_have_the_type_that_numpy_gives_them(client):
    with client.empty(3, "<f8") as a:
        a.copy_from_host([1.0, 2.0, 3.0])
        np.testing.assert_array_equal(a.copy_to_host(), [1, 2, 3])


def test_what_does_not_match(client):
    with client.empty((2, 3), "<i4") as a:
        for x, error, what in [
            (np.zeros((3, 2), "<i4"), ValueError, r"shapes differ: \(3, 2\) to \(2, 3\)"),
            (np.zeros(3, "<i4"), ValueError, "shapes differ"),
            (np.zeros((2, 3), "<f4"), TypeError, "types differ: <f4 to <i4"),
            (np.zeros((2, 3), ">i4"), TypeError, "types differ"),
            (b"x" * 23, ValueError, "the buffer has 23 bytes, the array 24"),
            (b"", ValueError, "the buffer has 0 bytes, the array 24"),
            (np.zeros((2, 3), object), caid.InvalidError, "Python objects"),
            (np.ma.zeros((2, 3), "<i4"), NotImplementedError, "masked"),
        ]:
            with pytest.raises(error, match=what):
                a.copy_from_host(x)
            with pytest.raises(error, match=what):
                a.copy_from(x)
        with pytest.raises(TypeError, match="device memory"):
            a.copy_from_host(a)
        with pytest.raises(TypeError, match="list: neither array nor buffer"):
            a.copy_to_host([0] * 6)
        with pytest.raises(ValueError, match="read-only"):
            a.copy_to_host(bytes(24))
        locked = np.zeros((2, 3), "<i4")
        locked.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            a.copy_to(locked)
    with client.empty((0, 3), "<i4") as a:
        a.copy_from_host(b"")
        with pytest.raises(ValueError, match="the buffer has 1 bytes, the array 0"):
            a.copy_from_host(b"x")


def test_a_read_only_array_is_not_written(client):
    with client.create("a", 3, "<i4") as a, client.open("a") as b:
        a.copy_from_host(counting(3))
        for write in (lambda: b.copy_from_host(counting(3)), lambda: b[::2].copy_from(a[::2])):
            with pytest.raises(caid.ReadOnlyError, match="array 'a' is read-only"):
                write()
        with pytest.raises(caid.ReadOnlyError):
            a.copy_to(b)
        np.testing.assert_array_equal(b.copy_to_host(), counting(3))


def test_many_threads_copy_at_once(client):
    with client.empty((8, 4096), "<i4") as a:

        def work(i):
            for k in range(20):
                a[i].copy_from_host(np.full(4096, i * 1000 + k, "<i4"))
                assert (a[i].copy_to_host() == i * 1000 + k).all()

        in_threads(8, work)


def test_empty_like(client):
    f = np.zeros((2, 3), "<i2", order="F")
    with client.empty((4, 5), "<f4") as a:
        for like, shape, typestr, strides in [
            (a, (4, 5), "<f4", (20, 4)),
            (a.T, (5, 4), "<f4", (4, 20)),
            (a[::2, ::2], (2, 3), "<f4", (12, 4)),
            (f, (2, 3), "<i2", (2, 4)),
            ([1.5, 2.5], (2,), "<f8", (8,)),
            (np.zeros(2, [("a", "<i4"), ("b", "<f8")]), (2,), "|V12", (12,)),
        ]:
            with client.empty_like(like) as b:
                assert (b.shape, b.typestr, b.strides) == (shape, typestr, strides)
                assert b.name is None and not b.readonly
                if hasattr(like, "dtype"):
                    assert b.dtype == like.dtype


# --- Numba's names --------------------------------------------------------------------------


def test_numbas_names(client):
    x = counting((2, 3))
    with client.empty((2, 3), "<i4") as a, client.empty((2, 3), "<i4") as b:
        a.copy_to_device(x)
        b.copy_to_device(a, stream=1)
        for stream in (0, None, 1, 2):
            np.testing.assert_array_equal(b.copy_to_host(stream=stream), x)
        out = np.zeros_like(x)
        assert b.copy_to_host(out, 2) is out and out[1, 2] == 5
        assert a.alloc_size == a.nbytes == 24 and a[:, 1].alloc_size == 16
        assert a[::-1, ::2].alloc_size == 24 and a[2:].alloc_size == 0
        assert a.flags == {"C_CONTIGUOUS": True, "F_CONTIGUOUS": False}
        assert a.T.flags == {"C_CONTIGUOUS": False, "F_CONTIGUOUS": True}


def test_a_copy_needs_a_stream_that_there_is(client):
    no_stream = 0xDEAD0000
    with client.empty(4, "|u1") as a, client.empty(4, "|u1") as b:
        a.copy_from_host(b"abcd")
        out = bytearray(4)
        for call in (
            lambda stream: a.copy_to_host(out, stream),
            lambda stream: a.copy_from_host(b"efgh", stream),
            lambda stream: a.copy_to_device(b"efgh", stream),
            lambda stream: a.copy_from(b, stream),
            lambda stream: a.copy_to(b, stream),
            lambda stream: a[1:].copy_from(a[:-1], stream),
        ):
            with pytest.raises(caid.DriverError, match="stream"):
                call(no_stream)
        assert out == bytes(4) and bytes(a.copy_to_host()) == b"abcd"
    with pytest.raises(caid.ClosedError):
        a.copy_to_device(b"efgh", 2)


# --- copies on a stream ---------------------------------------------------------------------

N = 1000


def pinned(client, value):
    """Page-locked: the driver itself waits for copies to other memory."""
    made = caid.pinned_array(N, "<i4", client=client)
    made[:] = value
    return made


@pytest.fixture
def a(client):
    with client.empty(N, "<i4") as made:
        made.copy_from_host(np.zeros(N, "<i4"))
        yield made


def test_copies_on_a_stream_are_enqueued(client, a, streams):
    """What is read without a wait is what was there before: each of them really waits its turn."""
    s, _ = streams
    seven, out = pinned(client, 7), pinned(client, -1)
    with client.empty(N, "<i4") as b, client.empty(N, "<i4") as c:
        b.copy_from_host(np.full(N, -2, "<i4"))
        seen = [np.asarray(x) for x in (a, b, c)]
        s.hold_up()
        a.copy_from_host(seven, stream=s.number)
        b.copy_from(a, stream=s.number)
        b.copy_to(c, stream=s.number)
        assert c.copy_to_host(out, stream=s.number) is out
        assert (seen[0] == 0).all() and (seen[1] == -2).all() and (out == -1).all()
        s.gate.set()
        s.synchronize()
        assert all((x == 7).all() for x in (*seen, out))


def test_and_after_nothing_else(client, a, streams):
    """Who names streams orders them: the other one's copy has not happened."""
    s, t = streams
    out = pinned(client, -1)
    s.hold_up()
    a.copy_from_host(pinned(client, 7), stream=s.number)
    a.copy_to_host(out, stream=t.number)
    t.synchronize()
    assert (out == 0).all()


@pytest.mark.parametrize("by", ["the default stream", "its own"])
def test_overlapping_copies_come_after_their_stream(client, a, streams, by):
    s, t = streams
    s.hold_up()
    data = pinned(client, 0)
    data[:] = counting(N)
    a.copy_from_host(data, stream=s.number)
    given = [] if by == "the default stream" else [t.number]
    thread, _ = in_a_thread(lambda: a.copy_from(a[::-1], *given))
    s.gate.set()
    thread.join()
    np.testing.assert_array_equal(a.copy_to_host(), counting(N)[::-1])


def test_the_stream_of_a_foreign_source_is_waited_for_by_that_of_the_copy(client, a, streams):
    class Theirs:
        def __init__(self, stream):
            self.__cuda_array_interface__ = {**a.__cuda_array_interface__, "stream": stream}

    s, t = streams
    out = pinned(client, -1)
    with client.empty(N, "<i4") as b:
        b.copy_from_host(np.zeros(N, "<i4"))
        s.hold_up()
        s.fill(a, 0x11)
        b.copy_from(Theirs(s.number), stream=t.number)  # and not by the host, which goes on
        b.copy_to_host(out, stream=t.number)
        assert (out == -1).all()
        s.gate.set()
        t.synchronize()
        assert (out == 0x11111111).all()


def test_memory_that_the_driver_does_not_wait_for_is_as_good(client, a, stream):
    """Ordinary memory of the host: staged, or waited for."""
    big = np.arange(1 << 20, dtype="<i4")
    with client.empty(big.size, "<i4") as b:
        for data, target in ((counting(N), a), (big, b)):
            target.copy_from_host(data, stream=stream.number)
            out = target.copy_to_host(stream=stream.number)
            stream.synchronize()
            np.testing.assert_array_equal(out, data)


def test_numbas_names_on_a_stream(client, a, stream):
    stream.hold_up()
    seen = np.asarray(a)
    a.copy_to_device(pinned(client, 7), stream=stream.number)
    b = caid.to_device(counting(N), stream=stream.number, client=client)
    caid.to_device(pinned(client, 8), stream=stream.number, to=a)
    assert (seen == 0).all()
    stream.gate.set()
    stream.synchronize()
    assert (seen == 8).all()
    with b:
        np.testing.assert_array_equal(b.copy_to_host(), counting(N))


def test_a_lease_outlives_its_copies(client, stream):
    """Closed while they are under way: neither is the memory given on, nor do they fail."""
    a, out = client.empty(N, "<i4"), pinned(client, -1)
    a.copy_from_host(counting(N))
    stream.hold_up()
    a.copy_to_host(out, stream=stream.number)
    a.close()
    assert client.status().leases == 1
    stream.gate.set()
    stream.synchronize()
    np.testing.assert_array_equal(out, counting(N))


def test_a_copy_that_fails_is_told(client, a, stream):
    """And leaves nothing pending that would never pass."""
    softcuda("fail cuMemcpyHtoDAsync=CUDA_ERROR_UNKNOWN")
    try:
        with pytest.raises(caid.DriverError):
            a.copy_from_host(pinned(client, 7), stream=stream.number)
    finally:
        softcuda("clear")
    a.synchronize()
    assert a.__cuda_array_interface__["stream"] is None


@pytest.mark.parametrize("nth", [1, 2], ids=["before the copy", "after it"])
def test_where_no_event_can_be_recorded(client, a, stream, nth):
    """The copy is not begun; where it is found out after that, its memory is kept for good."""
    data = pinned(client, 7)
    kept = weakref.ref(data)
    stream.hold_up()
    softcuda("fail cuEventRecord@%d=CUDA_ERROR_INVALID_HANDLE" % nth)
    try:
        with pytest.raises(caid.DriverError, match="cuEventRecord"):
            a.copy_from_host(data, stream=stream.number)
    finally:
        softcuda("clear")
    stream.gate.set()
    stream.synchronize()
    assert (np.asarray(a) == (0 if nth == 1 else 7)).all()
    del data
    caid._handoff._pending.release()
    gc.collect()
    assert (kept() is None) == (nth == 1)
    assert a.__cuda_array_interface__["stream"] is None


def test_a_stream_that_captures_a_graph_is_refused(client, a, stream):
    """Nobody knows when the copy would run, and until when its memory is to be kept."""
    data = pinned(client, 7)
    kept = weakref.ref(data)
    with stream.captures():
        for call in (a.copy_from_host, a.copy_to_host):
            with pytest.raises(caid.InvalidError, match="captures a graph"):
                call(data, stream=stream.number)
    del data
    assert a.__cuda_array_interface__["stream"] is None
    caid._handoff._pending.release()
    assert kept() is None
    assert (a.copy_to_host() == 0).all()


# --- interrupts -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_an_interrupt_anywhere_in_a_copy_leaves_no_share(client, number):
    """Before each instruction of the modules in turn, as Ctrl-C may come."""
    at = 0
    while _interrupted(client, at, number):
        at += 1
    assert at > 50


def _interrupted(client, at, stream):
    n = 0

    def trace(frame, event, _arg):
        nonlocal n
        if frame.f_code.co_filename not in (caid._memory._copy.__file__, caid._handoff._pending.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            n += 1
            if n > at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    with client.empty(4, "|u1") as a:
        sys.settrace(trace)
        try:
            a.copy_from_host(b"abcd", stream)
        except KeyboardInterrupt:
            interrupted = True
        else:
            interrupted = False
        finally:
            sys.settrace(before)
        a.synchronize()
        caid._handoff._pending.release()
        assert caid._handoff._pending._kept.list == []
    assert a._memory.closed, f"interrupted before instruction {at}"
    return interrupted
