# SPDX-License-Identifier: Apache-2.0
"""Arrays: what they say of themselves, views, and what they give to others."""

import operator
import subprocess
import sys
import weakref

import numpy as np
import pytest
from conftest import n_leases

import caid


@pytest.fixture
def weights(client):
    """A named 4 x 6 array of floats that counts up, and its twin in NumPy."""
    twin = np.arange(24, dtype="<f4").reshape(4, 6)
    with client.create("weights", data=twin) as a:
        yield a, twin


def test_attributes(weights, client):
    a, twin = weights
    assert (a.shape, a.strides, a.size, a.ndim) == ((4, 6), (24, 4), 24, 2)
    assert (a.itemsize, a.nbytes, len(a)) == (4, 96, 4)
    assert a.dtype == twin.dtype and a.typestr == "<f4"
    assert (a.name, a.pool, a.generation) == ("weights", client.status().pool, 1)
    assert (a.device, a.readonly, a.closed) == (0, False, False)
    assert a.ptr > 0
    assert a.is_c_contiguous() and not a.is_f_contiguous()
    assert repr(a).startswith("<caid.Array 'weights' shape=(4, 6) typestr='<f4' device=0 mode='rw'\n [[")


def test_an_unnamed_array(client):
    with client.empty(3, "|u1") as a:
        assert (a.name, a.generation, a.shape) == (None, 0, (3,))
        assert client.list() == []


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3, 4), (1,) * 32, (0,), (3, 0, 2)])
def test_shapes(client, shape):
    with client.create("a", shape, "<i2") as a:
        assert a.shape == shape and a.size == np.prod(shape)
        twin = np.random.default_rng(1).integers(0, 99, shape).astype("<i2")
        a.copy_from_host(twin)
        with client.open("a") as b:
            np.testing.assert_array_equal(b.copy_to_host(), twin)


@pytest.mark.parametrize(
    "options, strides", [({"order": "F"}, (4, 12, 48)), ({"strides": (64, 8, 4)}, (64, 8, 4))]
)
def test_other_layouts(client, options, strides):
    twin = np.arange(24, dtype="<i4").reshape(3, 4, 2)
    with client.create("a", twin.shape, "<i4", **options) as a:
        assert a.strides == strides and a.nbytes == 96
        assert a.is_f_contiguous() == ("order" in options)
        a.copy_from_host(twin)
        with client.open("a") as b:
            assert b.strides == strides
            np.testing.assert_array_equal(b.copy_to_host(), twin)


@pytest.mark.parametrize(
    "dtype",
    ["<f4", ">f8", "|b1", "<c16", "|S5", "<U3", "<M8[ns]", "<m8[25us]", "|V7", "<f2", "|u1"],
)
def test_element_types(client, dtype):
    itemsize = np.dtype(dtype).itemsize
    twin = np.frombuffer(bytes(i % 64 for i in range(7 * itemsize)), dtype)
    with client.create("a", 7, dtype) as a:
        a.copy_from_host(twin)
        assert a.dtype == np.dtype(dtype)
        assert a.copy_to_host().tobytes() == twin.tobytes()


STRUCT = np.dtype([("x", "<f4"), ("id", "<i8"), ("tag", "|S3"), ("m", "<f8", (2, 2))], align=True)


def test_structured_types_keep_their_fields(client):
    twin = np.zeros(5, STRUCT)
    twin["x"], twin["id"], twin["m"] = np.arange(5), 7, 0.5
    with client.create("s", 5, STRUCT) as a:
        a.copy_from_host(twin)
        with client.open("s") as b:
            assert b.dtype.names == STRUCT.names and b.dtype == np.dtype(STRUCT, align=False)
            assert b.typestr == f"|V{STRUCT.itemsize}"
            assert b.__cuda_array_interface__["descr"] == STRUCT.descr
            np.testing.assert_array_equal(b.copy_to_host()["m"], twin["m"])


def test_an_array_type_adds_its_extents(client):
    with client.empty(5, np.dtype("(2,3)<f4")) as a:
        assert a.shape == (5, 2, 3) and a.typestr == "<f4"


# --- views ----------------------------------------------------------------------------------

