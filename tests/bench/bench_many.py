# SPDX-License-Identifier: Apache-2.0
"""Opening 10,000 small named arrays in a fresh process, from Python.

Each run is a process of its own. The start of the interpreter and the imports are not caid's; their
time is beside it.

usage: bench_many.py SOCKET
"""

import subprocess
import sys
import time

N, RUNS, GOAL_MS = 10000, 15, 50


def name_of(i):
    return f"many-py/{i:05}"


def open_all(socket):
    """The fresh process: writes its times."""
    begun = time.perf_counter_ns()
    import caid

    imported = time.perf_counter_ns()
    names = [name_of(i) for i in range(N)]
    start = time.perf_counter_ns()
    client = caid.connect(socket)
    arrays = client.open_many(names)
    opened = time.perf_counter_ns()
    assert len(arrays) == N
    for array in arrays:
        array.close()
    client.close()
    print(imported - begun, opened - start)


def run(socket):
    begun = time.perf_counter_ns()
    out = subprocess.run([sys.executable, __file__, socket, "child"], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    whole = time.perf_counter_ns() - begun
    imports, opening = map(int, out.split())
    return opening, imports, whole


def main(socket):
    import caid

    with caid.connect(socket) as client:
        for i in range(N):
            client.create(name_of(i), (64,), "<f4").close()
        times = sorted(run(socket) for _ in range(RUNS))
        opening, imports, whole = (ns / 1e6 for ns in times[RUNS // 2])
        print(f"opening {N} named arrays in a fresh process, Python: connect + open_many: median "
              f"{opening:.1f} ms, worst {times[-1][0] / 1e6:.1f} ms (goal: {GOAL_MS} ms); "
              f"import caid {imports:.1f} ms; the whole process, its closes included, "
              f"{whole:.1f} ms", flush=True)
        for i in range(N):
            client.unlink(name_of(i))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        open_all(sys.argv[1])
    else:
        main(*sys.argv[1:])
