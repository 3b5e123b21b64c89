# SPDX-License-Identifier: Apache-2.0
"""Two devices: arrays on either, and processes that see one, the other, or both. The processes are
children: in each the software driver has the daemon's devices from its environment."""

import pytest
from conftest import LEGACY, Child

import caid

PREAMBLE = """
import numpy
twin = numpy.arange(4096, dtype="<i4")
"""


@pytest.fixture(scope="module")
def two():
    with caid.LocalDaemon(config=LEGACY, devices=2, env={"ASAN_OPTIONS": "detect_leaks=1"}) as d:
        yield d


def run(daemon, code, *args, **env):
    status, errors = Child(PREAMBLE + code, {**daemon.env, **env}, *args).finish()
    assert status == 0, errors


def test_arrays_on_either_device(two):
    run(
        two,
        """
with caid.connect() as c:
    assert len({d.uuid for d in c.devices}) == 2
    for i in (0, 1):
        before = c.memory_info(1 - i)
        with c.create("a", 4096, "<i4", device=i, exclusive=True) as a:
            assert (a.device, a.mapped_ordinal, c.list()[0].device) == (i, i, i)
            a.copy_from_host(twin)
            assert (a.copy_to_host() == twin).all()
            assert c.memory_info(i).arrays == c.memory_info(c.devices[i].uuid).arrays == 1
            other = c.memory_info(1 - i)
            assert (other.used, other.free) == (before.used, before.free)
            with c.empty_like(a) as like, c.empty(4096, "<i4", device=1 - i) as far:
                assert like.device == i
                far.copy_from(a)
                assert (far.copy_to_host() == twin).all()
        c.unlink("a")
        c.flush()
        assert c.memory_info(i).used == 0
    c.create("a", 4).close()
    for wrong in (2, "GPU-none"):
        for call in (c.memory_info, c.flush, lambda d: c.open("a", device=d)):
            try:
                call(wrong)
            except caid.DeviceError as e:
                assert str(wrong) in str(e)
            else:
                raise SystemExit("not refused")
    c.unlink("a")
""",
    )


@pytest.mark.parametrize("memory", ["device", "legacy", "pinned", "mapped"])
def test_the_other_device_reaches_it(two, memory):
    run(
        two,
        """
with caid.connect() as c:
    for i in (0, 1):
        with c.create("a", 4096, "<i4", device=i, memory=sys.argv[1]) as a:
            a.copy_from_host(twin)
        for device in (1 - i, c.devices[1 - i].uuid):
            with caid.connect() as other, other.open("a", "rw", device=device) as b:
                assert (b.device, b.mapped_ordinal) == (i, 1 - i)
                assert (b.copy_to_host() == twin).all()
                with other.empty(4096, "<i4", device=1 - i) as near:
                    near.copy_from(b)
                    assert (near.copy_to_host() == twin).all()
                    near.copy_from_host(twin * 2)
                    b.copy_from(near)
            with c.open("a", "rw") as a:
                assert (a.copy_to_host() == twin * 2).all()
                a.copy_from_host(twin)
        c.unlink("a")
""",
        memory,
    )


def test_a_device_is_given_in_many_ways(two):
    run(
        two,
        """
with caid.connect() as c:
    c.create("far", 4).close()
    assert c.memory_info("own") == c.memory_info(0), "no context is current"
    for i, device in enumerate(c.devices):
        domain, bus, rest = device.pci.split(":")
        for text in (i, device.uuid, device.pci, "0000" + device.pci.upper(), f"cuda:{i}"):
            with c.empty(4, device=text) as a, c.open("far", device=text) as far:
                assert (a.device, far.mapped_ordinal) == (i, i), text
    for wrong in ("", "own ", "cuda:2", "cuda:", "cuda:0x", "cuda:-1", "0:0", "ca1d:01:00.1", "GPU-"):
        for call in c.memory_info, lambda d: c.open("far", device=d), lambda d: c.empty(4, device=d):
            try:
                call(wrong)
            except caid.DeviceError:
                pass
            else:
                raise SystemExit(f"{wrong!r} is not refused")
    c.unlink("far")
""",
    )


def test_own_is_the_current_device(two):
    run(
        two,
        """
import ctypes
cu = ctypes.CDLL(caid.softcuda_path())
with caid.connect() as c:
    assert c.empty(4, device="own").device == 0
    context = ctypes.c_void_p()
    assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == cu.cuCtxSetCurrent(context) == 0
    assert c.empty(4, device="own").device == 1
""",
    )


def test_memory_over_the_link_is_told(two):
    """A consumer that asks the driver of the pointer, as CuPy does, copies it to its own device."""
    run(
        two,
        """
import warnings
with caid.connect() as c, c.create("x", 4) as near, c.open("x", device=1) as far, c.empty(0) as none:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near.__cuda_array_interface__, none.__cuda_array_interface__, far.__dlpack_device__()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert far.__cuda_array_interface__["data"][0] == far.ptr
    assert len(told) == 1 and "from_dlpack" in str(told[0].message)
    c.unlink("x")
""",
    )


