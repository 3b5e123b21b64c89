# SPDX-License-Identifier: Apache-2.0
"""Want of memory and of file descriptors: the daemon refuses what it has none for, and does not end."""

import contextlib
import mmap
import pathlib
import re
import resource
import struct

import pytest
import raw
from conftest import BUILD, DEADLINE, is_sanitized, wait_for


class Countdown:
    """Which of the daemon's next allocations fails: fail_malloc.c."""

    def __init__(self, path):
        path.write_bytes(bytes(8))
        self.path = path
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 8)

    def set(self, n):
        self.map[:] = struct.pack("=q", n)

    def is_over(self):
        return struct.unpack("=q", self.map[:])[0] <= 0


@pytest.fixture
def countdown(tmp_path):
    return Countdown(tmp_path / "countdown")


def connect(daemon, countdown, n):
    """A client; or None where one of so many allocations was for it, which has failed."""
    countdown.set(n)
    try:
        client = daemon.client()
    except (raw.Closed, ConnectionError):
        return None
    if countdown.is_over():
        client.close()
        return None
    countdown.set(0)
    return client


@pytest.mark.skipif(is_sanitized(), reason="the sanitizer has a malloc of its own")
def test_each_allocation_of_a_connection_fails(start, countdown):
    """One after the other, for as many connections as make every table grow several times."""
    d = start(LD_PRELOAD=BUILD / "tests" / "fail-malloc.so", FAIL_MALLOC=countdown.path)
    n_refused = 0
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(d.client())
        for _ in range(80):
            n, client = 1, None
            while not client:
                assert d.process.poll() is None, d.text()
                client = connect(d, countdown, n)
                n += 1
            stack.enter_context(client)
            n_refused += n - 2
        assert n_refused > 80
        wait_for(lambda: first.call("status")["connections"] == 81, "the end of the others")
    assert d.stop() == 0


@pytest.mark.skipif(is_sanitized(), reason="the sanitizer maps what it likes")
def test_no_memory_for_threads(start):
    """They are there from the start, with their stacks."""
    d = start()
    with d.client() as c:
        text = pathlib.Path(f"/proc/{d.pid}/status").read_text()
        size = int(re.search(r"VmSize:\s+(\d+) kB", text)[1]) << 10
        resource.prlimit(d.pid, resource.RLIMIT_AS, (size, size))
        with contextlib.suppress(raw.Refused):
            c.call("create", typestr="|u1", shape=[1])
        assert c.call("ping") == {}


@pytest.mark.parametrize("max_fds", [14, 50, 100])
def test_too_few_fds_to_serve_anybody(start, max_fds):
    """Are an error at the start, which says how many would do."""
    d = start(max_fds=max_fds, wait=False)
    assert d.process.wait(DEADLINE) == 1
    assert f"a limit of {max_fds} open files leaves none to clients" in d.text()
    assert not d.socket.exists()


def test_the_table_of_fds_does_not_grow(start):
    """The kernel would keep the loop waiting for that: it is as large as it may become."""
    d = start(max_fds=5000)
    text = pathlib.Path(f"/proc/{d.pid}/status").read_text()
    assert int(re.search(r"FDSize:\s+(\d+)", text)[1]) >= 5000


def test_just_enough_fds(start):
    """The fewest with which it starts are enough for a client."""
    needed = 100
    while needed:
        d = start(wait=False, max_fds=needed)
        wait_for(lambda: "serving on" in d.text() or d.process.poll() is not None, "the start")
        needed = d.process.poll() and int(re.findall(r"at least (\d+) are needed", d.text())[-1])
    with d.client() as c:
        assert c.call("create", typestr="|u1", shape=[1], exclusive=True)["arrays"]
