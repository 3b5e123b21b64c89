# SPDX-License-Identifier: Apache-2.0
"""caid.storage: bringing 256 MiB to the other side, beside the bare driver call between the same kinds of
memory, and what a block of fields() costs. All take turns; what is printed are medians.

usage: bench_storage.py SOCKET
"""

import ctypes
import os
import statistics
import sys
import time

ROUNDS, BLOCKS = 15, 2000
NBYTES = 256 << 20
LEAST, MOST_US = 0.9, 20.0  # of the bare copy's speed; of a block


class Bare:
    """A pinned buffer, one of the device, and a stream, by the driver alone."""

    def __init__(self, name):
        self.cuda = ctypes.CDLL(name)
        self.call("cuInit", 0)
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        host, device = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(NBYTES), 0)
        self.call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(NBYTES))
        ctypes.memset(host, 1, NBYTES)
        self.host, self.device, self.stream, self.size = host, device, stream, ctypes.c_size_t(NBYTES)

    def call(self, name, *args):
        result = getattr(self.cuda, name)(*args)
        assert result == 0, f"{name}: {result}"

    def to_device(self):
        self.call("cuMemcpyHtoDAsync_v2", self.device, self.host, self.size, self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def to_host(self):
        self.call("cuMemcpyDtoHAsync_v2", self.host, self.device, self.size, self.stream)
        self.call("cuStreamSynchronize", self.stream)


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turn(calls):
    """Medians of the rounds, after one that is not counted."""
    rounds = [[seconds(call) for call in calls] for _ in range(ROUNDS + 1)]
    return [statistics.median(times) for times in zip(*rounds[1:])]


def copies(storage, bare):
    for what, modified, floor in (
        ("to the device", storage.set_host_modified, bare.to_device),
        ("to the host", storage.set_device_modified, bare.to_host),
    ):
        def synchronize(modified=modified):
            modified()
            storage.synchronize()

        bare_s, storage_s = in_turn([floor, synchronize])
        print(f"256 MiB {what}: {NBYTES / storage_s / 1e9:.1f} GB/s, the bare copy {NBYTES / bare_s / 1e9:.1f}: "
              f"{bare_s / storage_s:.3f} of it (goal: {LEAST})")


def blocks(cs, client):
    five = [cs.zeros((128, 128, 80), device="gpu", client=client) for _ in range(5)]
    with client.stream(non_blocking=True) as stream:
        for what, options in ("", {}), (" on a stream", {"stream": stream}):
            def run(options=options):
                for _ in range(BLOCKS):
                    with cs.fields(read=five[:3], write=five[3:], device="gpu", **options):
                        pass

            (total,) = in_turn([run])
            print(f"a block of fields() over 5 storages{what}: {total / BLOCKS * 1e6:.1f} us (goal: {MOST_US:.0f})")
        del run


def main(socket):
    os.environ["CAID_SOCKET"] = socket
    import caid
    import caid.storage as cs

    with caid.connect() as client:
        soft = client.status().driver == "soft"
        copies(cs.zeros(NBYTES, "u1", device="gpu", client=client),
               Bare(caid.softcuda_path() if soft else "libcuda.so.1"))
        blocks(cs, client)


if __name__ == "__main__":
    main(*sys.argv[1:])
