# SPDX-License-Identifier: Apache-2.0
"""An array for all ranks of a machine: by bcast_by_reference(), and by value, MPI's own Bcast of its bytes, which
goes by the host where MPI is not CUDA-aware.

usage: mpirun -n 4 python -m mpi4py bench_mpi.py, with CAID_SOCKET of a daemon
"""

import statistics
import time

import caid
import caid.mpi
from mpi4py import MPI

SIZES = {"1 MiB": 1 << 20, "64 MiB": 64 << 20, "1 GiB": 1 << 30}
ROUNDS = 15
GOAL = 10
COMM = MPI.COMM_WORLD


def by_reference(a, _host):
    got = caid.mpi.bcast_by_reference(COMM, a)
    return got[:1].copy_to_host()[0], got.close


def by_value(a, host):
    if COMM.rank == 0:
        a.copy_to_host(host)
    COMM.Bcast([host, MPI.BYTE])
    if COMM.rank:
        a.copy_from_host(host)
    return a[:1].copy_to_host()[0], lambda: None


def seconds(way, a, host, rounds):
    """What the slowest rank takes, the median."""
    times = []
    for _ in range(rounds + 1):  # the first one maps, and connects
        COMM.Barrier()
        start = time.perf_counter()
        first, close = way(a, host)
        times.append(COMM.allreduce(time.perf_counter() - start, MPI.MAX))
        assert first == 7
        close()
    return statistics.median(times[1:])


def main():
    client = caid.default_client()
    if COMM.rank == 0:
        print(f"an array for the {COMM.size} ranks of a machine, median of what the slowest rank takes:", flush=True)
    for name, nbytes in SIZES.items():
        rounds = ROUNDS if nbytes < 1 << 30 else 3
        with client.full(nbytes, 7 if COMM.rank == 0 else 0, "u1") as a:
            host = caid.pinned_array(nbytes, "u1", client=client)
            ours = seconds(by_reference, a, host, rounds)
            theirs = seconds(by_value, a, host, rounds)
            del host
        if COMM.rank == 0:
            goal = f" (goal: {GOAL})" if nbytes == 1 << 30 else ""
            print(f"  {name:>7}: by reference {ours * 1e3:.2f} ms, Bcast {theirs * 1e3:.2f} ms; "
                  f"ratio {theirs / ours:.1f}{goal}", flush=True)


if __name__ == "__main__":
    main()
