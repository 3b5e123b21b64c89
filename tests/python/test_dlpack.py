# SPDX-License-Identifier: Apache-2.0
"""DLPack, both ways: tensors by their C structs, their ends, and streams. Device memory is out of the host's
reach, as with a GPU; test_dlpack_host.py has what the host takes."""

import ctypes
import gc
import os
import threading

import numpy as np
import pytest
from arenas import ByDlpack
from conftest import after_gate, in_a_thread, in_thread, in_threads, n_leases, wait_until

import caid

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY, IS_COPIED, IS_PADDED = 1, 2, 4
LEGACY, VERSIONED = b"dltensor", b"dltensor_versioned"
USED = {LEGACY: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}


@pytest.fixture(autouse=True)
def unreachable(request):
    """The host does not reach device memory, as it does that of the software driver."""
    if "soft" in request.fixturenames:
        request.getfixturevalue("soft")  # it asks whether the host does
    with caid.strict_device():
        yield


# --- DLPack's structs, from its header -----------------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Plain(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def capsule_api(name, result, *args):
    function = getattr(ctypes.pythonapi, "PyCapsule_" + name)
    function.restype, function.argtypes = result, args
    return function


capsule_new = capsule_api(
    "New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)
capsule_name = capsule_api("GetName", ctypes.c_char_p, ctypes.py_object)
capsule_pointer = capsule_api("GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
capsule_rename = capsule_api("SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


class Consumer:
    """Takes what is in a capsule, as a library in C does."""

    def __init__(self, capsule):
        self.name = capsule_name(capsule)
        pointer = capsule_pointer(capsule, self.name)
        capsule_rename(capsule, USED[self.name])
        self.managed = (Plain if self.name == LEGACY else Versioned).from_address(pointer)

    @property
    def tensor(self):
        return self.managed.tensor

    @property
    def shape(self):
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self):
        return tuple(self.tensor.strides[: self.tensor.ndim])

    def end(self, with_gil=False):
        kind = ctypes.PYFUNCTYPE if with_gil else ctypes.CFUNCTYPE
        kind(None, ctypes.c_void_p)(self.managed.deleter)(ctypes.addressof(self.managed))


class Producer:
    """Another library's array, over the memory of a caid array, or any."""

    def __init__(self, ptr, shape, dtype=(0, 32, 1), strides=None, device=(CUDA, 0), **options):
        self.device = device
        self.asked = []
        self.ended = []
        self.versions = options.pop("versions", True)
        self.major = options.pop("major", 1)
        self.flags = options.pop("flags", 0)
        self.offset = options.pop("offset", 0)
        assert not options
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.steps = strides and (ctypes.c_int64 * len(strides))(*strides)
        self.tensor = Tensor(ptr, *device, len(shape), *dtype)
        self.tensor.shape = self.shape
        if strides:
            self.tensor.strides = self.steps
        self.tensor.byte_offset = self.offset
        self.end = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.ended.append)
        self.destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self.capsule_ends)
        self.name = None

    def capsule_ends(self, capsule):
        """The capsule's own end: of one that was not taken."""
        is_valid = ctypes.pythonapi.PyCapsule_IsValid
        is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        name = getattr(self, "name", None)  # this object may have been collected before
        if name is not None and is_valid(capsule, name):
            self.ended.append("by the capsule")

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        if "max_version" in asked and not self.versions:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        deleter = ctypes.cast(self.end, ctypes.c_void_p).value
        if self.versions:
            self.name = VERSIONED
            self.managed = Versioned(self.major, 0, None, deleter, self.flags, self.tensor)
        else:
            self.name = LEGACY
            self.managed = Plain(self.tensor, None, deleter)
        destroy = ctypes.cast(self.destroy, ctypes.c_void_p)
        self.capsule = capsule_new(ctypes.addressof(self.managed), self.name, destroy)
        return self.capsule


def leases(client):
    gc.collect()
    return n_leases(client)


# --- arrays for others: what the structs say ------------------------------------------------


