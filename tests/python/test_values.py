# SPDX-License-Identifier: Apache-2.0
"""Values that arrays are filled with and assigned, and views of other types or axes, with NumPy as the
oracle."""

import contextlib
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from conftest import softcuda
from hypothesis import given, settings
from hypothesis import strategies as st
from test_copy import in_fixture, layouts

import caid

RECORD = np.dtype([("x", "<f4"), ("p", "<i2", (3,)), ("y", ">u2"), ("n", [("z", "<c8")])])
TYPES = ["|b1", "|i1", "|u1", ">i2", "<u4", "<i8", "<f2", ">f4", "<f8", "<c8", "<c16", "|S3", "<M8[s]"]
NAMED = []
with contextlib.suppress(ImportError):
    import ml_dtypes

    NAMED = [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)]
types = st.sampled_from([np.dtype(t) for t in TYPES] + [RECORD] + NAMED)
numbers = st.sampled_from([np.dtype(t) for t in ["|u1", "<i2", "<f4", "<f8", "<c16", "|V3", "|V6"]])
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
KINDS = ["device", "pinned", "mapped", "managed", "legacy"]

scalars = st.one_of(
    st.integers(-300, 300),
    st.floats(),
    st.booleans(),
    st.complex_numbers(),
    st.sampled_from([1 << 40, -(1 << 63), 1 << 70, b"ab", "text", "2020-02-02", None]),
    st.sampled_from([np.float32(1.5), np.int64(7), np.array(3), np.bool_(True), [1, 2], (1, 2, 3, 4)]),
)
sources = st.one_of(
    scalars,
    st.lists(st.integers(-5, 200), max_size=4),
    st.builds(
        lambda shape, dtype: np.arange(1, 1 + np.prod(shape, dtype=int)).astype(dtype).reshape(shape),
        shapes,
        st.sampled_from(["<i4", "<f8", "|u1", ">f4", "<c8"]),
    ),
)


