# SPDX-License-Identifier: Apache-2.0
"""What all tests share: a daemon, a client whose arrays have to be gone at the end, and child
processes that are told what to do line by line."""

import faulthandler
import gc
import os
import subprocess
import sys
import textwrap
import time
import uuid

import hypothesis
import pytest

os.environ.setdefault("CAID_CUDA_DRIVER", "soft")
# A software device of our own: in the figures of a shared one there would be others' memory.
os.environ.setdefault("CAID_SOFTCUDA_UUID", str(uuid.uuid4()))
os.environ.pop("CAID_CAI_EXPORT_VERSION", None)
os.environ.pop("CAID_CAI_SYNC", None)

import caid  # noqa: E402

PATIENCE_S = 60  # for what has to happen: passing it is a failure, no measure of speed

hypothesis.settings.register_profile("caid", database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("caid")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    # Python's warning of fork() in a process with threads: some tests are about just that.
    config.addinivalue_line("filterwarnings", "ignore:.*fork:DeprecationWarning")
    faulthandler.dump_traceback_later(200, exit=True)


def wait_until(condition):
    """Waits for what another thread or process brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


def n_blocks(client):
    """That memory is freed in is kept for the next who wants some, and for a while: not now."""
    client.flush()
    return client.memory_info().blocks


def n_leases(client):
    """A close is told when the GPU is done with the array; flush() waits for its own client's."""
    client.flush()
    return client.status().leases


@pytest.fixture(scope="session")
def daemon():
    """One for all tests of a file. At its end it has leaked nothing, where that is looked for."""
    d = caid.LocalDaemon(env={"ASAN_OPTIONS": "detect_leaks=1"})
    yield d
    log = d.log()
    assert d.stop() == 0, log


@pytest.fixture
def client(daemon):
    """A client; afterwards nothing may be left at the daemon."""
    with daemon.connect() as c:
        yield c
        if not c.closed:
            for entry in c.list():
                c.unlink(entry.name)
    gc.collect()
    with daemon.connect() as c:
        wait_until(lambda: n_blocks(c) == 0)
        status = c.status()
        assert (status.connections, status.arrays, status.leases, status.names) == (1, 0, 0, 0)
        assert status.release_errors == 0


@pytest.fixture
def soft(client):
    """For tests of what only the software driver has."""
    if not client.host_accessible:
        pytest.skip("on the software driver only")


class Child:
    """A Python process that runs `code`. It answers each line that it is sent with one line."""

    def __init__(self, code, env, *args, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), *map(str, args)],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.pid = self.process.pid

    def expect(self, line):
        got = self.process.stdout.readline()
        assert got == f"{line}\n", f"{got!r}, not {line!r}; {self.finish()}"

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def finish(self):
        """(status, stderr) at its end."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


PREAMBLE = """\
import sys
import caid

def step(line):
    print(line, flush=True)
    if not sys.stdin.readline():
        sys.exit("the test has gone")

"""


@pytest.fixture
def child(daemon):
    """child(code, *args): starts one; all are ended with the test."""
    children = []

    def start(code, *args):
        children.append(Child(code, daemon.env, *args))
        return children[-1]

    yield start
    for c in children:
        c.kill()
