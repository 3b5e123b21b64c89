# SPDX-License-Identifier: Apache-2.0
"""Consumer of the CUDA Array Interface: as_array() and from_cuda_array_interface()."""

import gc
import weakref

import numpy as np
import pytest
from conftest import after_gate

import caid


class Producer:
    """Another library's array: a caid array with its dict changed."""

    def __init__(self, array, **changes):
        self.array = array
        self.desc = {**array.__cuda_array_interface__, **changes}
        for key in [key for key, value in changes.items() if value is ...]:
            del self.desc[key]

    @property
    def __cuda_array_interface__(self):
        return self.desc


# --- what is taken --------------------------------------------------------------------------

VERSIONS = {
    "0": {"version": ..., "strides": ..., "stream": ...},
    "1": {"version": 1, "stream": ..., "mask": None},
    "2": {"version": 2, "stream": ..., "mask": None, "descr": [("", "<i4")]},
    "3": {},
    "3 without stream": {"stream": ...},
}


@pytest.mark.parametrize("changes", VERSIONS.values(), ids=VERSIONS.keys())
@pytest.mark.parametrize("with_client", [False, True])
def test_versions_0_to_3(counted, client, changes, with_client):
    a, twin = counted
    as_array = client.as_array if with_client else caid.as_array
    with as_array(Producer(a, **changes)) as b:
        assert (b.shape, b.strides, b.typestr) == (a.shape, a.strides, a.typestr)
        assert b.ptr == a.ptr and b.device == 0 and not b.readonly
        assert (b.name, b.pool, b.generation) == (None, None, 0)
        np.testing.assert_array_equal(b.copy_to_host(), twin)
        b[1].copy_from_host(np.full(6, -1, "<i4"))
    assert (a[1].copy_to_host() == -1).all()


def test_a_dict_is_enough(counted):
    a, twin = counted
    for take in (caid.as_array, caid.from_cuda_array_interface):
        with take(dict(a.__cuda_array_interface__)) as b:
            np.testing.assert_array_equal(b.copy_to_host(), twin)


def test_strides_are_kept(counted):
    a, twin = counted
    with caid.as_array(Producer(a[::-1, ::2])) as b:
        assert b.strides == (-24, 8)
        np.testing.assert_array_equal(b.copy_to_host(), twin[::-1, ::2])


def test_shapes_may_be_lists_of_numpys_ints(counted):
    a, twin = counted
    changes = {"shape": [np.int64(24)], "data": [a.ptr, 1], "strides": [4]}
    with caid.as_array(Producer(a, **changes)) as b:
        assert b.shape == (24,) and type(b.shape[0]) is int and b.readonly is True


def test_read_only_is_kept(counted):
    a, _ = counted
    with caid.as_array(Producer(a, data=(a.ptr, True))) as b:
        assert b.readonly and b.__cuda_array_interface__["data"] == (a.ptr, True)
        with pytest.raises(caid.ReadOnlyError, match="the array is read-only"):
            b.copy_from(a)


def test_empty_arrays_need_no_pointer(client):
    for data in [(0, False), (12345, False)]:
        desc = {"shape": (0, 3), "typestr": "<f4", "data": data, "version": 3, "stream": 1}
        with caid.as_array(desc) as b:
            assert (b.ptr, b.size, b.device) == (0, 0, -1)
            assert b.copy_to_host().shape == (0, 3)


def test_structs_have_fields(counted):
    a, _ = counted
    changes = {"typestr": "|V8", "shape": (12,), "descr": [("a", "<i4"), ("b", "<i4")]}
    with caid.as_array(Producer(a, **changes)) as b:
        assert b.dtype == np.dtype([("a", "<i4"), ("b", "<i4")])
        assert b.copy_to_host()["b"][5] == 11


def test_a_caid_array_gives_a_view(counted):
    a, twin = counted
    with caid.as_array(a) as b:
        assert b is not a and b.ptr == a.ptr and b.pool == a.pool
    assert not a.closed


def test_the_owner_is_kept_alive(counted):
    a, twin = counted
    owner = Producer(a)
    alive = weakref.ref(owner)
    b = caid.as_array(owner)
    v = b[1:]
    del owner
    b.close()
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(v.copy_to_host(), twin[1:])
    v.close()
    assert alive() is None
    with pytest.raises(caid.ClosedError):
        v.copy_to_host()
    desc = a.__cuda_array_interface__
    owner = Producer(a)
    alive = weakref.ref(owner)
    b = caid.from_cuda_array_interface(desc, owner=owner)
    del owner
    assert alive() is not None
    del b
    assert alive() is None


@pytest.mark.parametrize("by", ["copy_from", "copy_to"])
def test_foreign_arrays_are_copied_to_and_from(counted, client, streams, by):
    """After what is on the producer's stream, and done on return."""
    a, _ = counted
    s, _ = streams
    foreign = Producer(a, stream=s.number)
    with client.empty_like(foreign) as b:
        assert (b.shape, b.typestr) == ((4, 6), "<i4")
        b.copy_from(np.zeros((4, 6), "<i4"))
        source, target, value = (a, b, 0x11111111) if by == "copy_from" else (b, a, 0)
        s.hold_up()
        s.fill(a, 0x11)
        after_gate(s.gate, lambda: getattr(b, by)(foreign))
        assert (np.asarray(target) == value).all()


