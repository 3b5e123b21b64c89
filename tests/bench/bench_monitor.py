# SPDX-License-Identifier: Apache-2.0
"""open + close of an array whose block is mapped, with and without `caidctl monitor` running.

The two take turns in one run; each turn has a monitor of its own.

usage: bench_monitor.py SOCKET CAIDCTL
"""

import contextlib
import statistics
import subprocess
import sys
import time

import caid

ROUNDS, PER_ROUND = 20, 10000


def open_close_ns(client):
    times = []
    for _ in range(PER_ROUND):
        start = time.perf_counter_ns()
        client.open("bench").close()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


@contextlib.contextmanager
def looked_at(client, address, caidctl):
    with subprocess.Popen([caidctl, f"--socket={address}", "monitor"], stdout=subprocess.PIPE) as process:
        while client.status().watches == 0:
            time.sleep(0.001)
        counter = subprocess.Popen(["wc", "-l"], stdin=process.stdout, stdout=subprocess.PIPE, text=True)
        yield
        process.terminate()
    counter.communicate()
    while client.status().watches:
        time.sleep(0.001)


def main(address, caidctl):
    with caid.Client(address) as client, client.create("bench", (1024, 768), "<f4"), client.open("bench"):
        open_close_ns(client)
        alone, seen = [], []
        for _ in range(ROUNDS):
            alone.append(open_close_ns(client))
            with looked_at(client, address, caidctl):
                seen.append(open_close_ns(client))
        ratio = statistics.median(s / a for s, a in zip(seen, alone))
        print(
            f"open + close, Python: {statistics.median(alone) / 1e3:.1f} us, looked at by caidctl monitor: "
            f"{statistics.median(seen) / 1e3:.1f} us; ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