def test_without_elements_strides_are_anything(client):
    with client.empty((4, 3), [("a", "<u2"), ("b", "<f4")], memory="pinned") as records:
        with records["b"] as all_of, records["b"][:0] as none_of:
            assert none_of.strides == (18, 6) and np.from_dlpack(none_of).shape == (0, 3)
            with pytest.raises(BufferError, match="no multiples"):
                all_of.__dlpack__()
    for strides in (18, 6), (-3, 0), (1, -7):
        desc = {"shape": (0, 3), "typestr": "<f4", "strides": strides, "data": (0, False), "version": 3}
        with caid.from_cuda_array_interface(desc) as a, caid.from_dlpack(a) as b:
            assert a.__cuda_array_interface__ == {**desc, "strides": None, "stream": None}
            assert a.__dlpack__(max_version=(1, 0)) and b.shape == (0, 3)


@pytest.mark.parametrize("version, name", [(None, LEGACY), ((0, 8), LEGACY), ((1, 0), VERSIONED)])
def test_the_structs(counted, version, name):
    a, _ = counted
    for view, shape, strides in [
        (a, (4, 6), (6, 1)),
        (a.T, (6, 4), (1, 6)),
        (a[::2, 1:4], (2, 3), (12, 1)),
        (a[::-1], (4, 6), (-6, 1)),
        (a[2, 3], (), ()),
        (a[:, None, 0:0], (4, 1, 0), (1, 1, 1)),
    ]:
        capsule = view.__dlpack__(max_version=version)
        c = Consumer(capsule)
        t = c.tensor
        assert c.name == name and capsule_name(capsule) == USED[name]
        assert (c.shape, c.strides) == (shape, strides)
        assert (t.data or 0, t.byte_offset) == (view.ptr, 0)
        assert (t.device_type, t.device_id) == a.__dlpack_device__() == (CUDA, a.mapped_ordinal)
        assert (t.code, t.bits, t.lanes) == (0, 32, 1)
        if name == VERSIONED:
            assert (c.managed.major, c.managed.minor, c.managed.flags) == (1, 1, 0)
        c.end()


@pytest.mark.parametrize("version", [(1, 0), (1, 9), (2, 0)])
def test_newer_versions_are_answered_with_1(counted, version):
    c = Consumer(counted[0].__dlpack__(max_version=version))
    assert c.managed.major == 1
    c.end()


TYPES = {
    "|b1": (6, 8),
    "|i1": (0, 8),
    "<i2": (0, 16),
    "<i4": (0, 32),
    "<i8": (0, 64),
    "|u1": (1, 8),
    "<u2": (1, 16),
    "<u4": (1, 32),
    "<u8": (1, 64),
    "<f2": (2, 16),
    "<f4": (2, 32),
    "<f8": (2, 64),
    "<c8": (5, 64),
    "<c16": (5, 128),
    "bfloat16": (4, 16),
    "complex32": (5, 32),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (17, 4),
    "int4": (0, 4),
    "uint4": (1, 4),
    "int2": (0, 2),
    "uint2": (1, 2),
    "int1": (0, 1),
    "uint1": (1, 1),
    "float4_e2m1fn_x2": (17, 4, 2),
    "float6_e2m3fn_x4": (15, 6, 4),
    "float6_e3m2fn_x4": (16, 6, 4),
}


@pytest.mark.parametrize("typestr, told", TYPES.items(), ids=TYPES.keys())
def test_types_there_and_back(client, typestr, told):
    with client.empty(3, typestr) as a:
        c = Consumer(a.__dlpack__(max_version=(1, 1)))
        assert (c.tensor.code, c.tensor.bits, c.tensor.lanes) == (*told, 1)[:3]
        assert c.managed.flags == (IS_PADDED if told[1] < 8 and len(told) == 2 else 0)
        c.end()
        with caid.from_dlpack(ByDlpack(a), client=client) as b:
            assert (b.dtype, b.ptr, b.shape, b.strides) == (a.dtype, a.ptr, (3,), a.strides)
            assert f"typestr={typestr!r}" in repr(b)


NO_TYPES = [">i4", ">c16", "|V12", "|S4", "<U4", "<M8[ns]", "<f16", "<c32"]


