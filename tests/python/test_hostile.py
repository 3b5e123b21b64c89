# SPDX-License-Identifier: Apache-2.0
"""What others say of an array is not believed: whatever a record holds, no door gives a view that
leaves the mapping, or one of Python objects, and nothing crashes."""

import ctypes
import fcntl
import json
import os
import random
import struct
import sys
import threading

import models
import numpy as np
import pytest
from conftest import n_leases

import caid
import caid.weights

sys.path.append(os.path.join(os.path.dirname(__file__), "../client"))
from fake_daemon import DEVICE, HELLO, STATUS, fake_daemon  # noqa: E402

# --- a writer of a pool ---------------------------------------------------------------------


def write(client, name, nbytes, descr, memory):
    """What a program of another user may create: the daemon keeps its descr as it is."""
    options = (None, 0, 0, memory, 0, None, 0)
    client._create(name, (1,), f"|V{nbytes}", json.dumps(descr), None, *options).close()


@pytest.mark.parametrize("memory", ["pinned", "mapped", "device"])
@pytest.mark.parametrize(
    "nbytes, descr",
    [(8, [["x", "|O"]]), (32, [["x", "<f8", [1 << 20]]]), (8, [["x", [["y", "O"]]]]), (8, 5)],
)
def test_a_reader_is_not_harmed(client, nbytes, descr, memory):
    write(client, "w", nbytes, descr, memory)
    with client.create("good", 4, "<f4"):
        message = rf"array 'w', created by uid {os.getuid()}: descr"
        with pytest.raises(caid.CorruptError, match=message):
            client.open("w")
        with pytest.raises(caid.CorruptError, match=message):
            client.open_many(["good", "w"])
        assert n_leases(client) == 1
    assert client.show("w").descr == json.dumps(descr)  # its administrator can look at it


@pytest.mark.parametrize("driver", ["/tmp/x.so", "./x.so", "auto", "", "soft\0", "SOFT"])
def test_a_daemon_cannot_choose_what_is_loaded(tmp_path, monkeypatch, driver):
    monkeypatch.delenv("CAID_CUDA_DRIVER")
    with fake_daemon(tmp_path / "s", hello={**HELLO, "driver": driver}):
        with pytest.raises(caid.ProtocolError):
            caid.connect(str(tmp_path / "s"))


def test_a_daemon_that_has_not_all_back(daemon, tmp_path):
    """A client waits as long as what is left becomes less."""
    def refusal(left):
        return (22, "not all is back", *([("left", left)] if left else [])), []

    with daemon.connect() as real:
        hello = {**HELLO, "driver": "soft", "devices": [{**DEVICE, "uuid": real.devices[0].uuid}]}
    answers = iter([refusal(900), refusal(400), (hello, []), refusal(900), refusal(900), refusal(0)])
    with fake_daemon(tmp_path / "s", hello=lambda: next(answers)):
        caid.connect(tmp_path / "s").close()
        for _ in range(2):  # the second one says nothing of that
            with pytest.raises(caid.NotReadyError):
                caid.connect(tmp_path / "s")
    assert next(answers, None) is None


@pytest.mark.parametrize("page", [{"metrics": []}, {"from": 1}, {"from": 1, "pool": "p" * 600}])
def test_metrics_that_do_not_get_on(tmp_path, page):
    answer = {"metrics": [{"name": "x", "value": 1}], "more": True, **page}
    with fake_daemon(tmp_path / "s", metrics=answer), caid.connect(str(tmp_path / "s")) as c:
        with pytest.raises(caid.ProtocolError):
            c.metrics()


def test_as_many_arrays_as_the_daemon_says_are_a_set(daemon, tmp_path):
    with daemon.connect() as real:
        device = {**DEVICE, "uuid": real.devices[0].uuid}
    hello = {**HELLO, "driver": "soft", "devices": [device]}
    status = {**STATUS, "driver": "soft", "devices": [device]}
    array = {"lease": 1, "array": 1, "nbytes": 0, "typestr": "|u1", "shape": [0], "device": device["uuid"]}
    opened = {"pool": "uid:0", "arrays": [array], "blocks": []}
    path = models.write(tmp_path / "m", {key: ("U8", (), b"x") for key in "ab"})
    for i, (told, most) in enumerate([({}, 65_536), ({"set_max": 1 << 40}, 262_144), ({"set_max": 1}, 1)]):
        with fake_daemon(tmp_path / f"{i}", hello={**hello, **told}, status=status, open=opened):
            with caid.connect(str(tmp_path / f"{i}")) as c, c.open("x") as x:
                assert c.status().set_max == most
                with pytest.raises(caid.InvalidError, match=f"1 to {most} arrays, not {most + 1}"):
                    c.publish_many("m/", {f"{i}": x for i in range(most + 1)})
                if most == 1:
                    with pytest.raises(caid.InvalidError, match="2 arrays, .* at most 1$"):
                        caid.weights.load(path, "m", client=c)


