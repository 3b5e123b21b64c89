# SPDX-License-Identifier: Apache-2.0
"""Signals, limits and files that were inherited: they fail a call, or the start with a word, and end nobody."""

import os
import pathlib
import signal
import subprocess

import pytest
from conftest import CAID, DEADLINE, MIB, daemon_env, is_sanitized, needs_root, own_mounts, refused, wait_for
from keepers import Keeper
from test_supervise import child_of

DRIVER = 13  # proto/errors.def


def limited(**limits):
    return {"prefix": ["prlimit", *(f"--{name}={value}" for name, value in limits.items())]}


@pytest.mark.parametrize("memory", ["device", "pinned"])
def test_files_of_a_limited_size(start, memory):
    d = start(**limited(fsize=4 * MIB))
    with d.client() as other, d.client() as c:
        other.call("create", name="kept", typestr="<f4", shape=[3])
        e = refused(DRIVER, c.call, "create", name="big", memory=memory, typestr="|u1", shape=[8 * MIB])
        assert "8 MiB" in str(e)
        assert c.call("open", names=["kept"], mode="r")["arrays"]
        assert other.call("ping") == {}


@pytest.mark.parametrize(
    "limits, said",
    [
        ({"fsize": 2000}, "cannot start: File too large"),
        ({"as": 48 * MIB}, "threads for the driver's calls cannot be started"),
        ({"nofile": 64}, "a limit of 64 open files"),
    ],
)
@pytest.mark.parametrize("mode", ["--foreground", "--supervise"])
def test_limits_that_let_nobody_be_served(start, mode, limits, said):
    if "as" in limits and is_sanitized():
        pytest.skip("a sanitizer wants more address space than there is")
    d = start(mode, wait=False, **limited(**limits))
    assert d.process.wait(DEADLINE) == 1
    assert said in d.text()


def test_a_limit_of_time_is_told(start):
    d = start(**limited(cpu="1000:2000"))
    assert "2000 s of CPU time end this process" in d.text()


IGNORED = signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU, signal.SIGTTOU


def raise_all(pid):
    for signum in IGNORED:
        os.kill(pid, signum)


def test_signals_that_end_or_stop_nobody(start, tmp_path):
    keeper = Keeper(tmp_path)
    raise_all(keeper.process.pid)
    keeper.connect().close()
    assert keeper.end(signal.SIGTERM) == 0
    d = start("--supervise")
    pid = child_of(d)
    raise_all(d.pid)
    raise_all(pid)
    with d.client() as c:
        assert c.call("status")["pid"] == pid
    assert d.stop() == 0


def test_files_of_who_has_started_it(tmp_path):
    """A detached daemon holds none of them: neither a script's pipe nor its lock."""
    (tmp_path / "caid.conf").touch()
    reader, writer = os.pipe()
    stop, end = os.pipe()
    command = [CAID, f"--socket={tmp_path}/caid.sock", f"--config={tmp_path}/caid.conf", f"--stop-fd={stop}"]
    subprocess.run(command, env=daemon_env(), pass_fds=[writer, stop], check=True, stderr=subprocess.DEVNULL)
    os.close(writer)
    assert os.read(reader, 1) == b""
    assert (tmp_path / "caid.sock").exists()
    os.close(end)
    wait_for(lambda: not (tmp_path / "caid.sock").exists(), "the stop, which one was kept for")
    os.close(stop)
    os.close(reader)


FOLDER = "mount -t tmpfs none /run && umask 077 && exec \"$@\""


@needs_root
def test_the_systems_folder_is_for_all(start, tmp_path):
    """Whatever the umask of who starts the daemon by hand."""
    d = start(prefix=own_mounts(FOLDER), socket=tmp_path / "none", wait=False)
    wait_for(lambda: "serving on /run/caid" in d.text(), "the start")
    within = pathlib.Path("/proc", str(d.pid), "root")
    assert (within / "run/caid").stat().st_mode & 0o777 == 0o755