@pytest.mark.parametrize("typestr", NO_TYPES)
def test_types_that_dlpack_has_not(client, typestr):
    with client.empty(3, typestr) as a:
        with pytest.raises(BufferError, match="DLPack has no"):
            a.__dlpack__(max_version=(1, 0))
    assert leases(client) == 0


def test_a_struct_is_told_by_its_fields(client):
    with client.empty(3, [("x", "<f4"), ("y", "<i2")]) as a:
        with pytest.raises(BufferError, match=r'DLPack has no type for \[\["x","<f4"\],\["y"'):
            a.__dlpack__()


def test_strides_are_of_elements(client):
    with client.empty(32, "|u1") as memory:
        desc = {"shape": (3, 2), "typestr": "<i4", "strides": (10, 4), "data": (memory.ptr, False)}
        a = caid.from_cuda_array_interface({**desc, "version": 3}, memory, client=client)
        with pytest.raises(BufferError, match=r"strides \(10, 4\) are no multiples"):
            a.__dlpack__()
        c = Consumer(a[:1].__dlpack__())  # a step that is never taken
        assert (c.shape, c.strides[1]) == ((1, 2), 1)
        c.end()


def test_read_only_is_told_or_refused(client):
    with client.create("r", 3, "<i4") as a, client.open("r") as b:
        client.unlink("r")
        c = Consumer(b.__dlpack__(max_version=(1, 0)))
        assert c.managed.flags == READ_ONLY
        c.end()
        for version in (None, (0, 8)):
            with pytest.raises(BufferError, match=r"read-only, which DLPack before version 1"):
                b.__dlpack__(max_version=version)
        c = Consumer(a.__dlpack__())
        c.end()
        with caid.from_dlpack(ByDlpack(b)) as again:
            assert again.readonly
            with pytest.raises(caid.ReadOnlyError):
                again.copy_from_host(np.zeros(3, "<i4"))
        with caid.from_dlpack(ByDlpack(a)) as again:
            assert not again.readonly


def test_wishes(counted):
    a, _ = counted
    for wishes in ({"dl_device": (CUDA, a.mapped_ordinal)}, {"copy": False}, {"copy": None}):
        Consumer(a.__dlpack__(**wishes)).end()
    for wishes in (
        {"dl_device": (CPU, 0), "copy": False},
        {"dl_device": (CPU, 1)},
        {"dl_device": (CUDA, 7)},
        {"dl_device": (CUDA_HOST, 0)},
    ):
        with pytest.raises(BufferError):
            a.__dlpack__(**wishes)
    for version in (1, "1.0", (1,), (1, 0, 0), ("a", "b")):
        with pytest.raises(TypeError, match="max_version"):
            a.__dlpack__(max_version=version)
    with pytest.raises(TypeError):
        a.__dlpack__(1)


class OnTheHost(ByDlpack):
    """What asks for it there: numpy.from_dlpack(x, device="cpu") since NumPy 2.1."""

    def __dlpack_device__(self):
        return (CPU, 0)

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(dl_device=(CPU, 0), **asked)


def test_on_the_host_it_is_a_copy(counted):
    a, twin = counted
    for key in np.s_[:], np.s_[::2, 1:4], np.s_[::-1], np.s_[2, 3], np.s_[0:0]:
        np.testing.assert_array_equal(np.from_dlpack(OnTheHost(a[key])), twin[key])
        np.testing.assert_array_equal(np.from_dlpack(OnTheHost(a[key].T)), twin[key].T)
    c = Consumer(a.__dlpack__(dl_device=(CPU, 0), max_version=(1, 0)))
    assert (c.tensor.device_type, c.managed.flags) == (CPU, IS_COPIED)
    c.end()
    with pytest.raises(ValueError):
        a.__dlpack__(dl_device=(CPU, 0), stream=0)