def test_a_begin_whose_fences_do_not_come(daemon, soft, tmp_path):
    """The rest of them is asked for once, in the time of a call."""
    asked, over = [], threading.Event()
    page = bytearray(4096)
    page[0:8] = page[64:72] = struct.pack("<Q", 1)  # of slot 0 one is submitted, and done

    def grant():
        fd = os.memfd_create("page", os.MFD_ALLOW_SEALING)
        os.write(fd, page)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        fence = {"page": 7, "slot": 0, "value": 1}
        pages = [{"page": 7, "size": len(page), "fd": 0}]
        return {"fences": [fence], "pages": pages, "more": True}, [fd]

    def fences():
        asked.append("fences")
        over.wait()
        return {"fences": []}, []

    with daemon.connect() as real:
        device = {**DEVICE, "uuid": real.devices[0].uuid}
    array = {"lease": 11, "array": 1, "nbytes": 0, "typestr": "|u1", "shape": [0], "device": device["uuid"]}
    answers = {"open": {"pool": "uid:0", "arrays": [array], "blocks": []}, "begin": grant, "fences": fences}
    with fake_daemon(tmp_path / "s", device, **answers):
        with caid.connect(str(tmp_path / "s"), call_timeout=1) as c, c.open("x") as a:
            with pytest.raises(caid.TimeoutError, match="fences request"):
                a.read(timeout=5).begin()
            over.set()
    assert asked == ["fences"]


# --- any record -----------------------------------------------------------------------------

SIZE = 1 << 21
EDGES = [0, 1, 2, 3, 4, 16, SIZE - 16, SIZE - 15, SIZE, SIZE + 1, 1 << 31, 1 << 32, 1 << 62]
EDGES += [(1 << 63) - 1]
ODD = [None, "", "x", -1, True, [], [1], {}, (1 << 64) - 1, 1 << 63, -(1 << 63)]
TYPESTRS = ["<f4", "<i8", ">c16", "|u1", "|b1", "<U2", "|S5", "<M8[ns]", "|V16", "|V8", "|V4"]
BAD_TYPESTRS = ["|O8", "<O8", "|V0", "<f3", "<f", "f4", "=f4", "<t8", "<f4x", "|V99999999999", "<g4"]
DESCRS = [
    [["x", "<f4"], ["y", "<f4"]], [["x", "|O"]], [["x", "<f8", [1 << 20]]], [["x", "<i4", [2, 2]]],
    [["", "|V4"], ["a", [["b", "<u4"]]]], [["x", "|S0"], ["y", "<f8"]], [["x", "<f8"], ["x", "<f8"]],
    [["x", "<f8", [0]]], [["x", "<f8", [-1]]], [[["t", "x"], "<f8"]], 5, None, [], [[]],
]  # fmt: skip


class Prop(ctypes.Structure):
    _fields_ = [("numbers", ctypes.c_int * 4), ("win32", ctypes.c_void_p), ("flags", ctypes.c_uint64)]


