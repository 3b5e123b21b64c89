# SPDX-License-Identifier: Apache-2.0
"""How files are read: by whichever way, to whichever memory, the bytes are the file's, or an error says why not."""

import contextlib
import gc
import os
import signal
import threading

import models
import numpy
import pytest
from conftest import import_foreign, n_blocks, n_leases, n_live, softcuda, wait_until
from hypothesis import given, settings, strategies as st

import caid
from caid import weights
from caid._interfaces import _staging
from caid.weights import _load

PIECE, SLOT, PAGE = 512 << 10, 16 << 20, 4096


def some_bytes(n, seed=0):
    return numpy.random.default_rng(seed).integers(0, 256, n, "u1").tobytes()


def write(path, sizes, skew=0):
    """A file with tensors of so many bytes; their places in it vary with the skew."""
    tensors = {f"{i:03}": ("U8", (n,), some_bytes(n, i)) for i, n in enumerate(sizes)}
    models.write(path, tensors, {"skew": "x" * skew})
    return {key: some for key, (_, _, some) in tensors.items()}


def drop(path):
    """Has the page cache forget a file, where it lies on a disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def found(client, name="m"):
    with weights.open(name, client=client) as w:
        return {key: array.copy_to_host().tobytes() for key, array in w.items()}


def no_direct(path, fd):
    return -1


def refused_direct(path, fd):
    """It cannot be read: what reads past the page cache gets EBADF."""
    return os.open(path, os.O_WRONLY)


def short_direct(path, fd):
    """It ends too soon: the rest has to come by the other one."""
    with open(f"{path}.short", "wb") as f:
        f.write(path.read_bytes()[: os.path.getsize(path) // 2 | 1])
    drop(f"{path}.short")
    drop(path)
    return os.open(f"{path}.short", os.O_RDONLY)


REAL = _load._open_direct
SIZES = st.lists(
    st.sampled_from([0, 1, 511, PAGE, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 77]) | st.integers(0, 3 * PIECE), min_size=1, max_size=6
)


def test_by_each_way_the_bytes_are_the_files(client, tmp_path, monkeypatch):
    @settings(max_examples=30)
    @given(SIZES, st.integers(0, PAGE), st.booleans(), st.sampled_from([REAL, no_direct, refused_direct, short_direct]),
           st.sampled_from(["device", "pinned"]), st.integers(1, 5))  # fmt: skip
    def check(sizes, skew, is_cold, way, memory, n_threads):
        path = tmp_path / "m"
        there = write(path, sizes, skew)
        if is_cold:
            drop(path)
        monkeypatch.setattr(_load, "_open_direct", way if way is REAL else lambda fd: way(path, fd))
        monkeypatch.setattr(_staging, "THREADS", n_threads)
        weights.load(path, "m", memory=memory, client=client)
        assert found(client) == there
        with weights.open("m", client=client) as w:
            assert {array.memory for array in w.values() if array.nbytes} <= {memory}

    check()


@pytest.mark.parametrize("is_cold", [False, True])
def test_slots_are_used_again(client, slow, tmp_path, is_cold):
    """When they have been copied, which takes its time: more than all of them hold, as one stretch and as many."""
    path = tmp_path / "m"
    for sizes in [6 * SLOT + 12345], [PIECE // 2 + 1] * 160:
        there = write(path, sizes)
        if is_cold:
            drop(path)
        softcuda("delay 3000")
        weights.load(path, "m", client=client)
        softcuda("delay 0")
        assert found(client) == there


def test_holes_are_zeros(client, tmp_path):
    """Of which the page cache has nothing."""
    n = 3 * SLOT
    path = models.write_header(tmp_path / "m", {"a": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}})
    start = path.stat().st_size
    os.truncate(path, start + n)
    with open(path, "r+b") as f:
        f.seek(start + SLOT + 5)
        f.write(b"there")
    for memory in "device", "pinned":
        weights.load(path, "m", memory=memory, client=client)
        (some,) = found(client).values()
        assert some[SLOT + 5 : SLOT + 10] == b"there" and some.count(0) == n - 5


@pytest.mark.parametrize("memory", ["device", "pinned"])
def test_a_file_that_becomes_shorter_while_it_is_read(client, tmp_path, monkeypatch, memory):
    path = tmp_path / "m"
    write(path, [3 * PIECE, PIECE])
    whole, run = path.read_bytes(), _staging.run

    @settings(max_examples=20)
    @given(st.integers(0, len(whole) - 1), st.booleans())
    def check(n, is_cold):
        path.write_bytes(whole)
        if is_cold:
            drop(path)
        monkeypatch.setattr(_staging, "run", lambda *args: (os.truncate(path, n), run(*args)))
        with pytest.raises(OSError, match="m: the file has become shorter"):
            weights.load(path, "m", memory=memory, client=client)
        gc.collect()
        assert (n_leases(client), n_blocks(client)) == (0, 0)

    check()


CALLS = ["cuMemHostRegister", "cuEventCreate", "cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("n", [1, 5])
def test_a_driver_call_that_fails(client, soft, tmp_path, call, n):
    """The n-th of them; all is given back, and the next load is as if it had not been."""
    path = tmp_path / "m"
    there = write(path, [5 * SLOT])
    weights.load(path, "m", client=client)
    events = n_live("events")
    softcuda(f"fail {call}@{n}=INVALID_HANDLE")
    try:
        with contextlib.suppress(caid.DriverError):  # where there are fewer calls, none fails
            weights.load(path, "m", client=client)
    finally:
        softcuda("clear")
    assert n_live("events") == events
    weights.load(path, "m", client=client)
    assert found(client) == there


def test_ctrl_c_while_the_memory_is_awaited(client, tmp_path, monkeypatch):
    """Reading has begun, and what was read has no place yet."""
    path = tmp_path / "m"
    write(path, [6 * SLOT])

    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_load, "Loading", interrupted)
    for dtype in None, "<f4":
        with pytest.raises(KeyboardInterrupt):
            weights.load(path, "m", dtype=dtype, client=client)
    assert [t for t in threading.enumerate() if t.name == "caid-weights"] == []
    assert (n_leases(client), n_blocks(client)) == (0, 0)


def test_a_daemon_that_has_no_sets_of_parts(client, tmp_path, monkeypatch):
    def refuse(*args):
        raise caid.UnknownMethodError(38, "too old")

    path = tmp_path / "m"
    there = write(path, [PIECE, 3, 0], skew=PAGE)
    monkeypatch.setattr(caid.Client, "_set_create", refuse, raising=False)
    for memory in "device", "pinned":
        weights.load(path, "m", memory=memory, client=client)
        assert found(client) == there
        with weights.open("m", client=client) as w:
            assert w.file_metadata == {"skew": "x" * PAGE}


# --- several devices ----------------------------------------------------------------------------


@pytest.fixture
def two():
    with caid.LocalDaemon(driver="soft", devices=2, memory="96M") as d, d.connect() as c:
        yield c


def test_each_device_has_the_whole(two, tmp_path):
    path = tmp_path / "m"
    there = write(path, [3 * PIECE + 1, 7, SLOT])
    read = []
    for dtype in None, "<f4":
        versions = weights.load(path, "m", device=[1, 0], dtype=dtype, client=two, progress=lambda *at: read.append(at))
        assert versions == [two.show(name).entry.generation for name in ("m.0/", "m.1/")]
        for name, device in ("m.0", 1), ("m.1", 0):
            assert found(two, name) == there
            with weights.open(name, client=two) as w:
                assert w.device == device
    assert read[-1] == (sum(map(len, there.values())),) * 2  # once
    uuids = [device.uuid for device in two.devices]
    assert len(weights.load(path, "n", device=uuids, client=two)) == 2 and found(two, "n.1") == there


def test_floats_are_converted_for_each_device(two, tmp_path):
    values = numpy.arange(1 << 16, dtype="<f4")
    path = models.write(tmp_path / "m", {"a": ("F32", values.shape, values.tobytes())})
    weights.load(path, "m", device=[0, 1], dtype="<f8", client=two)
    for name in "m.0", "m.1":
        assert found(two, name)["a"] == values.astype("<f8").tobytes()


def test_what_one_device_has_no_room_for_is_on_none(two, tmp_path):
    path = tmp_path / "m"
    write(path, [40 << 20])
    with two.empty(64 << 20, "|u1", device=1):
        before = two.memory_info(0).used
        with pytest.raises(caid.OutOfMemoryError):
            weights.load(path, "m", device=[0, 1], client=two)
        two.flush()
        wait_until(lambda: two.memory_info(0).used == before)
    assert two.list() == []


def test_devices_that_are_refused(two, tmp_path):
    path = tmp_path / "m"
    write(path, [10])
    for devices, error in ([], caid.InvalidError), ([0, 0], caid.InvalidError), ([0, 7], caid.DeviceError):
        with pytest.raises(error):
            weights.load(path, "m", device=devices, client=two)
    with pytest.raises(caid.InvalidError, match="pinned"):
        weights.load(path, "m", device=[0, 1], memory="pinned", client=two)
    with pytest.raises(caid.InvalidError, match="memory 'managed'"):
        weights.load(path, "m", memory="managed", client=two)
    assert two.list() == []


# --- the host's memory --------------------------------------------------------------------------


def test_a_model_in_the_hosts_memory_is_one_block(client, other, tmp_path):
    path = tmp_path / "m"
    there = write(path, [1 << 16] * 20)
    weights.load(path, "m", memory="pinned", client=client)
    assert n_blocks(client) == 1
    with weights.open("m", client=other) as w:
        arrays = dict(w.items())
        assert len({array.ptr - 0x10000 * i for i, array in enumerate(arrays.values())}) == 1
        assert all(numpy.asarray(arrays[key]).tobytes() == some for key, some in there.items())
        weights.save(w, tmp_path / "saved")
    assert models.read(tmp_path / "saved") == models.read(path)


def test_a_part_of_a_model_in_the_hosts_memory(client, tmp_path):
    values = numpy.arange(24, dtype="<f4").reshape(4, 6)
    path = models.write(tmp_path / "m", {"o_proj.weight": ("F32", (4, 6), values.tobytes()), "none": ("F32", (0, 3), b"")})
    weights.load(path, "m", memory="pinned", shard=(1, 2), dtype="<f8", client=client)
    with weights.open("m", client=client) as w:
        assert w["o_proj.weight"].copy_to_host().tolist() == values[:, 3:].tolist()
        assert w["none"].shape == (0, 3)


def test_torch_has_a_model_of_the_hosts_memory_as_it_is(client, tmp_path):
    torch = import_foreign("torch")
    path = tmp_path / "m"
    there = write(path, [100, 0, 4096])
    weights.load(path, "m", memory="pinned", client=client)
    with weights.open("m", "rw", client=client) as w:
        tensors = w.torch()
        assert {key: tensor.numpy().tobytes() for key, tensor in tensors.items()} == there
        assert all(tensor.device == torch.device("cpu") for tensor in tensors.values())
        tensors["000"][0] = 77
        assert w["000"].copy_to_host()[0] == 77
