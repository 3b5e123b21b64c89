# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while kernels' output is handed over, and while no process has a context.

Needs an NVIDIA GPU.
"""

import os
import random
import signal
import time

import pytest
from conftest import run
from test_handoff import KILLS, N, PRODUCER, TICKS, Talker

import caid

BOUND_S = 10.0  # that a reader may wait for its turns, with one restart among them
TURN = 20  # kernels, of some 5 ms each


@pytest.fixture
def daemon():
    with caid.LocalDaemon(supervise=True) as d:
        yield d


PRODUCE = PRODUCER + f"""
for value in range(1, 1 << 30):
    with a.write(s) as v:
        fill(v, value, {TICKS // 200}, s)
    if value == 1:
        say("ready")
    s.synchronize()
"""

CONSUME = f"""
import sys
c = caid.connect()
a = c.open("shared")
s = c.stream(non_blocking=True)
host, last = caid.pinned_array({N}, "<i4"), 0
print("ready", flush=True)
for line in sys.stdin:
    end = last + {TURN}
    while last < end:
        with a.read(s) as v:
            v.copy_to_host(host, stream=s)
        s.synchronize()
        assert host.min() == host.max() >= last, (host.min(), host.max(), last)
        last = int(host[0])
    print("right", flush=True)
"""


def test_kernels_output_is_handed_over_while_the_daemon_dies(daemon):
    rng, longest_s = random.Random(1), 0
    with daemon.connect() as c, c.create("shared", N, "<i4"):
        producer, consumer = (Talker(daemon, script) for script in (PRODUCE, CONSUME))
        for process in (producer, consumer):
            process.hears("ready")
        for _ in range(KILLS):
            pid = c.status().pid
            begun = time.monotonic()
            consumer.tell()
            time.sleep(rng.random() * 0.1)
            os.kill(pid, signal.SIGKILL)
            consumer.hears("right")
            longest_s = max(longest_s, time.monotonic() - begun)
        assert c.status().restarts == KILLS
        consumer.rest()
        producer.kill()
    print(f"{KILLS} kills: {TURN} kernels' output is there within {longest_s:.2f} s")
    assert longest_s < BOUND_S


def pid_of(daemon):
    return int(run(daemon.env, "print(caid.connect().status().pid)"))


def test_memory_that_no_process_has_a_context_for(daemon):
    """The service manager is held back, so that there is none for some seconds."""
    run(daemon.env, """
    import numpy
    c = caid.connect()
    for i in range(8):
        with c.create(f"x{i}", 1 << 24, "<i4") as a:
            a.copy_from_host(numpy.arange(i, i + (1 << 24), dtype="<i4"))
    """)  # fmt: skip
    pid = pid_of(daemon)
    os.kill(daemon.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    time.sleep(5)
    os.kill(daemon.pid, signal.SIGCONT)
    assert pid_of(daemon) != pid
    run(daemon.env, """
    import numpy
    c = caid.connect()
    for i in range(8):
        with c.open(f"x{i}") as a:
            assert (a.copy_to_host() == numpy.arange(i, i + (1 << 24), dtype="<i4")).all()
    """)  # fmt: skip