@pytest.mark.parametrize("memory", ["device", "pinned", "mapped", "managed"])
@pytest.mark.parametrize("stream", [None, 1, -1])
def test_a_copy_has_memory_of_its_own(client, memory, stream):
    with client.empty((2, 3), "<i4", memory=memory) as a:
        a.copy_from_host(np.arange(6, dtype="<i4").reshape(2, 3))
        for array in a.T, a[:, ::2], a[:0]:
            c = Consumer(array.__dlpack__(copy=True, stream=stream, max_version=(1, 0)))
            assert (c.tensor.device_type, c.managed.flags) == (a.__dlpack_device__()[0], IS_COPIED)
            assert c.shape == array.shape and (not array.size or c.tensor.data != array.ptr)
            c.end()
        with caid.from_dlpack(ByCopy(a.T)) as b:
            a.copy_from_host(np.zeros((2, 3), "<i4"))
            np.testing.assert_array_equal(b.copy_to_host(), np.arange(6).reshape(2, 3).T)
    del array
    assert leases(client) == 0


class ByCopy(ByDlpack):
    def __dlpack__(self, **asked):
        return self.array.__dlpack__(copy=True, **asked)


def test_an_array_of_another_library_is_copied_to_the_daemons_memory(client, monkeypatch, daemon):
    monkeypatch.setenv("CAID_SOCKET", daemon.address)
    with client.empty(3, "<i4") as memory, caid.from_dlpack(ByDlpack(memory)) as foreign:
        memory.copy_from_host(np.arange(3, dtype="<i4"))
        with caid.from_dlpack(ByCopy(foreign)) as b:
            assert b.ptr != memory.ptr
            np.testing.assert_array_equal(b.copy_to_host(), np.arange(3))
        caid.default_client().close()


def test_a_copy_of_what_is_read_only_is_not(client):
    with client.create("ro", 3, "<i4"), client.open("ro") as a:
        for wishes in {"copy": True}, {"dl_device": (CPU, 0)}:
            Consumer(a.__dlpack__(**wishes)).end()
            c = Consumer(a.__dlpack__(**wishes, max_version=(1, 0)))
            assert c.managed.flags == IS_COPIED
            c.end()
        client.unlink("ro")


def test_types_of_less_than_a_byte_need_version_1_1(client):
    with client.empty(3, "int4") as a:
        for version in None, (1, 0):
            with pytest.raises(BufferError, match="before version 1.1"):
                a.__dlpack__(max_version=version)


def test_a_closed_array_gives_nothing(client):
    a = client.empty(3, "<i4")
    v = a.view()
    a.close()
    for call in (a.__dlpack__, a.__dlpack_device__):
        with pytest.raises(caid.ClosedError):
            call()
    v.close()


# --- the end of a tensor --------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes_ends_itself(client, version):
    a = client.empty(3, "<i4")
    capsule = a.__dlpack__(max_version=version)
    a.close()
    assert a.closed and leases(client) == 1
    del capsule
    assert leases(client) == 0


@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize("with_gil", [False, True])
def test_a_tensor_keeps_the_memory(client, soft, version, with_gil):
    a = client.empty(3, "<i4")
    a.copy_from_host(np.array([5, 6, 7], "<i4"))
    capsule = a.__dlpack__(max_version=version)
    c = Consumer(capsule)
    del capsule
    a.close()
    with pytest.raises(caid.ClosedError):
        a.copy_to_host()
    assert leases(client) == 1
    assert list((ctypes.c_int32 * 3).from_address(c.tensor.data)) == [5, 6, 7]
    c.end(with_gil)
    assert leases(client) == 0


def test_a_tensor_outlives_its_client(soft):
    with caid.LocalDaemon() as d:  # nobody gets that memory before this process has exited
        with d.connect() as c:
            a = c.empty(3, "<i4")
            a.copy_from_host(np.array([5, 6, 7], "<i4"))
            taken = Consumer(a.__dlpack__())
        assert a.closed
        assert list((ctypes.c_int32 * 3).from_address(taken.tensor.data)) == [5, 6, 7]
        taken.end()


def test_any_thread_may_end_it(client):
    a = client.empty(3, "<i4")
    c = Consumer(a.__dlpack__())
    a.close()
    in_threads(1, lambda _: c.end())
    assert leases(client) == 0


def test_an_exception_goes_on_past_the_end(client):
    a = client.empty(3, "<i4")
    with pytest.raises(TypeError, match="unsupported operand"):
        a.__dlpack__() / (a.close() or 1)
    assert leases(client) == 0


