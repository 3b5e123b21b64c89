# SPDX-License-Identifier: Apache-2.0
"""Blocks, what shares them, and how memory goes back: the queue, the reserve, the driver."""

import fcntl
import mmap
import os
import stat
import subprocess
import sys
import time

import pytest
import raw
from conftest import AT_ONCE, DEADLINE, LEGACY, MIB, NEVER, charges, fd_count, nothing_charged, refused, wait_for
PERMISSION, NO_MEMORY, DRIVER, UNSUPPORTED = 8, 11, 13, 16
CUDA_INVALID_VALUE, CUDA_OUT_OF_MEMORY, CUDA_UNKNOWN = 1, 2, 999
KINDS = ["device", "legacy", "pinned"]


def create(client, n, **params):
    """The reply of one array of n bytes."""
    return client.call("create", typestr="|u1", shape=[n], **params)


def lease_of(reply):
    (array,) = reply["arrays"]
    return array["lease"]


def own(client, n, **params):
    """The lease of an array that has a block of its own."""
    lease = lease_of(create(client, n, exclusive=True, **params))
    client.drop_fds()  # which keep the memory
    return lease


def close(client, *leases, **params):
    client.notify("close", leases=list(leases), **params)


def figures(client):
    return client.call("memory_info")["devices"][0]


# ---- blocks that arrays share ----


def test_arrays_of_no_bytes_have_no_block(daemon):
    with daemon.client() as c:
        reply = create(c, 0, name="empty")
        assert not reply["blocks"]
        assert "block" not in reply["arrays"][0]
        assert figures(c)["blocks"] == 0
        c.call("unlink", name="empty")
        close(c, lease_of(reply))
        wait_for(lambda: c.call("status")["arrays"] == 0, "its end")


# ---- kinds ----


