# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory: who reaches it by which interface, what keeps it, what it costs; and its end:
closes on streams, the queue, flush() and defer_cleanup()."""

import errno
import gc

import numpy
import pytest
from conftest import n_leases, refuses, wait_until

import caid

SHARED = ["device", "legacy", "pinned", "mapped"]
HOST = ["pinned", "mapped", "managed"]
KIB = bytes(range(256)) * 4


def make(client, memory, shape=(4, 6), dtype="<f4", **options):
    return client.empty(shape, dtype, memory=memory, **options)


# --- every kind -----------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [*SHARED, "managed"])
def test_every_kind_is_copied_to_and_from(client, memory):
    twin = numpy.arange(24, dtype="<f4").reshape(4, 6)
    with make(client, memory) as a, make(client, "device") as b:
        assert (a.memory, a.shape, a.nbytes, a.readonly) == (memory, (4, 6), 96, False)
        assert ("memory=" in repr(a)) == (memory != "device")
        a.copy_from_host(twin)
        numpy.testing.assert_array_equal(a.copy_to_host(), twin)
        b.copy_from(a)
        a[1:].copy_from_host(twin[1:] * 2)
        numpy.testing.assert_array_equal(a.T.copy_to_host()[:, 1:], (twin * 2).T[:, 1:])
        a.copy_from(b)
    assert a.memory == memory and a.closed


@pytest.mark.parametrize("memory", SHARED)
def test_every_shared_kind_is_listed_and_opened_by_name(client, memory):
    with client.create("a", 1024, "|u1", memory=memory) as a:
        a.copy_from_host(KIB)
        assert client.list()[0].memory == client.show("a").entry.memory == memory
    with client.open("a") as b:
        assert (b.memory, b.readonly) == (memory, True)
        assert b.copy_to_host().tobytes() == KIB
        with pytest.raises(caid.ReadOnlyError, match="'a' is read-only"):
            b.copy_from_host(KIB)
        if memory != "pinned":
            assert b.__cuda_array_interface__["data"] == (b.ptr, True)


def test_arrays_of_no_bytes(client):
    for memory in (*SHARED, "managed"):
        with make(client, memory, (0, 3)) as a:
            assert (a.memory, a.ptr, a.nbytes, a.host_ptr) == (memory, 0, 0, None)
            if memory in HOST:
                assert numpy.asarray(a).shape == (0, 3)


@pytest.mark.parametrize("memory", ["", "Device", "vram", "pinned "])
def test_kinds_that_are_none(client, memory):
    with pytest.raises(caid.InvalidError, match="memory"):
        make(client, memory)
    with pytest.raises(TypeError, match="memory"):
        make(client, 5)


@pytest.mark.parametrize("alignment", [3, 1 << 22, 1 << 63])
def test_alignments_that_are_none(client, alignment):
    with pytest.raises(caid.InvalidError, match="alignment"):
        client.empty(5, alignment=alignment)
    for wrong in (-1, 2**64):
        with pytest.raises(caid.InvalidError, match="alignment"):
            client.empty(5, alignment=wrong)


# --- memory of the host ---------------------------------------------------------------------


def test_pinned_memory_is_numpys(client):
    with client.create("a", (4, 6), "<i4", memory="pinned") as a:
        x = numpy.asarray(a)
        assert x.ctypes.data == a.host_ptr and x.flags.writeable
        assert a.device_ptr == a.ptr
        assert not hasattr(a, "__cuda_array_interface__")
        with pytest.raises(AttributeError, match="mapped"):
            a.__cuda_array_interface__
        x[:] = numpy.arange(24).reshape(4, 6)
        with client.empty((4, 6), "<i4") as d:  # the driver copies
            d.copy_from(a)
            numpy.testing.assert_array_equal(d.copy_to_host(), x)
            d.copy_from_host(x * 3)
            d.copy_to(a)
        assert x[3, 5] == 69
        v = numpy.asarray(a[1:, ::-2])
        assert v.ctypes.data == x[1:, ::-2].ctypes.data
        numpy.testing.assert_array_equal(v, x[1:, ::-2])
        with client.open("a") as b:
            y = numpy.asarray(b)
            assert y[0, 1] == 3 and not y.flags.writeable
            del y
        del x, v


@pytest.mark.parametrize("memory", ["mapped", "managed"])
def test_memory_for_kernels_and_the_host(client, memory):
    with make(client, memory) as a:
        x = numpy.asarray(a)
        x[:] = 5
        assert a.__cuda_array_interface__["data"] == (a.ptr, False)
        assert (a[1:].copy_to_host() == 5).all()
        assert a.host_ptr == x.ctypes.data
        del x


def test_device_memory_is_the_hosts_on_the_software_driver_only(client, soft):
    for memory in ("device", "legacy"):
        with make(client, memory) as a:
            numpy.asarray(a)[:] = 7
            assert a.host_ptr == a.ptr and (a.copy_to_host() == 7).all()
    gc.collect()


def test_a_numpy_array_keeps_the_lease(daemon, client):
    a = client.create("a", 1024, "|u1", memory="pinned")
    x = numpy.asarray(a)
    a.close()
    assert n_leases(client) == 1
    client.unlink("a")
    with client.empty(1024, "|u1", memory="pinned") as other:
        numpy.asarray(other)[:] = 1
        x[:] = 2
        assert (numpy.asarray(other) == 1).all()
    del x
    gc.collect()
    assert n_leases(client) == 0


def test_a_closed_client_leaves_numpy_its_memory(client, child):
    """It goes with the process that sees it, not with the connection."""
    c = child(
        """
        import numpy
        with caid.connect() as c:
            a, b = c.empty(1024, "|u1", memory="pinned"), c.empty(1024, "|u1")
            x = numpy.asarray(a)
        assert a.closed and b.closed
        step("closed")
        x[:] = 3
        assert x.sum() == 3 * 1024
        del x
        step("gone")
        """
    )
    c.expect("closed")
    wait_until(lambda: client.status().connections == 1)
    wait_until(lambda: client.memory_info().arrays == 1)
    c.go()
    c.expect("gone")
    with client.empty(1024, "|u1", memory="pinned"):
        assert client.memory_info().arrays == 2
    c.go()
    assert c.finish() == (0, "")
    wait_until(lambda: client.memory_info().arrays == 0)


def test_managed_memory_is_of_one_process(client):
    before = client.status()
    with make(client, "managed") as a:
        assert (a.name, a.pool, a.generation) == (None, None, 0)
        assert client.status().arrays == before.arrays
        with pytest.raises(caid.UnsupportedError, match="not in the daemon's memory"):
            a.publish("a")
        v = a[1]
    v.close()
    with pytest.raises(caid.UnsupportedError, match="no name"):
        client.create("a", 4, memory="managed")
    assert client.list() == []


# --- legacy handles -------------------------------------------------------------------------


def test_the_handle_of_legacy_memory(client):
    with client.create("a", (4, 64), "<f4", memory="legacy") as a:
        handle = a.ipc_handle
        assert isinstance(handle, caid.IpcHandle) and isinstance(handle.handle, bytes)
        assert len(handle.handle) == 64 and handle.offset + a.nbytes <= handle.size
        with a[1] as row:
            assert row.ipc_handle == handle._replace(offset=handle.offset + 256)
        with client.open("a") as b:
            assert b.ipc_handle == handle
        assert client.memory_info().context
        assert client.status().contexts == 1
    with refuses(caid.ClosedError):
        a.ipc_handle


@pytest.mark.parametrize("memory", ["device", "pinned", "mapped", "managed"])
def test_other_memory_has_no_handle(client, memory):
    with make(client, memory) as a:
        with refuses(caid.UnsupportedError):
            a.ipc_handle
    with make(client, "device") as a, caid.as_array(a.__cuda_array_interface__) as foreign:
        with refuses(caid.UnsupportedError, match="another library"):
            foreign.ipc_handle
        with pytest.raises(caid.UnsupportedError):
            foreign.publish("a")
        assert (foreign.memory, foreign.metadata, foreign.mapped_ordinal, foreign.host_ptr) == (
            None,
            None,
            -1,
            None,
        )


# --- close(stream=) -------------------------------------------------------------------------


NO_STREAM = 0xDEAD0000  # the driver is asked for it, and knows none such


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.copy_from_host(bytes(16)),
        lambda a: a.copy_to_host(bytearray(16)),
        lambda a: a.publish("a"),
        lambda a: a.ipc_handle,
    ],
    ids=["copy_from_host", "copy_to_host", "publish", "ipc_handle"],
)
def test_a_call_before_does_not_hide_the_stream(client, call):
    a = client.empty(4, "<f4", memory="legacy")
    call(a)
    with pytest.raises(caid.DriverError, match="stream"):
        a.close(NO_STREAM)
    assert not a.closed
    a.close(1)


def test_views_are_closed_on_streams_each(client):
    a = client.empty((4, 4))
    v, w = a[1:], a.T
    v.close(1)
    a.close(2)
    assert not w.closed
    wait_until(lambda: client.status().leases == 1)
    w.copy_to_host()
    w.close(1)
    wait_until(lambda: client.status().leases == 0)


# --- the queue ------------------------------------------------------------------------------


def test_what_is_freed_waits_in_the_queue(client):
    client.flush()
    before = client.memory_info()
    with client.defer_cleanup():
        arrays = [client.empty(1000, "|u1") for _ in range(3)]
        for a in arrays:
            a.close()
        wait_until(lambda: client.status().leases == 0)
        wait_until(lambda: client.memory_info().pending == before.pending + 3)
        assert client.flush() == (0, 0, 0)
    flushed = client.flush()
    assert isinstance(flushed, caid.Flushed)
    assert (flushed.entries, flushed.blocks) == (3, 1) and flushed.bytes >= 1 << 21


def test_a_use_without_begin_is_refused(client):
    with pytest.raises(caid.Error):
        client._defer_end()


def test_devices_are_given_by_index_or_uuid(client):
    uuid = client.devices[0].uuid
    with client.empty(4, device=uuid) as a:
        assert a.device == 0 and a.mapped_ordinal == 0
    assert client.memory_info(uuid).total == client.memory_info().total
    for call in (client.memory_info, client.flush, lambda d: client.empty(4, device=d)):
        for wrong in ("GPU-of-somebody-else", -7):
            with pytest.raises(caid.DeviceError, match=str(wrong)):
                call(wrong)


# --- who pins memory ------------------------------------------------------------------------


# --- metadata -------------------------------------------------------------------------------

METADATA = {
    "a dict": {"name": "\u00e9\U0001f600\0", "scale": 0.5, "sizes": [1, [2]], "n": None},
    "a list": [1, 2, 3],
    "text": "plain",
    "a number": 0,
    "false": False,
    "empty": {},
}


@pytest.mark.parametrize("value", METADATA.values(), ids=METADATA.keys())
def test_metadata_travels_with_the_array(client, value):
    with client.create("a", 4, metadata=value) as a, client.open("a") as b:
        for x in (a, b, b[1:]):
            assert x.metadata == value
            x.close()
        assert a.metadata is not b.metadata or not isinstance(value, (dict, list))
    assert client.show("a").metadata == value


def test_metadata_is_decoded_anew(client):
    with client.empty(4, metadata={"n": [1]}) as a, client.empty(4) as none:
        a.metadata["n"].append(2)
        assert a.metadata == {"n": [1]} and none.metadata is None
    with client.empty_like(a, metadata=[5]) as b:
        assert b.metadata == [5]


def test_metadata_over_its_limit(client):
    with client.empty(4, metadata="x" * 4094) as a:
        assert len(a.metadata) == 4094
    with client.empty(4) as a:
        for call in (
            lambda value: client.empty(4, metadata=value),
            lambda value: a.publish("a", metadata=value),
        ):
            with pytest.raises(caid.Error, match="4,?096") as caught:
                call("x" * 4095)
            assert caught.value.errno in (errno.EINVAL, errno.EMSGSIZE)
    assert client.list() == []


def test_metadata_that_is_none(client):
    loop = []
    loop.append(loop)
    for value in (float("nan"), {"x": float("inf")}, loop, "\ud800"):
        with pytest.raises(caid.InvalidError, match="metadata"):
            client.empty(4, metadata=value)
    for value in ({1, 2}, numpy.zeros(2), object()):
        with pytest.raises(TypeError):
            client.empty(4, metadata=value)


@pytest.mark.parametrize("text", ["no JSON", "[" * 3000, "", '{"a":'])
def test_metadata_of_a_program_that_does_not_speak_json(client, text):
    lease = client._create(None, (4,), "|u1", None, None, None, 0, 0, None, 0, text, 0)
    with caid._memory._array.of_lease(lease) as a:
        assert a.metadata == (text or None) or a.metadata == text
