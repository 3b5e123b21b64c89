# SPDX-License-Identifier: Apache-2.0
"""The daemon looks for packets without sleeping where that pays, and not for long where it does not."""

import itertools
import os
import pathlib
import re
import time

import pytest
from slots import ask, begin, create, end, open_

SECONDS = 2

pytestmark = pytest.mark.skipif(os.cpu_count() < 2, reason="where there is one CPU it never does")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def n_sleeps(pid):
    """How often the daemon's first thread has slept, whoever else wanted its CPU."""
    status = pathlib.Path(f"/proc/{pid}/task/{pid}/status").read_text()
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.M)[1])


def cpu_of(daemon, step):
    """What the daemon takes of a CPU while step(number) is done over and over, and for each of them, in
    seconds."""
    start, cpu, n = time.monotonic(), cpu_seconds(daemon.pid), 0
    while time.monotonic() - start < SECONDS:
        n += 1
        step(n)
    spent = cpu_seconds(daemon.pid) - cpu
    return spent / (time.monotonic() - start), spent / n


@pytest.fixture
def two(start, spin_us):
    """Two clients with array "x", of which the second has waited for the first for a short time."""
    daemon = start(config=f"[handoff]\nspin_us = {spin_us}\n")
    with daemon.client() as a, daemon.client() as b:
        mine = create(a, "x")
        its = open_(b, "x")
        hand_over(a, mine, b, its, 1, 0)
        yield daemon, a, mine, b, its


def hand_over(a, mine, b, its, number, seconds):
    """The second one waits meanwhile."""
    begin(a, number, write=[mine])
    asked = ask(b, number, read=[its])
    time.sleep(seconds)
    end(a, number)
    b.response(asked)
    end(b, number)


@pytest.mark.parametrize("spin_us", [1000])
@pytest.mark.parametrize("way", ["cancel", "timeout"])
def test_waits_that_come_to_nothing(two, way):
    daemon, a, mine, b, its = two

    def step(number):
        if way == "cancel":
            asked = ask(b, number + 2, read=[its])
            b.notify("cancel", request=asked)
        else:
            ask(b, number + 2, read=[its], timeout_ns=100_000)
        b.receive()
        time.sleep(0.0008)

    begin(a, 2, write=[mine])
    with daemon.client() as c:
        ask(c, 1, read=[open_(c, "x")])  # waits all the time
        assert cpu_of(daemon, step)[0] < 0.3


def sleeps_for_each(two):
    """How often the daemon sleeps for each hand-over, for which it is waited half a millisecond: nearly four
    times where it never looks, twice where it does."""
    daemon, *clients = two
    number, n = itertools.count(10_000_000), 500
    before = n_sleeps(daemon.pid)
    for _ in range(n):
        hand_over(*clients, next(number), 0.0005)
    return (n_sleeps(daemon.pid) - before) / n


# A wait of this length is a short one on a busy machine, too.
short = pytest.mark.parametrize("spin_us", [50_000])


@short
def test_waits_that_are_short(two):
    assert sleeps_for_each(two) < 3


@short
def test_short_waits_after_others(two):
    """What came to nothing is forgotten after a while."""
    daemon, a, mine, b, its = two

    def cancel(number):
        asked = ask(b, number + 2, read=[its])
        b.notify("cancel", request=asked)
        b.receive()

    begin(a, 2, write=[mine])
    cpu_of(daemon, cancel)
    end(a, 2)
    assert sleeps_for_each(two) < 3
