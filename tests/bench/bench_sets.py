# SPDX-License-Identifier: Apache-2.0
"""A set of 262,144 names: how long publish_many() and opening all of it take, and the longest turn of
the daemon's loop, by its thread's time, after each step: goal 2 ms. On a daemon that is its own: one
without a keeper, or, where no address is given, beside one."""

import contextlib
import os
import pathlib
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).parent.parent / "python"))
os.environ["CAID_SOFTCUDA_MEMORY"] = "4G"

from restarts import Restarts  # noqa: E402

import caid  # noqa: E402

N, GOAL_NS = 262144, 2_000_000


def step(client, what, work):
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    turn_ns = client.status().turn_cpu_ns
    print(f"{what}: {seconds * 1e3:.1f} ms; longest turn {turn_ns / 1e6:.3f} ms (goal: at most {GOAL_NS / 1e6:.0f})")
    return result


def settle(client, arrays):
    while client.status().arrays > arrays:
        time.sleep(0.01)


def make(client):
    return {f"w{i:06}": client.empty(512, "|u1") for i in range(N)}


def close(arrays):
    for array in arrays.values():
        array.close()


def main(address):
    with caid.Client(address) as c:
        arrays = step(c, f"create {N} arrays", lambda: make(c))
        step(c, "publish_many", lambda: c.publish_many("m/", arrays))
        step(c, "rename it: the switch alone", lambda: c.rename("m/", "n/"))
        c.rename("n/", "m/")
        close(arrays)
        with step(c, "open_set", lambda: c.open_set("m/")) as s:
            opened = step(c, "open all of it", s.open)
            close(opened)
        step(c, "list", c.list)
        with caid.Client(address) as other:
            arrays = make(other)
            step(c, "replace it, the old one's memory given back", lambda: other.publish_many("m/", arrays))
            settle(c, 2 * N)
        step(c, "the publisher disconnects", lambda: settle(c, N + 1))
        step(c, "unlink it, until all is given back", lambda: (c.unlink("m/"), settle(c, 0)))


if len(sys.argv) > 1:
    main(sys.argv[1])
else:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Restarts(pathlib.Path(folder))) as restarts:
        print("beside a keeper:", flush=True)
        main(restarts.address)