AT_EXIT = """
import ctypes
import sys
sys.path.insert(0, {tests!r})
import caid
from test_dlpack import Consumer
c = caid.connect()
a = c.empty(3, "<i4")
taken = Consumer(a.__dlpack__(max_version=(1, 0)))
a.close()
deleter = ctypes.c_void_p(taken.managed.deleter)
# A library's own end, after Python's: its tensors end there.
ctypes.CDLL(None).__cxa_atexit(deleter, ctypes.c_void_p(ctypes.addressof(taken.managed)), None)
step("made")
"""


def test_the_end_of_the_interpreter_does_no_harm(client, child):
    process = child(AT_EXIT.format(tests=os.path.dirname(__file__)))
    process.expect("made")
    assert leases(client) == 1
    process.go()
    status, errors = process.finish()
    assert status == 0, errors
    wait_until(lambda: leases(client) == 0)


# --- memory of the host ---------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["pinned", "mapped"])
def test_memory_of_the_host(client, memory):
    with client.create("host", 4, "<i4", memory=memory) as a:
        client.unlink("host")
        a.copy_from_host(np.arange(4, dtype="<i4"))
        assert a.__dlpack_device__() == (CPU, 0)
        for wishes, kind in ({}, CPU), ({"dl_device": (CPU, 0)}, CPU), ({"dl_device": (CUDA_HOST, 0)}, CUDA_HOST):
            c = Consumer(a.__dlpack__(copy=False, **wishes))
            assert (c.tensor.device_type, c.tensor.data) == (kind, a.host_ptr)
            c.end()
        with pytest.raises(BufferError, match="not \\(2, 0\\)"):
            a.__dlpack__(dl_device=(CUDA, 0))
        seen = np.from_dlpack(a)
        np.testing.assert_array_equal(seen, np.arange(4))
        with caid.from_dlpack(ByDlpack(a)) as b:
            np.testing.assert_array_equal(b.copy_to_host(), np.arange(4))
    assert leases(client) == 1  # NumPy's
    del seen
    assert leases(client) == 0


def test_managed_memory(client):
    with client.empty(4, "<i4", memory="managed") as a:
        assert a.__dlpack_device__() == (CUDA_MANAGED, 0)
        c = Consumer(a.__dlpack__())
        assert (c.tensor.device_type, c.tensor.data) == (CUDA_MANAGED, a.ptr)
        c.end()
    array = caid.managed_array(4, "<i4", client=client)
    array[:] = 7
    with client.as_array(array) as a:
        assert a.__dlpack_device__() == (CUDA, 0)  # another library's: known as the device's
        with caid.from_dlpack(ByDlpack(a)) as b:
            assert (b.copy_to_host() == 7).all()


def test_numpys_page_locked_memory_is_taken(client):
    pinned = caid.pinned_array(4, "<i4", client=client)
    pinned[:] = 3
    with caid.from_dlpack(pinned) as a:
        assert (a.copy_to_host() == 3).all()
        a.copy_from_host(np.arange(4, dtype="<i4"))
    np.testing.assert_array_equal(pinned, np.arange(4))
    with pytest.raises(BufferError, match="not page-locked"):
        caid.from_dlpack(np.zeros(4, "<i4"))


# --- arrays of others -----------------------------------------------------------------------


@pytest.mark.parametrize("versions", [False, True])
@pytest.mark.parametrize("kind", [CUDA, CUDA_MANAGED])
def test_both_capsules_are_taken(counted, versions, kind):
    a, twin = counted
    p = Producer(a.ptr, (4, 6), strides=(6, 1), versions=versions, device=(kind, 0))
    b = caid.from_dlpack(p)
    assert capsule_name(p.capsule) == USED[p.name]
    asked = {"stream": 1, "max_version": (1, 1)}
    assert p.asked == ([asked] if versions else [asked, {"stream": 1}])
    assert (b.ptr, b.shape, b.strides, b.device) == (a.ptr, (4, 6), (24, 4), 0)
    np.testing.assert_array_equal(b.copy_to_host(), twin)
    v = b[1:]
    b.close()
    assert p.ended == []
    np.testing.assert_array_equal(v.copy_to_host(), twin[1:])
    v.close()
    assert p.ended == [ctypes.addressof(p.managed)]
    del b, v, p.capsule
    gc.collect()
    assert len(p.ended) == 1


