# SPDX-License-Identifier: Apache-2.0
"""Two GPUs: memory of one, opened from the other over the peer link. Needs two NVIDIA GPUs."""

import pytest
from conftest import needs, run

CHECK = """
    import sys, time, cupy, numpy
    device, N = sys.argv[1] or None, 256 << 20
    with caid.connect() as c, c.open("far", device=device) as far:
        assert (far.device, far.mapped_ordinal) == (0, int(sys.argv[2])), (far.device, far.mapped_ordinal)
        with cupy.cuda.Device(far.mapped_ordinal):
            x = cupy.asarray(far)
            total = int(x.sum(dtype="u8"))
            assert total == sum(range(256)) * (N // 256), total
            y = cupy.empty(N, "u1")
            stream = cupy.cuda.get_current_stream()
            for _ in range(3):
                cupy.cuda.runtime.memcpyAsync(y.data.ptr, far.ptr, N, 3, stream.ptr)
            stream.synchronize()
            begin, rounds = time.perf_counter(), 20
            for _ in range(rounds):
                cupy.cuda.runtime.memcpyAsync(y.data.ptr, far.ptr, N, 3, stream.ptr)
            stream.synchronize()
            print(f"{rounds * N / (time.perf_counter() - begin) / 1e9:.0f} GB/s")
            assert int((y != x).sum()) == 0
        with c.empty(1 << 20, "|u1", device=1) as near:
            near.copy_from(far[: 1 << 20])
            assert (near.copy_to_host() == numpy.arange(1 << 20, dtype="u8") % 256).all()
"""


@pytest.fixture(scope="module")
def far(daemon):
    """256 MiB on the first GPU, whose bytes count from 0 to 255 again and again."""
    needs("cupy")
    with daemon.connect() as c:
        if len(c.devices) < 2:
            pytest.skip("two GPUs are needed")
        with c.create("far", 256 << 20, "|u1") as a:
            a.copy_from_host(bytes(range(256)) * (1 << 20))
        yield c.devices
        c.unlink("far")


def test_opened_by_uuid_from_the_other_gpu(daemon, far):
    out = run(daemon.env, CHECK, args=[far[1].uuid, "1"])
    print("GPU 1 reads memory of GPU 0:", out.strip())


def test_opened_by_a_process_that_sees_the_other_gpu_only(daemon, far):
    """Index 0 of that process is the daemon's 1; the memory's own GPU is hidden from it."""
    out = run({**daemon.env, "CUDA_VISIBLE_DEVICES": "1"}, CHECK, args=["", "0"])
    print("GPU 1, alone visible, reads memory of GPU 0:", out.strip())
    run({**daemon.env, "CUDA_VISIBLE_DEVICES": "1"}, CHECK, args=[far[1].uuid, "0"])


def test_local_copies_for_comparison(daemon, far):
    out = run(daemon.env, CHECK.replace("device=1", "device=0"), args=[far[0].uuid, "0"])
    print("GPU 0 reads memory of GPU 0:", out.strip())


def test_memory_is_told_by_device(daemon, far):
    with daemon.connect() as c:
        c.flush()
        assert c.memory_info(0).used >= 256 << 20 and c.memory_info(1).used == 0
        assert c.memory_info(far[1].uuid).total == far[1].total or c.memory_info(1).total
