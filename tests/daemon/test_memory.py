# SPDX-License-Identifier: Apache-2.0
"""Blocks, what shares them, and how memory goes back: the queue, the reserve, the driver."""

import fcntl
import mmap
import os
import stat
import subprocess
import sys

import pytest
import raw
from conftest import AT_ONCE, MIB, NEVER, charges, fd_count, nothing_charged, wait_for

INVALID, NO_MEMORY, DRIVER, UNSUPPORTED = 4, 11, 13, 16
CUDA_INVALID_VALUE, CUDA_OUT_OF_MEMORY, CUDA_UNKNOWN = 1, 2, 999
KINDS = ["device", "legacy", "pinned"]


def create(client, n, **params):
    """The reply of one array of n bytes."""
    return client.call("create", typestr="|u1", shape=[n], **params)


def lease_of(reply):
    (array,) = reply["arrays"]
    return array["lease"]


def offset_of(array):
    return array.get("offset", 0)


def own(client, n, **params):
    """The lease of an array that has a block of its own."""
    return lease_of(create(client, n, exclusive=True, **params))


def close(client, *leases, **params):
    client.notify("close", leases=list(leases), **params)


def figures(client):
    return client.call("memory_info")["devices"][0]


def refused(code, call, *args, **params):
    with pytest.raises(raw.Refused) as e:
        call(*args, **params)
    assert e.value.code == code, e.value
    return e.value


# ---- blocks that arrays share ----


def test_small_arrays_share_a_block(start):
    d = start(config=NEVER)
    with d.client() as c, d.client() as other:
        first = create(c, 1000, name="a")
        assert len(first["blocks"]) == len(c.fds) == 1
        second = create(c, 1000, name="b")
        assert not second["blocks"] and not c.fds  # it has that block
        a, b = first["arrays"][0], second["arrays"][0]
        assert a["block"] == b["block"]
        assert abs(offset_of(a) - offset_of(b)) >= 1024
        assert offset_of(a) % 512 == offset_of(b) % 512 == 0
        assert figures(c)["blocks"] == 1
        reply = other.call("open", names=["a", "b"], mode="r")
        assert len(reply["blocks"]) == len(other.fds) == 1
        assert reply["blocks"][0]["size"] == figures(c)["used"]