# What is computed of them is in test_geometry.py.
VIEWS = {
    "rows": lambda a: a[1:3],
    "an element": lambda a: a[1, 2, ...],
    "backwards": lambda a: a[::-1, ::-2],
    "a new axis": lambda a: a[None, ..., 2:5, None],
    "nothing": lambda a: a[2:2],
    "T": lambda a: a.T,
    "transpose": lambda a: a[None].transpose(2, 0, 1),
    "transpose of a tuple": lambda a: a.transpose((1, 0)),
    "reshape": lambda a: a[:, ::2].reshape(2, 2, 3),
    "reshape to a tuple": lambda a: a.reshape((3, -1, 2)),
    "ravel": lambda a: a.ravel(),
    "reshape as it lies": lambda a: a[0].reshape(2, -1, order="A"),
    "reshape in Fortran order": lambda a: a.T.reshape(2, -1, order="F"),
    "ravel in Fortran order": lambda a: a.T.ravel("F"),
    "a view of a view": lambda a: a[1:][::2].T[3:],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_show_what_numpys_show(weights, view):
    a, twin = weights
    with view(a) as v:
        expected = np.asarray(view(twin))
        assert v.shape == expected.shape
        offset = expected.__array_interface__["data"][0] - twin.ctypes.data
        assert v.ptr == (a.ptr + offset if v.size else 0)
        np.testing.assert_array_equal(v.copy_to_host(), expected)
        assert v.is_c_contiguous() == expected.flags.c_contiguous
        assert v.is_f_contiguous() == expected.flags.f_contiguous
        assert (v.name, v.device, v.readonly) == (a.name, a.device, a.readonly)
        ours, numpys = v.__cuda_array_interface__, expected.__array_interface__
        for key in ("shape", "typestr", "strides") if v.size else ("shape", "typestr"):
            assert ours[key] == numpys[key]
        if a.host_ptr is not None:
            np.testing.assert_array_equal(np.asarray(v), expected)
            assert not v.size or np.asarray(v).strides == v.strides


def test_writing_through_a_view(weights):
    a, twin = weights
    with a[::2, 1::3] as v:
        v.copy_from_host(np.full((2, 2), -1, "<f4"))
    twin[::2, 1::3] = -1
    np.testing.assert_array_equal(a.copy_to_host(), twin)


def test_iteration_gives_views(weights):
    a, twin = weights
    for row, expected in zip(a, twin):
        np.testing.assert_array_equal(row.copy_to_host(), expected)
    assert len(list(a)) == 4


@pytest.mark.parametrize(
    "shape, what",
    [
        ((5, 5), "cannot reshape 24 elements"),
        ((-1, -1), "except for one -1"),
        ((-2, 12), "not be negative"),
        ((7, -1), "cannot reshape"),
        ((0, -1), "cannot reshape"),
    ],
)
def test_reshapes_that_are_none(weights, shape, what):
    with pytest.raises(ValueError, match=what):
        weights[0].reshape(shape)


def test_a_reshape_that_takes_a_copy(weights):
    with pytest.raises(ValueError, match="only by a copy"):
        weights[0].T.ravel()


def test_nothing_is_computed(weights):
    a, twin = weights
    with pytest.raises(TypeError, match="truth"):
        bool(a)
    for compare in operator.eq, operator.ne:
        for other in twin, a[:], 3, "x", 5.0:
            with pytest.raises(TypeError, match="compares no elements"):
                compare(a, other)
    with pytest.raises(TypeError, match="compares no elements"):
        a[0] in a
    assert (a == a, a != a, a == None, None != a) == (True, False, False, True)  # noqa: E711
    assert {a: 1}[a] == 1 and [a, None].index(a) == 0
    with pytest.raises(TypeError, match="no dimensions"):
        len(a[0, 0])
    with pytest.raises(TypeError, match="no dimensions"):
        iter(a[0, 0])


# --- numpy.asarray --------------------------------------------------------------------------


def test_numpy_sees_the_same_bytes(weights, client, soft):
    a, twin = weights
    x = np.asarray(a)
    np.testing.assert_array_equal(x, twin)
    assert x.ctypes.data == a.ptr and x.dtype == a.dtype and x.flags.writeable
    x[1, 2] = 77
    with client.open("weights") as b:
        y = np.asarray(b)
        assert y[1, 2] == 77
        assert not y.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            y[0] = 1
        with pytest.raises(ValueError):
            y.flags.writeable = True


def test_numpy_sees_empty_arrays(client, soft):
    with client.empty((3, 0, 2), "<f4") as a:
        assert np.asarray(a).shape == (3, 0, 2)


def test_numpy_sees_structs(client, soft):
    dtype = np.dtype([("a", "<i4"), ("b", "<f8")])
    with client.empty(4, dtype) as a:
        x = np.asarray(a)
        assert x.dtype == dtype
        x["b"] = 2.5
        assert (a.copy_to_host()["b"] == 2.5).all()


def test_what_numpy_sees_outlives_the_array(client, soft):
    a = client.create("a", 1000, "<i4")
    x = np.asarray(a)
    x[:] = 5
    client.unlink("a")
    a.close()
    assert a.closed and client.memory_info().arrays == 1
    assert (x[::-1] == 5).all()
    y = x[10:]
    del x
    assert client.memory_info().arrays == 1
    del y
    assert client.memory_info().arrays == 0


def test_what_numpy_sees_outlives_the_client(soft):
    """The daemon gives it to nobody while this process lives: hence one of our own."""
    with caid.LocalDaemon() as d:
        with d.connect() as c:
            a, b = c.empty(1000, "<i4"), c.empty(1000, "<i4")
            x = np.asarray(a)
            x[:] = 5
        assert a.closed and b.closed
        assert x.sum() == 5000
        with d.connect() as c:
            assert c.memory_info().arrays == 1
        a.close()


def test_without_host_memory_numpy_is_told_so(weights, client):
    """As on a GPU: no __array_interface__, and no array made of views, one by one."""
    with caid.strict_device(), client.open("weights") as a, client.empty((0, 3)) as none:
        for x in (a, none):
            assert not hasattr(x, "__array_interface__") and x.host_ptr is None
            with pytest.raises(TypeError, match="copy_to_host"):
                np.asarray(x)
        with pytest.raises(TypeError, match="copy_to_host"):
            np.array([a, a])


# --- __cuda_array_interface__ ---------------------------------------------------------------


def test_the_interface_is_version_3(weights):
    a, _ = weights
    assert a.__cuda_array_interface__ == {
        "shape": (4, 6),
        "typestr": "<f4",
        "data": (a.ptr, False),
        "strides": None,
        "version": 3,
        "stream": None,
    }
    assert type(a.__cuda_array_interface__) is dict
    assert a.__cuda_array_interface__ is not a.__cuda_array_interface__


def test_the_interface_of_views(weights, client):
    a, _ = weights
    v = a[1:, ::2]
    i = v.__cuda_array_interface__
    assert i["strides"] == (24, 8) and i["data"] == (a.ptr + 24, False) and i["data"][1] is False
    assert all(type(n) is int for n in i["shape"] + i["strides"])
    assert a.T.__cuda_array_interface__["strides"] == (4, 24)
    assert a[::-1].__cuda_array_interface__["strides"] == (-24, 4)
    assert a[2:2].__cuda_array_interface__["data"] == (0, False)
    assert a[0, 0].__cuda_array_interface__["shape"] == ()
    with client.open("weights") as b:
        assert b.__cuda_array_interface__["data"] == (b.ptr, True) and b.readonly is True
        assert b[1].__cuda_array_interface__["data"] == (b.ptr + 24, True)


def test_an_empty_array_has_no_pointer(client):
    with client.empty((3, 0), "<f4") as a:
        assert a.ptr == 0 and a.nbytes == 0
        assert a.__cuda_array_interface__["data"] == (0, False)
        assert a.__cuda_array_interface__["strides"] is None


def test_the_interface_keeps_nothing_alive(client):
    a = client.empty(3, "|u1")
    described, alive = a.__cuda_array_interface__, weakref.ref(a)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del a
    assert described["data"][0] and alive() is None and n_leases(client) == 0


def test_version_2_has_no_stream(weights, monkeypatch):
    monkeypatch.setenv("CAID_CAI_EXPORT_VERSION", "2")
    i = weights[0].__cuda_array_interface__
    assert i["version"] == 2 and "stream" not in i
    monkeypatch.setenv("CAID_CAI_EXPORT_VERSION", "1")
    with pytest.raises(caid.UnavailableError, match="CAID_CAI_EXPORT_VERSION=1"):
        weights[0].__cuda_array_interface__


def test_without_numpy(daemon, client):
    """All but `dtype` and new NumPy arrays works where there is no NumPy."""
    code = """
import sys
sys.modules["numpy"] = None
import caid
with caid.connect(sys.argv[1]) as c, c.create("a", (2, 3), "<i4") as a:
    a.copy_from_host(bytes(range(24)))
    assert a.T[1:].__cuda_array_interface__["strides"] == (4, 12)
    out = bytearray(12)
    assert a[1].copy_to_host(out) is out and out == bytes(range(12, 24))
    a.reshape(6)[::-1].copy_to_host(memoryview(bytearray(24)))
    c.empty_like(a).close()
    for needs in (a.copy_to_host, lambda: a.dtype):
        try:
            needs()
        except (ImportError, caid.UnavailableError):
            pass
        else:
            sys.exit("no ImportError")
"""
    subprocess.run([sys.executable, "-c", code, daemon.address], check=True)