def test_what_tensors_may_look_like(counted):
    a, twin = counted
    for p, expected in [
        (Producer(a.ptr, (4, 6)), twin),  # no strides: C order
        (Producer(a.ptr, (2, 3), strides=(12, 2), offset=4), twin[::2, 1::2]),
        (Producer(a.ptr, (), strides=None), twin[0, 0]),
        (Producer(0, (0, 3)), twin[:0, :3]),
    ]:
        with caid.from_dlpack(p) as b:
            np.testing.assert_array_equal(b.copy_to_host(), expected)
        assert len(p.ended) == 1


REFUSED = {
    "version 2": ({"major": 2}, BufferError, r"version 2\.0"),
    "lanes": ({"dtype": (2, 32, 4)}, BufferError, "32 bits, 4 lanes"),
    "4 bits": ({"dtype": (0, 4, 1)}, BufferError, "4 bits"),
    "a code of tomorrow": ({"dtype": (18, 8, 1)}, BufferError, "code 18"),
    "float128": ({"dtype": (2, 128, 1)}, BufferError, "128 bits"),
    "another device": ({"device": (10, 0)}, BufferError, "device type 10"),
    "a negative shape": ({"shape": (-1,)}, BufferError, "negative"),
    "too many dimensions": ({"shape": (1,) * 65}, BufferError, "65 dimensions"),
    "a pointer of nobody": ({"ptr": 4096}, caid.InvalidError, "0x1000"),
}


