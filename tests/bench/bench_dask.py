# SPDX-License-Identifier: Apache-2.0
"""An array between Dask's workers, over TCP or $CAID_DASK_PROTOCOL ("ucxx"): on one machine by reference,
between two by value, and the same with arrays of CuPy (of NumPy on the software driver). Two daemons stand for two
machines, each on a GPU of its own where there are two. Goal: on one machine 10 times faster than CuPy's for 1 GiB.

usage: bench_dask.py [MIB...]"""

import contextlib
import os
import statistics
import sys
import time

import caid

try:
    import distributed
    from caid.dask import Plugin
except ImportError as e:
    sys.exit(print(f"left out: {e}"))

MIB, ROUNDS = 1 << 20, 7
PROTOCOL = os.environ.get("CAID_DASK_PROTOCOL", "tcp")


def make(nbytes, _round):
    with caid.default_client().empty(nbytes, "|u1") as x:
        x.fill(1)
        x.synchronize()
        return x.view()


def make_theirs(nbytes, _round):
    library = library_of()
    x = library.ones(nbytes, "u1")
    if library.__name__ == "cupy":
        library.cuda.runtime.deviceSynchronize()
    return x


def library_of():
    if caid.default_client().host_accessible:
        import numpy

        return numpy
    import cupy

    return cupy


def touch(x):
    return x.nbytes


def worker(name, daemon, device):
    env = {"CAID_SOCKET": daemon.address, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if device is not None:
        env["CUDA_VISIBLE_DEVICES"] = str(device)
    options = {"name": name, "nthreads": 1, "env": env, "host": "127.0.0.1", "memory_limit": None, "protocol": PROTOCOL}
    return {name: {"cls": distributed.Nanny, "options": {**options, "dashboard_address": "127.0.0.1:0"}}}


def measure(client, made, nbytes, target):
    times = []
    for i in range(ROUNDS):
        x = client.submit(made, nbytes, i, workers=["a0"], pure=False)
        distributed.wait(x)
        start = time.perf_counter()
        assert client.submit(touch, x, workers=[target], pure=False).result() == nbytes
        times.append(time.perf_counter() - start)
        del x
    return statistics.median(times[1:])


def main(sizes):
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(caid.LocalDaemon(env={"CAID_MACHINE_ID": "a" * 32}))
        with a.connect() as client:
            gpus = [] if client.host_accessible else range(len(client.devices))
            theirs = "NumPy" if client.host_accessible else "CuPy"
        devices = [0, len(gpus) - 1] if gpus else [None, None]
        env = {"CAID_MACHINE_ID": "b" * 32}
        if gpus:
            env["CUDA_VISIBLE_DEVICES"] = str(devices[1])
        b = stack.enter_context(caid.LocalDaemon(env=env))
        workers = {**worker("a0", a, devices[0]), **worker("a1", a, devices[0]), **worker("b0", b, devices[1])}
        scheduler = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "dashboard": False, "protocol": PROTOCOL}
        cluster = distributed.SpecCluster(workers, {"cls": distributed.Scheduler, "options": scheduler})
        client = stack.enter_context(distributed.Client(stack.enter_context(cluster)))
        client.register_plugin(Plugin())
        measure(client, make, MIB, "a1")
        for mib in sizes:
            nbytes = mib * MIB
            near, far = (measure(client, make, nbytes, to) for to in ("a1", "b0"))
            near_theirs, far_theirs = (measure(client, make_theirs, nbytes, to) for to in ("a1", "b0"))
            print(
                f"{PROTOCOL}, {mib} MiB: on one machine {near * 1e3:.1f} ms, {theirs} {near_theirs * 1e3:.1f} ms: "
                f"{near_theirs / near:.1f} times faster; between two {far * 1e3:.1f} ms "
                f"({nbytes / far / 1e9:.2f} GB/s), {theirs} {far_theirs * 1e3:.1f} ms: {far_theirs / far:.2f} times",
                flush=True,
            )


if __name__ == "__main__":
    main([int(arg) for arg in sys.argv[1:]] or [1, 64, 1024])
