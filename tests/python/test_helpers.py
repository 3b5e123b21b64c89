# SPDX-License-Identifier: Apache-2.0
"""The functions that users of numba.cuda know: their arguments, layouts and ends."""

import ctypes
import gc
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import warnings
import weakref

import numpy
import pytest
from conftest import Held, forked, wait_until
from hypothesis import given
from hypothesis import strategies as st

import caid
from caid import _caid
from caid._base._driver import driver_client
from caid._session import _default

HELPERS = {  # and what they take besides
    **dict.fromkeys(
        ["device_array", "device_array_like", "managed_array", "mapped", "mapped_array"]
        + ["mapped_array_like", "pinned", "pinned_array", "pinned_array_like", "to_device", "event"]
        + ["stream", "default_stream", "legacy_default_stream", "per_thread_default_stream"]
        + ["external_stream"],
        ["client", "device"],
    ),
    "as_cuda_array": ["client"],
    "from_cuda_array_interface": ["client"],
    "is_cuda_array": [],
}


@pytest.fixture(autouse=True)
def a_default_daemon(daemon, client, monkeypatch):
    """What is given no client uses this file's daemon."""
    monkeypatch.setenv("CAID_SOCKET", daemon.address)
    yield
    for made in _default._daemons.values():
        made.close()



# --- Numba's own ----------------------------------------------------------------------------


def numba_api():
    if importlib.util.find_spec("numba") is None:
        pytest.skip("Numba is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        from numba.cuda import api

    return api


@pytest.mark.parametrize("name", HELPERS)
def test_arguments_are_numbas(name):
    """Each by its name, in its place, with its default; ours are keywords besides."""
    theirs = inspect.signature(inspect.unwrap(getattr(numba_api(), name))).parameters
    ours = inspect.signature(getattr(caid, name)).parameters
    extra = [p for p in ours.values() if p.name not in theirs]
    if name == "mapped":  # theirs takes stream= by **kws
        extra = [p for p in extra if p.name != "stream"]
    assert [p.name for p in extra if p.kind is not p.VAR_POSITIONAL] == HELPERS[name]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL) for p in extra)
    fixed = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    expected = [p for p in theirs.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in fixed] == [p.name for p in expected]
    for a, b in zip(fixed, expected):
        if a.name == "dtype":
            assert numpy.dtype(a.default) == numpy.dtype(b.default)
        else:
            assert a.default == b.default, a.name