def test_devices_without_a_link(two):
    run(
        two,
        """
with caid.connect() as c, c.create("x", 4), c.create("host", 4, memory="pinned"):
    c.open("host", device=1).close()
    c.open("x", device=0).close()
    try:
        c.open("x", device=1)
    except caid.DeviceError as e:
        assert "no peer access" in str(e) and c.devices[0].uuid in str(e) and c.devices[1].uuid in str(e)
    else:
        raise SystemExit("not refused")
    c.unlink("x"), c.unlink("host")
""",
        CAID_SOFTCUDA_FAIL="cuDeviceCanAccessPeer=INVALID_DEVICE",
    )


@pytest.mark.parametrize("name", ["x", ""])
def test_a_reference_is_opened_for_the_other_device(two, name):
    run(
        two,
        """
name = sys.argv[1]
with caid.connect() as c, (c.create(name, 4) if name else c.empty(4)) as a, caid.Reference(a) as reference:
    for device in 1, c.devices[1].uuid:
        with caid.connect() as other, reference.open(other, device=device) as b:
            assert (b.device, b.mapped_ordinal) == (0, 1)
    try:
        reference.open(device=2)
    except caid.DeviceError:
        pass
    else:
        raise SystemExit("not refused")
    if name:
        c.unlink(name)
""",
        name,
    )


@pytest.mark.parametrize("memory", ["device", "legacy", "pinned"])
def test_a_process_that_sees_the_other_device_only(two, memory):
    """The memory lies on a device that CUDA_VISIBLE_DEVICES hides; index 0 of this process is 1 at
    the daemon."""
    with two.connect() as c:
        uuids = [device.uuid for device in c.devices]
    create = """
with caid.connect() as c, c.create("hidden", 4096, "<i4", memory=sys.argv[1]) as a:
    a.copy_from_host(twin)
"""
    check = """
with caid.connect() as c:
    assert [d.uuid for d in c.devices] == sys.argv[2:], "the daemon's, all of them"
    for device in (None, 1, sys.argv[3]):
        with c.open("hidden", device=device) as a:
            assert (a.device, a.mapped_ordinal) == (0, 0)
            assert (a.copy_to_host() == twin).all()
    with c.empty(4, device=1) as near:
        assert (near.device, near.mapped_ordinal) == (1, 0)
    try:
        c.open("hidden", device=0)
    except caid.DeviceError as e:
        assert sys.argv[2] in str(e)
    else:
        raise SystemExit("not refused")
    with c.open("hidden") as a, caid.to_device(twin * 0, client=c, device=1) as near:
        near.copy_from(a)
        assert (near.copy_to_host() == twin).all()
    c.unlink("hidden")
"""
    run(two, create, memory)
    run(two, check, memory, *uuids, CUDA_VISIBLE_DEVICES="1")
    with two.connect() as c:
        c.flush()
        assert c.list() == []


def test_dlpack_names_the_device_that_reaches_it(two):
    check = """
class Foreign:
    def __init__(self, array):
        self.array = array
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

visible = int(sys.argv[1])
with caid.connect() as c:
    for i in range(2):
        with c.empty(0, device=i) as nothing:
            assert nothing.__dlpack_device__()[0] == 2
        if visible == 1 and i == 0:
            continue
        ordinal = i if visible == 2 else 0
        with c.empty(4096, "<i4", device=i) as a:
            a.copy_from_host(twin)
            assert a.__dlpack_device__() == (2, ordinal)
            for take in (caid.from_dlpack, c.from_dlpack):
                with take(Foreign(a)) as b:
                    assert b.__dlpack_device__() == (2, ordinal)
                    assert (b.copy_to_host() == twin).all()
"""
    run(two, check, 2, CAID_SOFTCUDA_STRICT="1")
    run(two, check, 1, CAID_SOFTCUDA_STRICT="1", CUDA_VISIBLE_DEVICES="1")


def test_work_that_is_pending_on_the_second_device(two):
    """A stream of its own for each device: one that is given as a number is not named."""
    run(
        two,
        """
with caid.connect() as c:
    named = set()
    arrays = [c.empty(4096, "<i4", device=i) for i in (0, 1)]
    streams = [c.stream(device=i) for i in (0, 1)]
    pinned = caid.pinned_array(4096, "<i4", client=c)
    pinned[:] = twin
    for a, s in zip(arrays, streams):
        a.copy_from_host(pinned, stream=s.handle)
        named.add(a.__cuda_array_interface__["stream"])
    assert len(named) == 2 and not named & {None, *(s.handle for s in streams)}
    arrays[1].copy_from(arrays[0], stream=streams[1])
    for a, s in zip(arrays, streams):
        assert (a.copy_to_host() == twin).all()
        assert a.__cuda_array_interface__["stream"] is None
        a.close()
        s.close()
""",
        CAID_SOFTCUDA_DELAY_US="300000",
    )