def test_copies_within_foreign_memory_may_overlap(counted):
    a, twin = counted
    with caid.as_array(Producer(a)) as b:
        b.copy_from(b[::-1])
    np.testing.assert_array_equal(a.copy_to_host(), twin[::-1])


def test_foreign_memory_is_no_numpy_array(counted):
    with caid.as_array(Producer(counted[0])) as b:
        assert not hasattr(b, "__array_interface__")
        with pytest.raises(TypeError, match="copy_to_host"):
            np.asarray(b)


# --- what is refused ------------------------------------------------------------------------

REFUSED = {
    "a mask": ({"mask": object()}, NotImplementedError, "masked"),
    "stream 0": ({"stream": 0}, ValueError, "stream 0 is ambiguous"),
    "a stream that is no int": ({"stream": "x"}, caid.InvalidError, "stream 'x'"),
    "version 4": ({"version": 4}, caid.InvalidError, "version 4; 0 to 3"),
    "a negative version": ({"version": -1}, caid.InvalidError, "version -1"),
    "a version that is no int": ({"version": "3"}, caid.InvalidError, "version '3'"),
    "no shape": ({"shape": ...}, caid.InvalidError, "no 'shape'"),
    "no typestr": ({"typestr": ...}, caid.InvalidError, "no 'typestr'"),
    "no data": ({"data": ...}, caid.InvalidError, "no 'data'"),
    "a negative shape": ({"shape": (-1,)}, caid.InvalidError, "negative"),
    "a shape of floats": ({"shape": (1.0,)}, caid.InvalidError, "shape"),
    "other strides": ({"strides": (4,)}, caid.InvalidError, "strides"),
    "objects": ({"typestr": "|O8"}, caid.InvalidError, "typestr '|O8'"),
    "data that is no pair": ({"data": 5}, caid.InvalidError, "data 5"),
    "data of None": ({"data": (None, False)}, caid.InvalidError, "data"),
    "a pointer of nobody": ({"data": (4096, False)}, caid.InvalidError, "0x1000"),
}


@pytest.mark.parametrize("changes, error, what", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(counted, changes, error, what):
    a, twin = counted
    with pytest.raises(error) as caught:
        caid.as_array(Producer(a, **changes))
    assert what in str(caught.value)
    np.testing.assert_array_equal(a.copy_to_host(), twin)


@pytest.mark.parametrize("obj", [None, 5, [1, 2], np.zeros(3), object()])
def test_what_has_no_interface(obj):
    with pytest.raises(TypeError, match="has no __cuda_array_interface__"):
        caid.as_array(obj)
    with pytest.raises(TypeError, match="a dict is needed"):
        caid.from_cuda_array_interface(obj)


def test_the_driver_alone_has_no_daemon():
    local = caid._caid.Client._local(None)
    assert len(local._devices()) >= 1
    with pytest.raises(caid.NoDaemonError, match="no daemon"):
        local.ping()
    with pytest.raises(caid.Error, match="no-such-driver"):
        caid._caid.Client._local("/no-such-driver.so")


# --- streams --------------------------------------------------------------------------------


def test_the_stream_is_waited_for(counted, stream):
    a, _ = counted
    stream.hold_up()
    stream.fill(a, 0x11)

    def consume():
        with caid.as_array(Producer(a, stream=stream.handle.value)):
            return np.asarray(a).copy()

    assert (after_gate(stream.gate, consume) == 0x11111111).all()


def test_the_stream_is_not_waited_for_when_told_so(counted, client, stream, monkeypatch):
    a, twin = counted
    producer = Producer(a, stream=stream.handle.value)
    stream.hold_up()
    stream.fill(a, 0x11)
    for x, of in (producer, caid.as_array), (producer.desc, caid.from_cuda_array_interface), (producer, client.as_array), (
        producer.desc, client.from_cuda_array_interface
    ):
        with of(x, sync=False) as b:
            assert b.__cuda_array_interface__["stream"] is None
            np.testing.assert_array_equal(np.asarray(a), twin)
    monkeypatch.setenv("CAID_CAI_SYNC", "0")
    with caid.as_array(producer):
        np.testing.assert_array_equal(np.asarray(a), twin)


@pytest.mark.parametrize("named", [None, ...], ids=["None", "no entry"])
def test_what_names_no_stream_is_not_waited_for(counted, stream, named):
    a, twin = counted
    stream.hold_up()
    stream.fill(a, 0x11)
    with caid.as_array(Producer(a, stream=named)):
        np.testing.assert_array_equal(np.asarray(a), twin)


@pytest.mark.parametrize("default_stream", [1, 2])
def test_the_default_streams_are_taken(counted, stream, default_stream):
    a, twin = counted
    with caid.as_array(Producer(a, stream=default_stream)) as b:
        np.testing.assert_array_equal(b.copy_to_host(), twin)