def test_shared_blocks_grow(start):
    """Each is as large as what there is already, up to the bound: few blocks for many arrays."""
    d = start(config=NEVER + "block_size = 8M\nshared_max = 1M\n")
    with d.client() as c:
        sizes = []
        for _ in range(32):
            sizes += [block["size"] // MIB for block in create(c, MIB)["blocks"]]
        assert sizes == [2, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    "n, params",
    [(1 * MIB, {"exclusive": True}), (1 * MIB + 1, {}), (100, {"exclusive": True})],
)
def test_blocks_of_one_array(start, n, params):
    d = start(config=NEVER + "shared_max = 1M\n")
    with d.client() as c:
        create(c, 100)
        array = create(c, n, **params)["arrays"][0]
        assert offset_of(array) == 0
        others = [create(c, 100)["arrays"][0], create(c, n, **params)["arrays"][0]]
        assert array["block"] not in [other["block"] for other in others]
        assert figures(c)["blocks"] == 3


def test_arrays_of_no_bytes_have_no_block(daemon):
    with daemon.client() as c:
        reply = create(c, 0, name="empty")
        assert not reply["blocks"]
        assert "block" not in reply["arrays"][0]
        assert figures(c)["blocks"] == 0
        c.call("unlink", name="empty")
        close(c, lease_of(reply))
        wait_for(lambda: c.call("status")["arrays"] == 0, "its end")


@pytest.mark.parametrize("alignment", [512, 4096, 65536, 2 * MIB])
def test_alignment(daemon, alignment):
    with daemon.client() as c:
        for n in (100, 700, 5000):
            create(c, n)
            array = create(c, 100, alignment=alignment)["arrays"][0]
            assert offset_of(array) % alignment == 0


@pytest.mark.parametrize("alignment", [3, 768, 4 * MIB, 1 << 63])
def test_alignment_that_is_none(daemon, alignment):
    with daemon.client() as c:
        refused(INVALID, create, c, 100, alignment=alignment)
        assert figures(c)["blocks"] == 0
    wait_for(lambda: nothing_charged(daemon), "no charge")


def test_forgotten_block_is_sent_again(start):
    """Once per connection, until the client says that it has forgotten it."""
    d = start(config=NEVER)
    with d.client() as owner, d.client() as c:
        create(owner, 100, name="x")

        def open_x():
            reply = c.call("open", names=["x"], mode="r")
            return lease_of(reply), len(reply["blocks"]), len(c.fds)

        lease, n_blocks, n_fds = open_x()
        assert (n_blocks, n_fds) == (1, 1)
        block = owner.call("show", name="x")["block"]
        close(c, lease)
        lease, n_blocks, n_fds = open_x()
        assert (n_blocks, n_fds) == (0, 0)
        close(c, lease, forget=[block])
        lease, n_blocks, n_fds = open_x()
        assert (n_blocks, n_fds) == (1, 1)


def test_forgetting_a_block_that_was_never_sent(daemon):
    """Nothing; others have it all the same (I6)."""
    with daemon.client() as owner, daemon.client() as c:
        block = create(owner, 100, name="x")["arrays"][0]["block"]
        close(c, forget=[block, block, block + 1, 0, 1 << 63])
        assert c.call("ping") == owner.call("ping") == {}
        assert owner.call("show", name="x")["block"] == block


def test_forgetting_a_block_in_use_ends_the_connection(daemon):
    with daemon.client() as owner, daemon.client() as c:
        block = create(owner, 100, name="x")["arrays"][0]["block"]
        c.call("open", names=["x"], mode="r")
        close(c, forget=[block])
        assert c.is_closed()
        assert len(owner.call("show", name="x")["holders"]) == 2  # until its process exits


@pytest.mark.parametrize("leases", [[1, 1], [2], [0], [1, 1 << 63]])
def test_closing_what_is_not_open_ends_the_connection(daemon, leases):
    with daemon.client() as owner, daemon.client() as c:
        create(owner, 100, name="x")
        c.call("open", names=["x"], mode="r")
        close(c, *leases)
        assert c.is_closed()
        assert owner.call("show", name="x")["holders"]


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


def test_mapped_lies_in_a_pinned_block(daemon):
    with daemon.client() as c:
        reply = create(c, MIB, name="x", memory="mapped")
        assert reply["blocks"][0]["kind"] == "pinned"
        assert reply["arrays"][0]["memory"] == "mapped"
        assert c.call("list")["entries"][0]["memory"] == "mapped"


def test_legacy_has_a_handle_and_needs_a_context(start, tmp_path):
    """None before somebody asks for one; one for all blocks; kept."""
    d = start(config=AT_ONCE, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c, d.client() as other:
        create(c, MIB, name="x")
        assert c.call("status")["contexts"] == 0
        assert "contexts 0\n" in d.driver("live")
        leases = []
        for i in range(3):
            reply = create(c, MIB, memory="legacy", exclusive=True)
            (block,) = reply["blocks"]
            assert block["kind"] == "legacy" and not c.fds
            assert len(block["handle"]) == 8 and any(block["handle"])
            leases.append(lease_of(reply))
        assert c.call("status")["contexts"] == 1
        assert figures(c)["context"] is True
        assert d.text().count("made a context") == 1
        assert d.driver_calls()["cuDevicePrimaryCtxRetain"] == 1
        create(c, 100, memory="legacy", name="y")
        assert other.call("open", names=["y"], mode="r")["blocks"][0]["handle"]
        close(c, *leases, forget=[])
        wait_for(lambda: charges(d)["arrays"] == 2, "the end of three")
        assert c.call("status")["contexts"] == 1


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


def test_legacy_handle_opens_in_any_process(daemon):
    """Its eight words are the CUipcMemHandle's bytes, little-endian."""
    with daemon.client() as c:
        (block,) = create(c, 3 * MIB, memory="legacy")["blocks"]
        words = map(str, block["handle"])
        env = {**os.environ, "CAID_SOFTCUDA_UUID": daemon.env["CAID_SOFTCUDA_UUID"]}
        command = [sys.executable, "-c", OPEN_HANDLE, c.call("status")["driver_path"], *words]
        r = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert int(r.stdout) == block["size"]


def test_legacy_waits_for_its_last_hold(start, tmp_path):
    """Whoever has it open would have memory that may be anybody's: it goes back when nobody has."""
    d = start(config=AT_ONCE, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        reply = create(c, MIB, memory="legacy", exclusive=True)
        block = reply["blocks"][0]["block"]
        close(c, lease_of(reply))
        wait_for(lambda: figures(c)["pending"] == 0, "the queue")
        assert figures(c)["used"] > 0
        assert d.driver_count("cuMemFree") == 0
        close(c, forget=[block])
        wait_for(lambda: figures(c)["used"] == 0, "the release")
        assert d.driver_count("cuMemFree") == 1


def test_kind_that_is_none(daemon):
    with daemon.client() as c:
        for kind in ("managed", "Device", "", "host"):
            e = refused(INVALID, create, c, 100, memory=kind)
            assert f'"{kind}"' in str(e)
        assert figures(c)["blocks"] == 0


def attribute_calls(start, tmp_path):
    d = start(CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    n = d.driver_calls()["cuDeviceGetAttribute"]
    assert d.stop() == 0
    return n


def test_device_that_lacks_legacy_handles(start, tmp_path):
    """Said at the start, by its attributes, of which the last is about sharing between processes."""
    n = attribute_calls(start, tmp_path)
    d = start(CAID_SOFTCUDA_FAIL=f"cuDeviceGetAttribute@{n}=NOT_SUPPORTED")
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
    d = start(CAID_SOFTCUDA_CONTROL=tmp_path / "control", CAID_SOFTCUDA_FAIL="cuIpcGetMemHandle=NOT_SUPPORTED")
    with d.client() as c:
        e = refused(UNSUPPORTED, create, c, 100, memory="legacy")
        assert "cuIpcGetMemHandle" in str(e)
        assert figures(c)["used"] == 0
        assert d.driver_count("cuMemFree") == d.driver_count("cuMemAlloc") == 1


# ---- the queue ----


def test_eleventh_close_flushes(start):
    d = start(config="[memory]\nmax_pending_ratio = 1\nmax_pending_age = 60m\n")
    with d.client() as c:
        leases = [own(c, MIB) for _ in range(12)]
        for n, lease in enumerate(leases[:10], 1):
            close(c, lease)
            info = figures(c)
            assert (info["pending"], info["flushes"]) == (n, 0)
            assert info["pending_bytes"] >= n * MIB
            assert charges(d)["arrays"] == 12 - n
            assert charges(d)["pending"] == n
        close(c, leases[10])
        info = figures(c)
        assert (info["pending"], info["pending_bytes"], info["flushes"]) == (0, 0, 1)
        assert info["reserve"] == 11 * 2 * MIB  # not the driver's yet
        assert info["used"] == 12 * 2 * MIB


def test_ratio(start):
    """More than that part of the device's memory, not as much."""
    config = "[memory]\nmax_pending_count = 1000\nmax_pending_ratio = 0.25\nmax_pending_age = 60m\n"
    d = start(config=config, CAID_SOFTCUDA_MEMORY="64M")
    with d.client() as c:
        leases = [own(c, 8 * MIB), own(c, 8 * MIB), own(c, 2 * MIB)]
        close(c, *leases[:2])
        assert figures(c)["pending"] == 2
        close(c, leases[2])
        assert (figures(c)["pending"], figures(c)["flushes"]) == (0, 1)


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


def test_age(start):
    """What waits is freed, and what is empty goes back, though nobody asks."""
    d = start(config="[memory]\nmax_pending_age = 100ms\n")
    with d.client() as c:
        close(c, own(c, MIB))
        wait_for(lambda: figures(c)["pending"] == 0, "the queue")
        wait_for(lambda: figures(c)["used"] == 0, "the reserve")
        assert figures(c)["releases"] == 1


def test_flush(start):
    d = start(config=NEVER)
    with d.client() as c:
        assert c.call("flush") == {"entries": 0, "blocks": 0, "bytes": 0}
        leases = [own(c, 3 * MIB) for _ in range(5)] + [lease_of(create(c, 100)) for _ in range(20)]
        close(c, *leases)
        assert figures(c)["pending"] == 25
        flushed = c.call("flush")
        assert flushed["entries"] == 25
        assert (flushed["blocks"], flushed["bytes"]) == (6, 5 * 4 * MIB + 2 * MIB)
        info = figures(c)
        assert (info["used"], info["blocks"], info["pending"], info["releases"]) == (0, 0, 0, 6)
        assert c.call("flush") == {"entries": 0, "blocks": 0, "bytes": 0}


def test_flush_of_one_device(start):
    d = start(config=NEVER, CAID_SOFTCUDA_DEVICES=2)
    with d.client() as c:
        one, two = (m["uuid"] for m in c.call("memory_info")["devices"])
        close(c, own(c, MIB, device=one), own(c, MIB, device=two))
        assert c.call("flush", device=two)["entries"] == 1
        assert [m["pending"] for m in c.call("memory_info")["devices"]] == [1, 0]
        with pytest.raises(raw.Refused, match="GPU-none"):
            c.call("flush", device="GPU-none")
        assert c.call("flush")["entries"] == 1


def test_defer(start):
    """Nested; ending it flushes nothing, the next close does."""
    d = start(config="[memory]\nmax_pending_ratio = 1\nmax_pending_age = 60m\n")
    with d.client() as c, d.client() as other:
        leases = [own(c, 100) for _ in range(14)]
        c.call("defer", begin=True)
        c.call("defer", begin=True)
        close(c, *leases[:12])
        assert charges(d)["deferred"] == 1
        c.call("defer", begin=False)
        assert figures(c)["pending"] == 12
        assert c.call("flush")["entries"] == 0
        assert other.call("flush")["entries"] == 0  # of the same uid
        c.call("defer", begin=False)
        assert charges(d)["deferred"] == 0
        assert (figures(c)["pending"], figures(c)["flushes"]) == (12, 0)
        close(c, leases[12])
        assert figures(c)["pending"] == 0
        refused(INVALID, c.call, "defer", begin=False)


def test_defer_outlasts_age(start):
    d = start(config="[memory]\nmax_pending_age = 50ms\n")
    with d.client() as c, d.client() as other:
        c.call("defer", begin=True)
        close(c, own(c, 100))
        with d.client() as another:  # of the same uid
            close(another, own(another, 3 * MIB))
            assert another.call("ping") == {}
        assert figures(c)["pending"] == 2
        other.call("defer", begin=True)
        c.call("defer", begin=False)
        assert figures(c)["pending"] == 2
        other.call("defer", begin=False)
        wait_for(lambda: figures(c)["pending"] == 0, "the queue")


def test_defer_ends_with_its_connection(start):
    d = start(config="[memory]\nmax_pending_ratio = 1\nmax_pending_age = 60m\n")
    with d.client() as c:
        leases = [own(c, 100) for _ in range(13)]
        with d.client() as holder:
            holder.call("defer", begin=True)
            holder.call("defer", begin=True)
            close(c, *leases[:12])
            assert figures(c)["pending"] == 12
        wait_for(lambda: charges(d)["deferred"] == 0, "the end of the connection")
        assert figures(c)["pending"] == 12
        close(c, leases[12])
        assert figures(c)["pending"] == 0


def test_pending_memory_serves_the_next_array(start, tmp_path):
    """Of the same pool, without the driver; also where it is held back from others."""
    d = start(config=NEVER, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        close(c, own(c, 8 * MIB))
        before = d.driver_calls()
        for _ in range(100):
            close(c, own(c, 8 * MIB))
        assert d.driver_calls() == before
        assert figures(c)["used"] == 8 * MIB


def test_reserve_is_bounded(start):
    d = start(config="[memory]\nmax_pending_count = 0\nreserve = 8M\nmax_pending_age = 60m\n")
    with d.client() as c:
        leases = [own(c, 4 * MIB) for _ in range(5)]
        close(c, *leases)
        wait_for(lambda: figures(c)["used"] == 8 * MIB, "the others' release")
        assert figures(c)["reserve"] == 8 * MIB
        assert figures(c)["available"] >= 8 * MIB


# ---- out of memory ----


def test_out_of_memory_flushes_and_tries_once_more(start, tmp_path):
    d = start(config=NEVER, CAID_SOFTCUDA_MEMORY="16M", CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        close(c, *[own(c, 4 * MIB) for _ in range(4)])
        assert figures(c)["pending"] == 4
        own(c, 16 * MIB)
        assert d.driver_calls()["cuMemCreate"] == 4 + 2
        info = figures(c)
        assert (info["used"], info["pending"], info["blocks"]) == (16 * MIB, 0, 1)


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


def test_own_deferral_holds_even_when_memory_runs_out(start):
    """R12: while the caller defers, the flush is none, and the retry fails."""
    d = start(config=NEVER, CAID_SOFTCUDA_MEMORY="16M")
    with d.client() as c:
        c.call("defer", begin=True)
        close(c, own(c, 8 * MIB))
        refused(NO_MEMORY, own, c, 16 * MIB)
        c.call("defer", begin=False)
        own(c, 16 * MIB)


def test_many_at_once_out_of_memory(start):
    """Each that can be served is, each that cannot is told so, and the figures are exact."""
    d = start(config=NEVER, CAID_SOFTCUDA_MEMORY="32M")
    with d.client() as c:
        close(c, *[own(c, 2 * MIB) for _ in range(16)])
        numbers = [
            c.request("create", typestr="|u1", shape=[4 * MIB], exclusive=True) for _ in range(12)
        ]
        done = 0
        for _ in numbers:
            try:
                c.response()
                done += 1
            except raw.Refused as e:
                assert e.code == NO_MEMORY
        info = figures(c)
        assert 1 <= done <= 8
        assert info["arrays"] == done
        assert charges(d)["bytes"] == done * 4 * MIB
        assert charges(d)["jobs"] == 0


# ---- a driver that fails ----


HALF_WAY = [
    ("device", "cuMemCreate", 4),
    ("device", "cuMemExportToShareableHandle", 4),
    ("legacy", "cuDevicePrimaryCtxRetain", 1),  # made once
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
        config=AT_ONCE,
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
        config=NEVER,
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
        assert nothing_charged(d, but=["connections", "pending"])
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
    d = start(config=AT_ONCE)
    with d.client() as c:
        create(c, 1, memory="legacy")  # what a context has, stays
        before = len(os.listdir(f"/proc/{d.pid}/fd"))
        for kind in KINDS:
            replies = [create(c, 3 * MIB, memory=kind) for _ in range(5)]
            blocks = {block["block"] for reply in replies for block in reply["blocks"]}
            close(c, *map(lease_of, replies), forget=list(blocks))
        wait_for(lambda: figures(c)["blocks"] == 1, "the release")
        assert len(os.listdir(f"/proc/{d.pid}/fd")) == before
