# SPDX-License-Identifier: Apache-2.0
"""Without --foreground: the shell gets its prompt back when the daemon serves, or the reason."""

import os
import pathlib
import signal
import subprocess

import pytest
import raw
from conftest import CAID, DEADLINE, daemon_env, wait_for


@pytest.fixture
def detached(tmp_path):
    """Starts a daemon in the background and stops it in the end."""
    pids = []

    def start(*args, path="caid.sock", **env):
        subprocess.run(
            [CAID, f"--socket={path}", *args],
            env=daemon_env(**env),
            cwd=tmp_path,
            check=True,
            timeout=DEADLINE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with raw.Client(tmp_path / path) as c:
            pids.append(c.call("status")["pid"])
        return pids[-1]

    yield start
    for pid in pids:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        wait_for(lambda pid=pid: has_ended(pid), "the stop")


def has_ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_serves_when_the_command_returns(detached, tmp_path):
    pid = detached()
    with raw.Client(tmp_path / "caid.sock") as c:
        assert c.call("ping") == {}
    assert os.getsid(pid) != pid  # a session of its own, of which it is not the leader
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    for fd in range(3):
        assert os.readlink(f"/proc/{pid}/fd/{fd}") == "/dev/null"


def test_stops_clean_although_its_path_was_relative(detached, tmp_path):
    pid = detached()
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: has_ended(pid), "the stop")
    assert list(tmp_path.iterdir()) == []


def test_survives_the_terminal(detached, tmp_path):
    pid = detached()
    os.kill(pid, signal.SIGHUP)
    with raw.Client(tmp_path / "caid.sock") as c:
        assert c.call("ping") == {}


def test_reads_settings_anew_although_their_path_was_relative(detached, tmp_path):
    path = tmp_path / "x.conf"
    path.write_text("")
    pid = detached("--config=x.conf")
    path.write_text('[pool "p"]\nmode = 0666\n')
    os.kill(pid, signal.SIGHUP)
    with raw.Client(tmp_path / "caid.sock") as c:
        wait_for(lambda: "p" in [p["name"] for p in c.call("pools")["pools"]], "the pool")


def test_failure_is_told_to_who_started_it(detached, tmp_path):
    detached()
    r = subprocess.run(
        [CAID, f"--socket={tmp_path}/caid.sock"],
        env=daemon_env(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert r.returncode == 1
    assert "another daemon listens here" in r.stderr