def pinned_file():
    fd = os.memfd_create("block", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def device_file():
    driver, fd, made = ctypes.CDLL(caid.softcuda_path()), ctypes.c_int(), ctypes.c_uint64()
    prop = Prop((ctypes.c_int * 4)(1, 1, 1, 0))  # pinned, with an fd, on device 0
    size, by_fd = ctypes.c_size_t(SIZE), 1
    assert driver.cuInit(0) == 0
    assert driver.cuMemCreate(ctypes.byref(made), size, ctypes.byref(prop), ctypes.c_uint64(0)) == 0
    assert driver.cuMemExportToShareableHandle(ctypes.byref(fd), made, by_fd, ctypes.c_uint64(0)) == 0
    assert driver.cuMemRelease(made) == 0
    return fd.value


class Records:
    """Replies to open: each is a right one in which some things are changed."""

    def __init__(self, seed, device, files, handle):
        self.random = random.Random(seed)
        self.device, self.files, self.handle = device, files, handle

    def pick(self, *values):
        return self.random.choice(values)

    def array(self, kind):
        r = self.random
        typestr = self.pick(*TYPESTRS)
        itemsize = int("".join(c for c in typestr[2:].split("[")[0])) * (4 if "U" in typestr else 1)
        shape = [self.pick(1, 2, 3, 4, 100) for _ in range(r.randrange(4))]
        span = itemsize * int(np.prod(shape))
        record = {
            "lease": 1 + r.randrange(1 << 40),
            "array": 1 + r.randrange(1 << 40),
            "block": 13,
            "offset": self.pick(0, 0, 16, SIZE - span if span <= SIZE else 0),
            "nbytes": span,
            "typestr": typestr,
            "shape": shape,
            "uid": 7,
        }
        if r.random() < 0.4:
            record["strides"] = [int(s) for s in np.cumprod([itemsize, *shape[::-1]])[:-1][::-1]]
        if typestr[1] == "V" or r.random() < 0.1:
            record["descr"] = json.dumps(self.pick(*DESCRS))
        if kind == "pinned" and r.random() < 0.3:
            record["memory"] = "mapped"
        return record

    def change(self, record):
        r = self.random
        key = self.pick(*record, "strides", "descr", "memory", "metadata", "generation", "device")
        if r.random() < 0.15:
            record[key] = self.pick(*ODD)
        elif key in ("shape", "strides"):
            record[key] = [self.pick(*EDGES, -1, -8) for _ in range(self.pick(1, 2, 3, 33))]
        elif key == "typestr":
            record[key] = self.pick(*TYPESTRS, *BAD_TYPESTRS)
        elif key == "descr":
            record[key] = self.pick("[" * 4000, "{", json.dumps(self.pick(*DESCRS)))
        elif key in ("memory", "kind"):
            record[key] = self.pick("device", "legacy", "pinned", "mapped", "managed", "video")
        elif key in ("metadata", "device"):
            record[key] = self.pick("x", "\0", self.device, '{"a":', "1" * 4000)
        else:
            record[key] = self.pick(*EDGES)

    def next(self):
        kind = self.pick("pinned", "pinned", "device", "legacy")
        block = {"block": 13, "size": SIZE, "device": self.device, "kind": kind}
        fds = [] if kind == "legacy" else [self.files[kind]]
        block.update({"handle": self.handle} if kind == "legacy" else {"fd": 0})
        array = self.array(kind)
        for _ in range(self.pick(0, 0, 1, 1, 1, 2)):
            self.change(self.pick(array, array, array, block))
        self.sent = array, block
        return {"pool": "uid:7", "arrays": [array], "blocks": [block]}, fds


def look(array, sent):
    """Goes through all doors."""
    memory = array._memory
    offset = sent[0].get("offset", 0)
    low, high = caid._base._geometry.extent(array.shape, array.strides, array.itemsize)
    assert 0 <= offset + low and offset + high <= SIZE
    desc = array.__cuda_array_interface__ if array.memory != "pinned" else None
    view = np.asarray(array)
    assert view.shape == array.shape and view.nbytes == array.nbytes
    assert view.itemsize == array.itemsize and not view.dtype.hasobject
    assert view.flags.aligned
    if view.size:
        start = (memory.host or memory.ptr) - offset
        for at in np.lib.array_utils.byte_bounds(view) if NUMPY_2 else np.byte_bounds(view):
            assert start <= at <= start + SIZE
        str(view.ravel()[-1:])  # looks at the elements
    if desc:
        dtype = np.dtype(desc.get("descr", desc["typestr"]))
        assert dtype.itemsize == array.itemsize and not dtype.hasobject
        assert desc["strides"] in (None, array.strides) and desc["shape"] == array.shape
    if "descr" not in sent[0]:
        with_buffer(view)
    try:
        caid.from_dlpack(array).close()
        array.__dlpack__(max_version=(1, 0))
    except BufferError:
        pass
    repr(array), array.metadata, array.uid


NUMPY_2 = hasattr(np.lib, "array_utils")


def with_buffer(view):
    try:
        memoryview(view).release()
    except ValueError:  # a type that has no buffer format
        pass


def test_no_record_leads_astray(daemon, soft, tmp_path):
    n = int(os.environ.get("CAID_TEST_RECORDS", "3000"))
    seed = int(os.environ.get("CAID_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
    print("CAID_TEST_SEED", seed)
    files = {"pinned": pinned_file(), "device": device_file()}
    outcomes = {}
    with daemon.connect() as real, real.create("l", SIZE - 16, "|u1", memory="legacy") as legacy:
        device = {**DEVICE, "uuid": real.devices[0].uuid}
        handle = [int.from_bytes(legacy.ipc_handle.handle[i : i + 8], "little") for i in range(0, 64, 8)]
        legacy.close()
        real.flush()
        records = Records(seed, device["uuid"], files, handle)
        hello, status = ({**d, "driver": "soft", "devices": [device]} for d in (HELLO, STATUS))
        path = tmp_path / "s"
        with fake_daemon(path, hello=hello, status=status, open=records.next):
            client = None
            for _ in range(n):
                client = client if client and not client.closed else caid.connect(str(path))
                try:
                    with client.open("x") as array:
                        look(array, records.sent)
                    outcome = "opened"
                except caid.Error as e:
                    outcome = type(e).__name__
                except Exception as e:
                    raise AssertionError(f"seed {seed}: {records.sent}") from e
                if outcome == "ProtocolError":
                    client.close()
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
            client.close()
        real.unlink("l")
    for fd in files.values():
        os.close(fd)
    print(outcomes)
    assert set(outcomes) >= {"opened", "ProtocolError", "CorruptError", "DriverError"}, outcomes
    assert outcomes["opened"] > n / 10 and outcomes["CorruptError"] > n / 100