def test_pinned_is_a_sealed_file(start, tmp_path):
    """Nobody can cut it; nobody else can open it anew; the driver is not asked."""
    d = start(config=AT_ONCE, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c, d.client() as other:
        before = d.driver_calls()
        reply = create(c, MIB, name="x", memory="pinned")
        (block,) = reply["blocks"]
        assert block["kind"] == "pinned"
        (fd,) = c.fds
        assert os.fstat(fd).st_size == block["size"]
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == seals
        for size in (0, block["size"] * 2):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with mmap.mmap(fd, block["size"]) as mine:
            mine[:5] = b"hello"
            reply = other.call("open", names=["x"], mode="r")
            with mmap.mmap(other.fds[0], block["size"]) as theirs:
                assert theirs[:5] == b"hello"
        assert d.driver_calls() == before
        info = figures(c)
        assert info["used"] == 0 and info["pinned"] == block["size"]
        assert charges(d)["pinned"] == MIB
        assert charges(d)["bytes"] == 0


def context_calls(daemon):
    return tuple(daemon.driver_count(f"cuDevicePrimaryCtx{call}") for call in ("Retain", "Release"))


def test_legacy_has_to_be_allowed(start, tmp_path):
    """By the pool's section, whoever asks: else no context is made."""
    config = '[pool "allowed"]\nmode = 0666\nlegacy = yes\n[pool "other"]\nmode = 0666\n'
    d = start(config=config, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        for section, pool in (("[user-pools]", {}), ("its section", {"pool": "other"})):
            for n in (0, 100):
                e = refused(PERMISSION, create, c, n, memory="legacy", **pool)
                assert f"legacy = yes in {section} of caid.conf" in str(e)
        assert context_calls(d) == (0, 0)
        create(c, 100, memory="legacy", pool="allowed")
        assert context_calls(d) == (1, 0)
        told = {pool["name"]: pool.get("legacy", False) for pool in c.call("pools")["pools"]}
        assert told == {"allowed": True, "other": False, c.hello["pool"]: False}


def test_legacy_has_a_handle_and_needs_a_context(start, tmp_path):
    """None before somebody asks for one; one for all blocks; until the last one goes."""
    d = start(config=AT_ONCE + LEGACY, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c, d.client() as other:
        create(c, MIB, name="x")
        assert c.call("status")["contexts"] == 0
        assert "contexts 0\n" in d.driver("live")
        leases, blocks = [], []
        for i in range(3):
            reply = create(c, MIB, memory="legacy", exclusive=True)
            (block,) = reply["blocks"]
            assert block["kind"] == "legacy" and not c.fds
            assert len(block["handle"]) == 8 and any(block["handle"])
            leases.append(lease_of(reply))
            blocks.append(block["block"])
        assert c.call("status")["contexts"] == 1
        assert figures(c)["context"] is True
        assert d.text().count("made a context") == 1
        assert context_calls(d) == (1, 0)
        last = create(c, 100, memory="legacy", name="y")
        held = other.call("open", names=["y"], mode="r")
        assert held["blocks"][0]["handle"]
        close(c, *leases, forget=blocks)
        wait_for(lambda: figures(c)["blocks"] == 2, "the end of three")
        assert c.call("status")["contexts"] == 1
        c.call("unlink", name="y")
        close(c, lease_of(last), forget=[last["blocks"][0]["block"]])
        close(other, lease_of(held))
        wait_for(lambda: figures(c)["pending"] == 0, "the queue")
        assert context_calls(d) == (1, 0), "one that somebody may have open keeps it"
        close(other, forget=[held["blocks"][0]["block"]])
        wait_for(lambda: c.call("status")["contexts"] == 0, "the end of the context")
        assert "context" not in figures(c)
        assert context_calls(d) == (1, 1)
        assert d.text().count("gave its context back") == 1
        (block,) = create(c, 3 * MIB, memory="legacy")["blocks"]
        assert opened_size(d, block) == block["size"]
        assert context_calls(d) == (2, 1)
    assert d.stop() == 0
    assert d.text().count("gave its context back") == 2


def test_context_that_is_not_taken_back(start, tmp_path):
    """Said in the log; the next array has one all the same."""
    d = start(
        config=AT_ONCE + LEGACY,
        CAID_SOFTCUDA_CONTROL=tmp_path / "control",
        CAID_SOFTCUDA_FAIL="cuDevicePrimaryCtxRelease@1=UNKNOWN",
    )
    with d.client() as c:
        for n in (1, 2):
            reply = create(c, MIB, memory="legacy")
            (block,) = reply["blocks"]
            assert opened_size(d, block) == block["size"]
            close(c, lease_of(reply), forget=[block["block"]])
            wait_for(lambda: figures(c)["blocks"] == 0, "the release")
            assert context_calls(d) == (n, n)
        assert figures(c)["quarantined"] == 0
    assert d.text().count("may stay until the daemon ends: cuDevicePrimaryCtxRelease: ") == 1


def test_contexts_of_two_devices(start, tmp_path):
    """Each goes with its own last block, though many come and go at a time."""
    d = start(config=AT_ONCE + LEGACY, CAID_SOFTCUDA_DEVICES=2, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        devices = [device["uuid"] for device in c.call("memory_info")["devices"]]
        kept = create(c, 1, memory="legacy", device=devices[1])
        params = {"typestr": "|u1", "shape": [3 * MIB], "memory": "legacy", "exclusive": True}
        for _ in range(20):
            for i in range(8):
                c.request("create", **params, device=devices[i % 2])
            replies = [c.any_response()[1] for _ in range(8)]
            forget = [reply["blocks"][0]["block"] for reply in replies]
            close(c, *map(lease_of, replies), forget=forget)
        wait_for(lambda: c.call("status")["blocks"] == 1, "the release")
        assert [device.get("context", False) for device in c.call("memory_info")["devices"]] == [False, True]
        retained, released = context_calls(d)
        assert retained == released + 1
        assert d.driver_count("cuCtxPushCurrent") == d.driver_count("cuCtxPopCurrent") > 8
        own(c, 3 * MIB, memory="legacy", device=devices[1])
        assert context_calls(d)[0] == retained
        assert kept["blocks"]


OPEN_HANDLE = """
import ctypes, struct, sys
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
cuda = ctypes.CDLL(sys.argv[1])
handle = Handle.from_buffer_copy(struct.pack("<8Q", *map(int, sys.argv[2:])))
context, ptr, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxPushCurrent_v2(context) == 0
assert cuda.cuIpcOpenMemHandle_v2(ctypes.byref(ptr), handle, 1) == 0
assert cuda.cuMemGetAddressRange_v2(None, ctypes.byref(size), ptr) == 0
print(size.value)
"""


def opened_size(daemon, block):
    """That another process finds behind its handle: eight words, the CUipcMemHandle's bytes, little-endian."""
    words = map(str, block["handle"])
    env = {**os.environ, **{k: v for k, v in daemon.env.items() if k == "CAID_SOFTCUDA_UUID"}}
    env.update({k: v for k, v in daemon.env.items() if k == "CAID_SOFTCUDA_DEVICES"})
    command = [sys.executable, "-c", OPEN_HANDLE, daemon.status()["driver_path"], *words]
    return int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def attribute_calls(start, tmp_path):
    d = start(CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    n = d.driver_calls()["cuDeviceGetAttribute"]
    assert d.stop() == 0
    return n


def test_device_that_lacks_legacy_handles(start, tmp_path):
    """Said at the start, by its attributes, of which the last is about sharing between processes."""
    n = attribute_calls(start, tmp_path)
    d = start(config=LEGACY, CAID_SOFTCUDA_FAIL=f"cuDeviceGetAttribute@{n}=NOT_SUPPORTED")
    assert "no legacy handles" in d.text()
    with d.client() as c:
        e = refused(UNSUPPORTED, create, c, 100, memory="legacy")
        assert "legacy" in str(e)
        assert c.call("status")["contexts"] == 0
        create(c, 100)
        create(c, 100, memory="pinned")
    with d.client() as c:
        assert charges(d)["arrays"] == 2


def test_driver_that_turns_out_to_lack_legacy_handles(start, tmp_path):
    d = start(
        config=LEGACY,
        CAID_SOFTCUDA_CONTROL=tmp_path / "control",
        CAID_SOFTCUDA_FAIL="cuIpcGetMemHandle=NOT_SUPPORTED",
    )
    with d.client() as c:
        e = refused(UNSUPPORTED, create, c, 100, memory="legacy")
        assert "cuIpcGetMemHandle" in str(e)
        assert figures(c)["used"] == 0
        assert context_calls(d) == (1, 1)
        assert d.driver_count("cuMemFree") == d.driver_count("cuMemAlloc") == 1


# ---- the queue ----


@pytest.mark.parametrize("count", [0, 3])
def test_count_of_the_environment(start, count):
    config = "[memory]\nmax_pending_count = 5\nmax_pending_ratio = 1\nmax_pending_age = 60m\n"
    d = start(config=config, CAID_MAX_PENDING_DEALLOCS_COUNT=count)
    with d.client() as c:
        leases = [own(c, 100) for _ in range(count + 1)]
        close(c, *leases[:count])
        assert (figures(c)["pending"], figures(c)["flushes"]) == (count, 0)
        close(c, leases[count])
        assert (figures(c)["pending"], figures(c)["flushes"]) == (0, 1)


# ---- out of memory ----


def test_out_of_memory_after_all(start, tmp_path):
    d = start(config=NEVER, CAID_SOFTCUDA_MEMORY="16M", CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        kept = own(c, 4 * MIB)
        close(c, own(c, 8 * MIB))
        e = refused(NO_MEMORY, own, c, 16 * MIB)
        assert e.cuda == CUDA_OUT_OF_MEMORY
        assert "12 MiB" in str(e)  # that the driver has left
        assert d.driver_calls()["cuMemCreate"] == 2 + 2
        info = figures(c)
        assert (info["used"], info["pending"], info["arrays"]) == (4 * MIB, 0, 1)
        assert charges(d)["bytes"] == 4 * MIB
        assert charges(d)["jobs"] == 0
        close(c, kept)
        own(c, 16 * MIB)


# ---- a driver that fails ----


HALF_WAY = [
    ("device", "cuMemCreate", 4),
    ("device", "cuMemExportToShareableHandle", 4),
    ("legacy", "cuDevicePrimaryCtxRetain", 4),
    ("legacy", "cuCtxPushCurrent", 2),  # the third is for a release
    ("legacy", "cuMemAlloc", 4),
    ("legacy", "cuIpcGetMemHandle", 4),
]


@pytest.mark.parametrize(
    "kind, call, nth", [(kind, call, nth) for kind, call, n in HALF_WAY for nth in range(1, n + 1)]
)
def test_creating_fails_half_way(start, tmp_path, kind, call, nth):
    """Refused with the driver's word, nothing stays, the next is served."""
    fails_half_way(start, tmp_path, kind, call, nth)


@pytest.mark.parametrize(
    "kind, call",
    [("device", "cuMemCreate"), ("device", "cuMemExportToShareableHandle"), ("legacy", "cuMemAlloc")],
)
def test_creating_works_and_reports_an_error(start, tmp_path, kind, call):
    """As CUDA reports earlier work's: what there is then must not be lost, nor its fd."""
    fails_half_way(start, tmp_path, kind, call, 2, "late:")


def fails_half_way(start, tmp_path, kind, call, nth, late=""):
    d = start(
        config=AT_ONCE + LEGACY,
        CAID_SOFTCUDA_CONTROL=tmp_path / "control",
        CAID_SOFTCUDA_FAIL=f"{call}@{nth}={late}UNKNOWN",
    )
    with d.client() as c:
        n_fds = None
        n_refused = 0
        for i in range(4):
            try:
                reply = create(c, 3 * MIB, memory=kind, exclusive=True)
            except raw.Refused as e:
                assert (e.code, e.cuda) == (DRIVER, CUDA_UNKNOWN)
                assert call in str(e)
                n_refused += 1
                assert nothing_charged(d, but=["connections"])
                assert figures(c)["used"] == 0
                continue
            close(c, lease_of(reply), forget=[block["block"] for block in reply["blocks"]])
            wait_for(lambda: figures(c)["used"] == 0, "the release")
            n_fds = n_fds or fd_count(d)
        assert n_refused == 1
        assert fd_count(d) == n_fds
        for make, end in (("cuMemCreate", "cuMemRelease"), ("cuMemAlloc", "cuMemFree")):
            assert d.driver_count(make) - (make == call and not late) == d.driver_count(end)


@pytest.mark.parametrize("late", ["", "late:"])
@pytest.mark.parametrize("kind, call", [("device", "cuMemRelease"), ("legacy", "cuMemFree")])
def test_failing_release(start, tmp_path, kind, call, late):
    """Reported; that block is never touched again; what came after it waits; figures are exact."""
    d = start(
        config=NEVER + LEGACY,
        CAID_SOFTCUDA_CONTROL=tmp_path / "control",
        CAID_SOFTCUDA_FAIL=f"{call}@2={late}INVALID_VALUE",
    )
    with d.client() as c:
        replies = [create(c, 4 * MIB, memory=kind, exclusive=True) for _ in range(4)]
        blocks = [reply["blocks"][0]["block"] for reply in replies]
        close(c, *map(lease_of, replies), forget=blocks)
        assert figures(c)["pending"] == 4
        e = refused(DRIVER, c.call, "flush")
        assert call in str(e) and e.cuda == CUDA_INVALID_VALUE
        info = figures(c)
        assert (info["quarantined"], info["quarantined_bytes"]) == (1, 4 * MIB)
        assert (info["releases"], info["used"], info["blocks"]) == (1, 8 * MIB, 2)
        assert nothing_charged(d, but=["connections", "pending", "host"])
        assert c.call("status")["release_errors"] == 1
        assert c.call("flush")["blocks"] == 2
        info = figures(c)
        assert (info["quarantined"], info["releases"], info["used"], info["blocks"]) == (1, 3, 0, 0)
        assert d.driver_count(call) == 4
    assert d.text().count(f"{call}: ") == 1


def test_failing_release_of_age(start):
    """Nobody asked, so the log tells; the others go all the same, later."""
    d = start(config="[memory]\nmax_pending_age = 50ms\n", CAID_SOFTCUDA_FAIL="cuMemRelease@1=UNKNOWN")
    with d.client() as c:
        close(c, *[own(c, 3 * MIB) for _ in range(3)])
        wait_for(lambda: figures(c)["used"] == 0, "the release")
        info = figures(c)
        assert (info["quarantined"], info["releases"]) == (1, 2)
    assert nothing_charged(d)
    assert "written off" in d.text()


def test_device_that_does_not_answer(start, tmp_path):
    """Keeps its own calls waiting, then has them fail, and leaves threads to other devices."""
    d = start(config=NEVER, CAID_SOFTCUDA_DEVICES=2, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c, d.client() as other:
        one, two = (device["uuid"] for device in c.call("memory_info")["devices"])
        stuck = {"typestr": "|u1", "shape": [4 * MIB], "exclusive": True, "device": one}
        assert d.driver(f"fail cuMemCreate=delay:{DEADLINE * 1000000}") == ""
        requests = [c.request("create", **stuck) for _ in range(20)]
        wait_for(lambda: d.driver_count("cuMemCreate") >= 3, "the calls")
        time.sleep(0.2)  # for one too many
        d.driver("clear")
        own(other, 4 * MIB, device=two)
        e = refused(DRIVER, c.response, requests[3])
        assert "has not answered" in str(e)
        own(other, 4 * MIB, memory="pinned")
    d.kill()


def test_log_of_many_failing_releases(start):
    """A device that takes nothing back any more does not fill the log."""
    d = start(config=NEVER, CAID_SOFTCUDA_FAIL="cuMemRelease@1+=UNKNOWN")
    with d.client() as c:
        for _ in range(5):
            close(c, own(c, 4 * MIB))
            refused(DRIVER, c.call, "flush")
        for i in range(5):
            create(c, 4 * MIB, name=f"x{i}", exclusive=True)  # given back at the end
    assert d.stop() == 0
    told = [line for line in d.text().splitlines() if "cuMemRelease: " in line]
    assert len(told) == 2
    assert "a block is written off" in told[0]
    assert f"giving {20 * MIB} bytes back" in told[1]


def test_out_of_memory_with_a_failing_release(start):
    """The flush that was to make room is cancelled: the create is told, and nothing is lost."""
    d = start(
        config=NEVER,
        CAID_SOFTCUDA_MEMORY="16M",
        CAID_SOFTCUDA_FAIL="cuMemRelease@1=INVALID_VALUE",
    )
    with d.client() as c:
        close(c, *[own(c, 4 * MIB) for _ in range(4)])
        refused(NO_MEMORY, own, c, 8 * MIB)
        info = figures(c)
        assert info["quarantined"] == 1
        assert info["used"] == info["reserve"] + info["pending_bytes"] == 12 * MIB
        # host: of the blocks that this connection has not said to have forgotten
        assert nothing_charged(d, but=["connections", "pending", "host"])
        own(c, 8 * MIB)


def test_no_descriptors_are_left(start):
    """Whatever was made, shared, forgotten and released."""
    d = start(config=AT_ONCE + LEGACY)
    with d.client() as c:
        create(c, 1, memory="legacy")  # what a context has, is there
        before = len(os.listdir(f"/proc/{d.pid}/fd"))
        for kind in KINDS:
            replies = [create(c, 3 * MIB, memory=kind) for _ in range(5)]
            blocks = {block["block"] for reply in replies for block in reply["blocks"]}
            close(c, *map(lease_of, replies), forget=list(blocks))
        wait_for(lambda: figures(c)["blocks"] == 1, "the release")
        assert len(os.listdir(f"/proc/{d.pid}/fd")) == before