def outcome(call):
    """The class of what NumPy or caid raises, or None. What only warns is the same to both."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except Exception as e:
            return type(e)


def noise(shape, dtype):
    """Any bytes that are elements: no two that are neighbours alike."""
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    data = np.frombuffer(np.random.default_rng(n).bytes(n), "u1")
    return (data & 1 if dtype.kind == "b" else data).view(dtype).reshape(shape)


def assert_same(a, twin):
    assert a.shape == twin.shape and a.copy_to_host().tobytes() == twin.tobytes()


@in_fixture
@given(st.data(), shapes, types, st.sampled_from(KINDS), scalars)
def test_fill(client, data, shape, dtype, memory, value):
    """Through any view; what is beside it stays as it is. An error leaves all as it was."""
    base, view = data.draw(layouts(shape))
    twin = noise(base, dtype).copy()
    with client.empty(base, dtype, memory=memory) as a:
        a.copy_from_host(twin)
        one = np.empty((), dtype)
        expected = outcome(lambda: one.__setitem__((), value))
        if expected is None:
            view(twin)[...] = one
        assert outcome(lambda: view(a).fill(value)) is expected
        assert_same(a, twin)


@in_fixture
@given(st.data(), shapes, types, sources)
def test_assignment(client, data, shape, dtype, value):
    base, view = data.draw(layouts(shape))
    twin = noise(base, dtype).copy()
    with client.empty(base, dtype) as a:
        a.copy_from_host(twin)
        before = twin.copy()
        expected = outcome(lambda: view(twin).__setitem__(..., value))
        if expected is not None:
            twin = before  # NumPy may have begun
        assert outcome(lambda: view(a).__setitem__(..., value)) is expected
        assert_same(a, twin)


@in_fixture
@given(st.data(), shapes)
def test_assignment_of_device_memory_is_broadcast(client, data, shape):
    part = data.draw(st.tuples(*[st.sampled_from([1, n]) for n in shape]))
    part = part[data.draw(st.integers(0, 1)) :]
    twin, source = noise(shape, np.dtype("<i4")).copy(), noise(part, np.dtype("<i4"))
    with (
        client.empty(shape, "<i4") as a,
        client.empty(part, "<i4") as b,
        client.full(part, 1.0) as f,
    ):
        a.copy_from_host(twin)
        b.copy_from_host(source)
        expected = outcome(lambda: twin.__setitem__(..., source))
        assert outcome(lambda: a.__setitem__(..., b)) is expected
        assert_same(a, twin)
        if expected is None:
            with pytest.raises(TypeError, match="types differ: <f8 to <i4"):
                a[...] = f


def test_keys_of_assignments(client):
    twin = np.arange(24, dtype="<i4").reshape(4, 6)
    with client.empty((4, 6), "<i4") as a:
        a[...] = twin
        values = {1: 5, (2, -1): 7, ...: twin[::-1], (3, ..., None): [[1]], (None, 0): range(6)}
        for key, value in [(np.s_[2:4], [1, 2, 3, 4, 5, 6]), (np.s_[::-2, 3], (8, 9)), *values.items()]:
            a[key] = value
            twin[key] = value
        a[0] = a[3]
        twin[0] = twin[3]
        a[:, 1:] = a[:, :-1]  # it overlaps
        twin[:, 1:] = twin[:, :-1].copy()
        a[3] = memoryview(twin[1])
        twin[3] = twin[1]
        assert_same(a, twin)
        for key, error in [([0, 1], IndexError), (9, IndexError), ("x", IndexError)]:
            with pytest.raises(error):
                a[key] = 0
        with pytest.raises(NotImplementedError, match="masked"):
            a[...] = np.ma.array([1, 2, 3, 4, 5, 6.0])


@in_fixture
@given(st.data(), shapes, st.sampled_from(["x", "p", "y", "n", ["x", "p"], ["p", "n"]]))
def test_fields(client, data, shape, names):
    base, view = data.draw(layouts(shape))
    twin = noise(base, RECORD).copy()
    with client.empty(base, RECORD) as a:
        a.copy_from_host(twin)
        with view(a)[names] as seen:
            expected = view(twin)[names]
            assert (seen.shape, seen.dtype) == (expected.shape, expected.dtype)
            assert expected.size == 0 or seen.strides == expected.strides
            back = np.zeros(seen.shape, seen.dtype)
            seen.copy_to_host(back)
            part = np.zeros(seen.shape, seen.dtype)
            part[...] = expected
            assert all(back[f].tobytes() == part[f].tobytes() for f in back.dtype.names or [...])
            if names in ("x", "p", "y"):
                seen[...] = expected[...] = 3
        assert_same(a, twin)


def test_fields_that_are_not_there(client):
    with client.zeros(2, RECORD) as r, client.zeros(2) as a:
        for names in ("q", ["x", "q"]):
            with pytest.raises(ValueError, match="field .*: the record has x, p, y, n"):
                r[names]
        with pytest.raises(IndexError, match="field 'x': the type is <f8, no record"):
            a["x"]
        with pytest.raises(caid.InvalidError, match="out-of-order"):
            r[["y", "x"]]


@settings(in_fixture, max_examples=200)
@given(st.data(), st.lists(st.integers(0, 8), max_size=3).map(tuple), numbers, numbers)
def test_view_as_another_type(client, data, shape, dtype, new):
    base, view = data.draw(layouts(shape))
    twin = noise(base, dtype)
    with client.empty(base, dtype) as a:
        a.copy_from_host(twin)
        expected = outcome(lambda: view(twin).view(new))
        assert outcome(lambda: view(a).view(new)) is expected
        if expected is None:
            typed, model = view(a).view(new), view(twin).view(new)
            assert typed.dtype == model.dtype
            assert model.size == 0 or typed.strides == model.strides
            assert_same(typed, model)


def test_view_as_a_type_with_a_shape(client):
    twin = noise((2, 3), np.dtype("<f8"))
    with client.empty((2, 3), "<f8") as a:
        a.copy_from_host(twin)
        for new in ("(2,)<f4", "(2,2)<i2"):
            assert_same(a.view(new), twin.view(new))


@in_fixture
@given(st.data(), st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple))
def test_squeeze_and_swapaxes(client, data, shape):
    base, view = data.draw(layouts(shape))
    axes = st.integers(-5, 4)
    calls = [("squeeze", (data.draw(st.none() | axes | st.lists(axes, max_size=3).map(tuple)),))]
    calls += [("swapaxes", (data.draw(axes), data.draw(axes)))]
    twin = noise(base, np.dtype("<i4"))
    with client.empty(base, "<i4") as a:
        a.copy_from_host(twin)
        for name, args in calls:
            try:
                expected = getattr(view(twin), name)(*args)
            except ValueError:
                with pytest.raises(ValueError, match="axis"):
                    getattr(view(a), name)(*args)
            else:
                with getattr(view(a), name)(*args) as seen:
                    assert_same(seen, expected)


# --- order, and what may not be -------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1.5, (1.5, [1, 2, 3], 4, (5j,))], ids=str)
def test_a_fill_on_a_stream_comes_after_it_and_before_what_follows(client, soft, stream, value):
    dtype = RECORD if isinstance(value, tuple) else np.dtype("<f8")
    with (
        client.full((64, 3), value, dtype) as a,
        client.zeros((64, 3), dtype, stream=stream.number) as b,
    ):
        stream.synchronize()
        seen = np.asarray(b)
        stream.hold_up()
        b[:, 1].fill(value, stream=stream.number)
        assert not any(seen.tobytes())
        stream.gate.set()
        b.synchronize()
        assert (seen[:, 1] == a.copy_to_host()[:, 1]).all() and not any(seen[:, ::2].tobytes())


def test_a_fill_without_a_stream_comes_after_what_is_under_way(client, soft, stream):
    with client.zeros(64, "<i4") as a:
        stream.hold_up()
        a.fill(7, stream=stream.number)
        stream.gate.set()
        a[10:20] = 8
        twin = np.full(64, 7, "<i4")
        twin[10:20] = 8
        assert_same(a, twin)


def test_read_only_arrays_are_refused(client):
    with client.create("read-only", 3, "<f4") as a, client.open("read-only") as b:
        a[...] = 2
        assign = b[:2].__setitem__
        for call in (lambda: b.fill(1), lambda: assign(0, 1), lambda: assign(..., [1, 2])):
            with pytest.raises(caid.ReadOnlyError):
                call()
        assert_same(b, np.full(3, 2, "<f4"))


def test_memory_of_others_is_filled(client):
    with client.zeros((3, 4), "<f8") as a:
        shown = {**a.__cuda_array_interface__, "shape": (2, 2), "strides": (64, 16)}
        with client.from_cuda_array_interface(shown, owner=a) as b:
            b.fill(1.5)
            b[1] = [2, 3]
        assert_same(a, np.array([[1.5, 0, 1.5, 0], [0] * 4, [2, 0, 3, 0]]))


@pytest.mark.parametrize("value", [0, 1.5, 1 << 40], ids=str)
def test_a_fill_takes_few_calls_of_the_driver(client, soft, value):
    """As many as the extents have bits, and one for each column where both axes have gaps."""
    with client.empty((1000, 1000), "<i8" if value == 1 << 40 else "<f8") as a:
        few = [a, a[::-1, ::-1], a[::2, :500], a[:, 3]]
        for view, most in [*((view, 21) for view in few), (a[::2, ::3], 350)]:
            before = n_calls()
            view.fill(value)
            assert n_calls() - before <= most


def n_calls():
    """Copies and fills so far."""
    lines = (line.split() for line in softcuda("calls").splitlines())
    return sum(int(n) for name, n in lines if re.match("cuMem(cpy|set)", name))


# --- new arrays -----------------------------------------------------------------------------


@in_fixture
@given(shapes, types, st.sampled_from(KINDS), st.sampled_from("CF"))
def test_zeros_and_ones_and_full(client, shape, dtype, memory, order):
    options = {"memory": memory, "order": order}
    for name, args in [("zeros", ()), ("ones", ()), ("full", (3,))]:
        make = getattr(np, name)
        expected = outcome(lambda: make(shape, *args, dtype))
        assert outcome(lambda: getattr(client, name)(shape, *args, dtype, **options).close()) is expected
        if expected is None:
            with getattr(client, name)(shape, *args, dtype, **options) as a:
                assert_same(a, make(shape, *args, dtype))
                assert a.name is None and a.memory == memory and (a.is_f_contiguous() or order == "C")


def test_full_has_the_type_of_its_value(client):
    for value in (True, 3, 1.5, 2j, np.float32(1), "ab"):
        with client.full((3, 2), value) as a:
            assert a.dtype == np.full((3, 2), value).dtype
            assert_same(a, np.full((3, 2), value))


def test_lists_get_the_type_of_the_array(client):
    with client.empty((2, 2), "<f4") as a, client.empty(2, RECORD) as r:
        a.copy_from_host([[1, 2.5], [3, 4]])
        assert_same(a, np.array([[1, 2.5], [3, 4]], "<f4"))
        a.copy_from(((4, 3), (2, 1)))
        assert_same(a, np.array([[4, 3], [2, 1]], "<f4"))
        r.copy_from_host([(1, (2, 3, 4), 5, (6,))] * 2)
        assert_same(r, np.array([(1, (2, 3, 4), 5, (6,))] * 2, RECORD))


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import caid, os
with caid.connect(os.environ["CAID_SOCKET"]) as c, c.zeros((2, 3), "<f4") as a, c.ones(4, ">i2") as b:
    a[0] = 1.5
    a[:, 1].fill(2)
    out = bytearray(24), bytearray(8)
    a.copy_to_host(out[0]), b.copy_to_host(out[1])
    print(out[0].hex(), out[1].hex())
"""


def test_plain_values_need_no_numpy(daemon, client):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY],
        env={**os.environ, "CAID_SOCKET": daemon.address},
        capture_output=True, text=True, check=True,
    )
    a = np.array([[1.5, 2, 1.5], [0, 2, 0]], "<f4")
    assert ran.stdout.split() == [a.tobytes().hex(), "0001" * 4]