@pytest.mark.parametrize("name", ["bind", "copy_to_device", "copy_to_host", "ravel", "reshape"])
def test_arguments_of_methods_are_numbas(name):
    theirs = inspect.signature(getattr(numba_api().devicearray.DeviceNDArray, name)).parameters
    ours = inspect.signature(getattr(caid.Array, name)).parameters
    fixed = [(p.name, p.default) for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    expected = [(p.name, p.default) for p in theirs.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert fixed == expected


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_layouts_of_the_like_are_numbas(shape, random, backwards):
    api = numba_api()
    axes = list(range(len(shape)))
    random.shuffle(axes)
    a = numpy.zeros(shape, "<i4").transpose(axes)
    if backwards:
        a = a[::-1, ...]
    shape, dtype, strides, order = caid._memory._cai.like(a)
    like = {"strides": api._contiguous_strides_like_array(a), "order": api._order_like_array(a)}
    expected = numpy.ndarray(a.shape, a.dtype, **like)
    ours = numpy.ndarray(shape, dtype, strides=strides, order=order)
    assert ours.strides == expected.strides


# --- device arrays --------------------------------------------------------------------------


def test_device_array():
    with caid.device_array((2, 3)) as a, caid.device_array(5, numpy.int16, order="F") as b:
        assert (a.shape, a.typestr, b.shape, b.typestr) == ((2, 3), "<f8", (5,), "<i2")
        assert a.name is None and a._memory.client is caid.default_client()
    with caid.device_array((2, 3), "<f4", (4, 8), "F", 1) as c:
        assert c.strides == (4, 8) and c.is_f_contiguous()


def test_device_array_like(client):
    x = numpy.zeros((2, 3, 4), "<f4").transpose(1, 0, 2)
    with caid.device_array_like(x, client=client) as a:
        assert (a.shape, a.dtype, a._memory.client) == (x.shape, x.dtype, client)
        with caid.device_array_like(a) as b:
            assert b.strides == a.strides == numpy.empty_like(x).strides
    with caid.device_array_like(numpy.zeros((3, 2), order="F")) as f:
        assert f.is_f_contiguous() and not f.is_c_contiguous()


def test_to_device():
    x = numpy.arange(12, dtype="<i4").reshape(3, 4)
    with caid.to_device(x) as a:
        numpy.testing.assert_array_equal(a.copy_to_host(), x)
        assert caid.to_device(a) is a
        assert caid.to_device(x * 2, to=a) is a
        numpy.testing.assert_array_equal(a.copy_to_host(), x * 2)
        assert caid.to_device(x, copy=False, to=a) is a
        numpy.testing.assert_array_equal(a.copy_to_host(), x * 2)
        for wrong, error in ((x[:2], ValueError), (x.astype("f4"), TypeError)):
            with pytest.raises(error):
                caid.to_device(wrong, to=a)

    class Theirs:
        __cuda_array_interface__ = {
            "shape": (0,),
            "typestr": "<f4",
            "data": (0, False),
            "version": 3,
        }

    with caid.to_device(Theirs()) as view:
        assert view.pool is None
    with caid.to_device([1.5, 2.5], 2) as b, caid.to_device(x[::2, ::-1], stream=1) as c:
        assert b.copy_to_host().tolist() == [1.5, 2.5]
        numpy.testing.assert_array_equal(c.copy_to_host(), x[::2, ::-1])
    with caid.to_device(x, copy=False) as d:
        assert d.shape == x.shape
    with pytest.raises(caid.InvalidError):
        caid.to_device(numpy.array([None]))


# --- memory of this process -----------------------------------------------------------------


def test_pinned_array():
    a = caid.pinned_array((2, 3), "<f4", order="F")
    assert type(a) is numpy.ndarray and a.flags.f_contiguous and a.flags.writeable
    a[:] = 4
    view = a[1:]
    alive = weakref.ref(a)
    del a
    assert (view == 4).all()
    assert caid.pinned_array(3).dtype == numpy.float64
    assert caid.pinned_array((2, 3), "|u1", strides=(8, 2)).strides == (8, 2)
    assert caid.pinned_array(0).shape == (0,)
    assert caid.pinned_array(2, [("x", "<f4"), ("y", "<i2")]).dtype.names == ("x", "y")
    del view
    gc.collect()
    assert alive() is None


def test_pinned_array_like():
    x = numpy.zeros((2, 3, 4), "<i2").transpose(2, 0, 1)
    a = caid.pinned_array_like(x)
    assert (a.shape, a.dtype, a.strides) == (x.shape, x.dtype, numpy.empty_like(x).strides)


@pytest.mark.parametrize("make", [caid.mapped_array, caid.managed_array])
def test_arrays_that_kernels_reach(make):
    a = make((4, 6), "<f4")
    a[:] = numpy.arange(24).reshape(4, 6)
    assert isinstance(a, numpy.ndarray)
    interface = a.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["strides"]) == ((4, 6), "<f4", None)
    v = a[1:, ::2]
    inner = v.__cuda_array_interface__
    assert inner["data"][0] == interface["data"][0] + 24 and inner["strides"] == (24, 8)
    for array in (a, v):
        with caid.as_array(array) as seen:  # the driver knows the memory
            numpy.testing.assert_array_equal(seen.copy_to_host(), array)
    with caid.to_device(a[2], copy=False, to=caid.device_array(6, "<f4")) as d:
        d.copy_from(a[2])
        assert d.copy_to_host().tolist() == a[2].tolist()
    computed = a + 1
    assert not hasattr(computed, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="does not reach"):
        computed.device_ptr
    a.flags.writeable = False
    assert a.__cuda_array_interface__["data"][1] is True
    assert make(0).__cuda_array_interface__["data"] == (0, False)
    del a, v
    gc.collect()


FLAGS = """
import caid
for portable, wc in (True, False), (False, True), (True, True):
    caid.mapped_array(4, portable=portable, wc=wc)
    caid.mapped_array_like(caid.mapped_array(4), 0, portable, wc)
for attach_global in True, False:
    caid.managed_array(4, attach_global=attach_global)
"""


def test_mapped_and_managed_arguments(tmp_path, soft):
    """Flags: mapped 2, portable 1, write-combined 4; attached to all 1, to the host 2."""
    env = {**os.environ, "CAID_SOFTCUDA_TRACE": str(tmp_path / "trace")}
    subprocess.run([sys.executable, "-c", FLAGS], env=env, check=True)
    calls = re.findall(r"(cuMemHostAlloc|cuMemAllocManaged)\(.*, (\w+)\)", (tmp_path / "trace").read_text())
    flags = [int(flag, 0) for call, flag in calls if call == "cuMemHostAlloc"]
    assert flags == [3, 2, 3, 6, 2, 6, 7, 2, 7]
    assert [int(flag, 0) for call, flag in calls if call == "cuMemAllocManaged"] == [1, 2]
    x = numpy.zeros((3, 2), "<c8", order="F")
    a = caid.mapped_array_like(x, 0, True)
    assert (a.shape, a.dtype, a.strides) == (x.shape, x.dtype, x.strides)
    gc.collect()


@pytest.mark.parametrize("make", [caid.pinned_array, caid.mapped_array, caid.managed_array])
def test_layouts_that_are_none(make):
    for args in [(-1,), (4, "<q9"), (4, "<f4", (-4,)), (4, "<f4", (4, 4)), (4, "<f4", None, "K")]:
        with pytest.raises(caid.InvalidError):
            make(*args)
    for shape in (None, "ab", 1.5):
        with pytest.raises(TypeError, match="shape"):
            make(shape)
    with pytest.raises((MemoryError, caid.Error)):
        make(1 << 55, "|u1")
    with pytest.raises(caid.DeviceError):
        make(4, device=99)
    with pytest.raises(caid.DeviceError):
        make(4, device="GPU-of-somebody-else")


def test_no_daemon_is_asked_for_memory_of_this_process(monkeypatch, client, tmp_path):
    caid.default_client().close()
    monkeypatch.setenv("CAID_SOCKET", str(tmp_path / "nobody"))
    assert caid.pinned_array(4).size == caid.mapped_array(4).size == caid.managed_array(4).size == 4
    with caid.pinned(numpy.zeros(4)), caid.mapped(numpy.zeros(4)):
        pass
    with pytest.raises(caid.NoDaemonError):
        caid.device_array(4)
    monkeypatch.setenv("CAID_SOCKET", client.status().socket)
    a = caid.pinned_array(4, client=client, device=client.devices[0].uuid)
    client.ping()
    assert a.size == 4


# --- streams, events, pointers --------------------------------------------------------------


def test_streams_of_the_default_client():
    with caid.stream() as s:
        assert caid.external_stream(s.handle) == s
    assert (caid.default_stream().handle, caid.legacy_default_stream().handle) == (1, 1)
    assert caid.per_thread_default_stream().handle == 2


def test_events_measure_time(client):
    start, end, none = caid.event(), caid.event(client=client), caid.event(False)
    with caid.stream() as s:
        start.record(s)
        with Held(s):
            end.record(s)
            with pytest.raises(caid.DriverError):
                caid.event_elapsed_time(start, end)
        s.synchronize()
    assert caid.event_elapsed_time(start, end) == -caid.event_elapsed_time(end, start) > 0
    for pair in [(none, end), (end, none)]:
        with pytest.raises(caid.InvalidError, match="events with timing"):
            caid.event_elapsed_time(*pair)
    with pytest.raises(TypeError, match="a caid.Event is needed"):
        caid.event_elapsed_time(start, 1)
    with pytest.raises(caid.InvalidError):
        client.event(ipc=True, timing=True)
    end.close()
    with pytest.raises(caid.ClosedError):
        caid.event_elapsed_time(start, end)


def test_pointer_info(client, stream):
    context = ctypes.c_void_p()
    stream.call("cuCtxGetCurrent", ctypes.byref(context))
    pinned, managed = caid.pinned_array(4), caid.managed_array(4)
    with client.empty(4) as a:
        own = caid.PointerInfo(None, 0, a.ptr + 8, None, False)
        assert caid.pointer_info(a.ptr + 8) == caid.pointer_info(a[1:].ptr, client=client) == own
        assert not own.host_accessible and caid.is_cuda_array(a)
    assert caid.is_cuda_array(managed) and not caid.is_cuda_array(pinned)
    at = pinned.ctypes.data
    info = caid.pointer_info(at)
    assert info == (context.value, 0, at, at, False) and info.host_accessible
    info = caid.pointer_info(managed.device_ptr)
    assert (info.managed, info.host_ptr) == (True, managed.ctypes.data)
    with pytest.raises(caid.InvalidError):
        caid.pointer_info(numpy.zeros(4).ctypes.data)


# --- page-locking what is there -------------------------------------------------------------


def is_pinned(array):
    """A second time is refused."""
    local = driver_client()
    start = array.__array_interface__["data"][0]
    try:
        local._host_register(0, start, array.nbytes, 0)
    except caid.DriverError:
        return True
    local._host_unregister(0, start)
    return False


def test_pinned():
    x, y = numpy.zeros(1 << 16), numpy.zeros((100, 100))
    with caid.pinned(x, y[::2, ::-1], numpy.zeros(0)) as nothing:
        assert nothing is None and is_pinned(x) and is_pinned(y[::2])
    assert not is_pinned(x) and not is_pinned(y)
    with pytest.raises(KeyError), caid.pinned(x):
        raise KeyError
    assert not is_pinned(x)
    with caid.pinned():
        pass


def test_pinning_that_fails_half_way_is_undone():
    x, y = numpy.zeros(1 << 16), numpy.zeros(1 << 16)
    with pytest.raises(caid.DriverError):
        with caid.pinned(x, y, x):
            raise AssertionError("not refused")
    assert not is_pinned(x) and not is_pinned(y)
    with pytest.raises(TypeError, match="numpy.ndarray"):
        with caid.pinned(x, bytearray(10)):
            raise AssertionError("not refused")
    assert not is_pinned(x)


def test_mapped():
    x = numpy.arange(1 << 14, dtype="<i4").reshape(128, 128)
    with caid.mapped(x) as a:
        assert isinstance(a, caid.Array) and a.shape == x.shape
        numpy.testing.assert_array_equal(a.copy_to_host(), x)
        a[3].copy_from_host(numpy.full(128, 7, "<i4"))
        assert (x[3] == 7).all()
    assert a.closed and not is_pinned(x)
    y = numpy.zeros((64, 64))[::-1, ::2]
    with caid.mapped(x, y, stream=1) as both:
        assert isinstance(both, tuple) and [b.shape for b in both] == [x.shape, y.shape]
        assert both[1].strides == y.strides
        both[1].copy_from_host(numpy.ones(y.shape))
        assert (y == 1).all()
    assert not is_pinned(x)
    x.flags.writeable = False
    with caid.mapped(x) as a:
        assert a.readonly
        with pytest.raises(caid.ReadOnlyError):
            a.copy_from_host(x)
    with caid.mapped() as none, caid.mapped(numpy.zeros(0)) as empty:
        assert none == () and empty.ptr == 0


# --- the default client ---------------------------------------------------------------------


def test_the_default_client_is_made_once(client):
    c = caid.default_client()
    assert caid.default_client() is c
    c.close()
    again = caid.default_client()
    assert again is not c
    again.ping()


def test_the_default_client_after_the_daemons_end(monkeypatch, daemon):
    with caid.LocalDaemon() as d:
        monkeypatch.setenv("CAID_SOCKET", d.address)
        caid.default_client().close()
        first = caid.default_client()
        assert first.status().pid == d.pid
    monkeypatch.setenv("CAID_SOCKET", daemon.address)
    wait_until(lambda: caid.default_client() is not first)
    assert caid.default_client().status().pid == daemon.pid


def test_arrays_of_a_default_client_outlive_its_daemon(monkeypatch, daemon):
    with caid.LocalDaemon() as d:
        monkeypatch.setenv("CAID_SOCKET", d.address)
        caid.default_client().close()
        a = caid.to_device(numpy.arange(4))
    monkeypatch.setenv("CAID_SOCKET", daemon.address)
    with caid.device_array(4) as b:
        assert b._memory.client is not a._memory.client and not a.closed
    assert a.copy_to_host().tolist() == [0, 1, 2, 3]
    a.close()


def test_a_default_client_that_was_found_dead_before(monkeypatch, daemon):
    with caid.LocalDaemon() as d:
        monkeypatch.setenv("CAID_SOCKET", d.address)
        caid.default_client().close()
        first = caid.default_client()
    with pytest.raises(caid.DisconnectedError):
        first.ping()
    monkeypatch.setenv("CAID_SOCKET", daemon.address)
    assert caid.default_client() is not first
    caid.default_client().ping()


def test_a_process_that_leaves_all_open_exits_cleanly(daemon):
    code = """
import numpy, caid
keep = [caid.device_array(4), caid.pinned_array(4), caid.mapped_array(4), caid.managed_array(4)]
entered = caid.pinned(numpy.zeros(4)); entered.__enter__()
"""
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **daemon.env},
        capture_output=True,
        text=True,
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")


def test_a_forked_child_leaves_the_parents_memory_alone(client):
    arrays = [caid.pinned_array(4), caid.mapped_array(4), caid.managed_array(4)]
    with client.watch("w") as watch:

        def work():
            arrays.clear()
            watch.close()
            gc.collect()
            caid.default_client().ping()  # its own

        forked(work=work)
        for a in arrays:
            a[:] = 1
        client.create("w", 4).close()
        assert watch.get(60).generation > 0


def test_nothing_leaks():
    """Of host memory of the driver's: each array gives its own back."""
    for make in (caid.pinned_array, caid.mapped_array, caid.managed_array):
        for _ in range(50):
            make(64 << 20, "|u1")
    gc.collect()
    made = [o for o in gc.get_objects() if isinstance(o, (_caid.HostMemory, _caid.HostView))]
    assert made == []