@pytest.mark.parametrize("changes, error, what", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_is_given_back(counted, changes, error, what):
    a, _ = counted
    p = Producer(**{"ptr": a.ptr, "shape": (3,), **changes})
    with pytest.raises(error, match=what):
        caid.from_dlpack(p)
    p.capsule = None
    gc.collect()
    assert len(p.ended) == bool(p.asked)


def test_a_producers_own_error_is_not_hidden():
    """It is not asked again, as one would be that knows no versions."""

    class Broken(Producer):
        def __dlpack__(self, **asked):
            self.asked.append(asked)
            raise TypeError("unsupported operand")

    p = Broken(0, (3,))
    with pytest.raises(TypeError, match="unsupported operand"):
        caid.from_dlpack(p)
    assert len(p.asked) == 1

    class NoKeywords(Broken):
        def __dlpack__(self, **asked):
            self.asked.append(asked)
            raise TypeError("NoKeywords.__dlpack__() takes no keyword arguments")

    p = NoKeywords(0, (3,))
    with pytest.raises(TypeError) as caught:
        caid.from_dlpack(p)
    assert len(p.asked) == 2 and isinstance(caught.value.__context__, TypeError)


def test_what_has_no_dlpack():
    for x in (None, 5, object()):
        with pytest.raises(TypeError, match="has no __dlpack__"):
            caid.from_dlpack(x)

    class Odd(Producer):
        def __dlpack__(self, **_asked):
            return self.gives

    p = Odd(0, (3,))
    p.gives = "capsule"
    with pytest.raises(TypeError, match="gave no capsule, but str"):
        caid.from_dlpack(p)
    p.gives = capsule_new(ctypes.addressof(p.tensor), b"used_dltensor", None)
    with pytest.raises(BufferError, match="was taken before"):
        caid.from_dlpack(p)


def test_an_error_of_the_producer_is_its_own(counted):
    class Failing(Producer):
        def __dlpack__(self, **asked):
            raise BufferError("not today")

    with pytest.raises(BufferError, match="not today"):
        caid.from_dlpack(Failing(0, (3,)))


def test_a_caid_array_gives_a_view(counted):
    a, _ = counted
    with caid.from_dlpack(a) as b:
        assert b is not a and (b.ptr, b.pool) == (a.ptr, a.pool)


def test_there_and_back(counted, client):
    """From caid to caid by capsules alone, which keep each other."""
    a, twin = counted
    with client.empty((4, 6), "<i4") as source:
        source.copy_from(a)
        b = caid.from_dlpack(ByDlpack(source))
        c = caid.from_dlpack(ByDlpack(b))
        b.close()
    assert leases(client) == 2
    np.testing.assert_array_equal(c.copy_to_host(), twin)
    c.close()
    assert leases(client) == 1


# --- streams --------------------------------------------------------------------------------


def pending(client, s):
    """An array to which a copy is held up on a stream."""
    a = client.zeros(1000, "<i4")
    s.hold_up_copy(a, 7)
    return a


@pytest.mark.parametrize("waits", [True, False])
def test_the_consumers_stream_waits(client, streams, waits):
    """And shows old data where it is told not to."""
    s, t = streams
    a = pending(client, s)
    out = caid.pinned_array(1000, "<i4", client=client)
    out[:] = -1
    with a:
        c = Consumer(a.__dlpack__(stream=t.number if waits else -1))
        t.read(a, out)
        thread = threading.Thread(target=client._stream_synchronize, args=(t.number, 0))
        thread.start()
        thread.join(0.05 if waits else None)
        assert (out == (-1 if waits else 0)).all()
        s.gate.set()
        thread.join()
        assert (out == (7 if waits else 0)).all()
        c.end()


def test_without_a_stream_it_is_the_legacy_one(client, streams):
    s, _ = streams
    a = pending(client, s)
    with a:
        c = Consumer(a.__dlpack__())

        def synchronize():
            client._stream_synchronize(1, 0)
            return s.gate.is_set()

        thread, done = in_a_thread(synchronize)
        s.gate.set()
        thread.join()
        assert done == [True]
        c.end()


def test_streams_that_are_taken(counted):
    for stream in (None, 1, 2, -1):
        Consumer(counted[0].__dlpack__(stream=stream)).end()


def test_the_host_waits_where_it_is_to_read(client, streams):
    s, _ = streams
    host = client.create("host", 1000, "<i4", memory="pinned")
    client.unlink("host")
    with host as a, client.empty(1000, "<i4") as source:
        source.copy_from_host(np.full(1000, 7, "<i4"))
        s.hold_up()
        a.copy_from(source, stream=s.number)
        assert (after_gate(s.gate, lambda: np.from_dlpack(a).copy()) == 7).all()


@pytest.mark.parametrize("asked, told", [(None, 1), (2, 2), (-1, -1)])
def test_a_producer_is_told_the_stream(counted, asked, told):
    f = ByDlpack(counted[0])
    caid.from_dlpack(f, stream=asked).close()
    assert f.asked == [{"stream": told, "max_version": (1, 1)}]


def test_who_is_on_the_host_is_told_no_stream(client):
    with client.create("host", 3, "<i4", memory="pinned") as a:
        client.unlink("host")
        f = ByDlpack(a)
        caid.from_dlpack(f, stream=2).close()
        assert f.asked == [{"max_version": (1, 1)}]


def test_what_was_taken_on_a_stream_is_pending_there(client, streams):
    """Who gets it next, by the CUDA Array Interface, has to wait for that stream."""
    s, t = streams
    a = pending(client, s)
    with a, caid.from_dlpack(ByDlpack(a), stream=t.number) as b:
        assert b.__cuda_array_interface__["stream"] is not None
        s.gate.set()
        b.synchronize()
        assert b.__cuda_array_interface__["stream"] is None
        assert (b.copy_to_host() == 7).all()


@pytest.mark.parametrize("kind", ["closed", "of another thread"])
def test_a_stream_that_nobody_can_name_is_waited_for(client, streams, kind):
    """The one that it was taken on, by the host: also where the copy is on another."""
    s, t = streams
    a = pending(client, s)
    made = []
    with a, client.empty(a.shape, a.typestr) as there, client.stream() as mine:
        stream = mine if kind == "closed" else 2
        thread, ended = in_thread(lambda: made.append(caid.from_dlpack(ByDlpack(a), stream=stream)))
        thread.join()
        assert ended == [None]
        mine.close()
        threading.Timer(0.1, s.gate.set).start()
        with made.pop() as b:
            there.copy_from(b, stream=t.number)
            t.synchronize()
            assert (there.copy_to_host() == 7).all()
