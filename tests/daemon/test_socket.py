# SPDX-License-Identifier: Apache-2.0
"""The life of the socket: made, guarded, taken over, handed in, given back."""

import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys

import pytest
import raw
from conftest import CAID, DEADLINE, daemon_env, run_caid


def files(folder):
    return {p.name for p in folder.iterdir()} - {"log", "caid.conf"}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_clean_stop(start, tmp_path, signum):
    d = start()
    assert files(tmp_path) == {"caid.sock", "caid.sock.lock"}
    with d.client() as c:
        assert d.stop(signum) == 0
        assert c.is_closed()
    assert files(tmp_path) == set()


@pytest.mark.parametrize("how", ["readable", "hung up"])
def test_stop_by_fd(start, tmp_path, how):
    reader, writer = os.pipe()
    d = start(f"--stop-fd={reader}", pass_fds=[reader])
    os.close(reader)
    with d.client() as c:
        assert c.call("ping") == {}
        os.write(writer, b"x" * (how == "readable"))
        if how == "hung up":
            os.close(writer)
        assert d.process.wait(DEADLINE) == 0
        assert c.is_closed()
    if how == "readable":
        os.close(writer)
    assert files(tmp_path) == set()


@pytest.mark.parametrize("fd", ["2", "999", "x", ""])
def test_stop_fd_that_is_none(tmp_path, fd):
    r = run_caid("--foreground", f"--socket={tmp_path}/x", f"--stop-fd={fd}")
    assert r.returncode == 1
    assert f"--stop-fd={fd}: not an open file descriptor" in r.stderr


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_mode(start, mode):
    d = start(config=f"[daemon]\nsocket_mode = {mode:04o}\n")
    assert stat.S_IMODE(d.socket.stat().st_mode) == mode


def test_refuses_to_start_twice(daemon):
    r = run_caid("--foreground", f"--socket={daemon.socket}")
    assert r.returncode == 1
    assert "another daemon listens here" in r.stderr
    with daemon.client() as c:
        assert c.call("ping") == {}


def test_takes_over_from_a_killed_daemon(start, tmp_path):
    start().kill()
    assert files(tmp_path) == {"caid.sock", "caid.sock.lock"}
    # The socket is there and refuses; wait=True retries until the new daemon answers.
    with start().client() as c:
        assert c.call("ping") == {}


def test_takes_over_after_a_clean_stop(start):
    assert start().stop() == 0
    with start().client() as c:
        assert c.call("ping") == {}


@pytest.mark.parametrize("make", [pathlib.Path.mkdir, pathlib.Path.touch, lambda p: p.symlink_to("/etc/passwd")])
def test_what_is_no_socket_is_not_touched(tmp_path, make):
    path = tmp_path / "x"
    make(path)
    before = path.lstat().st_ino
    r = run_caid("--foreground", f"--socket={path}")
    assert r.returncode == 1
    assert "no socket" in r.stderr
    assert path.lstat().st_ino == before
    assert files(tmp_path) == {"x"}


def test_lock_file_that_is_a_link(tmp_path):
    (tmp_path / "x.lock").symlink_to(tmp_path / "victim")
    r = run_caid("--foreground", f"--socket={tmp_path}/x")
    assert r.returncode == 1
    assert files(tmp_path) == {"x.lock"}


def test_lock_file_that_is_a_pipe(tmp_path):
    """To open it would wait for somebody who writes."""
    os.mkfifo(tmp_path / "x.lock")
    r = run_caid("--foreground", f"--socket={tmp_path}/x")
    assert r.returncode == 1
    assert "x.lock: exists and is no file" in r.stderr
    assert files(tmp_path) == {"x.lock"}


def test_hangup_of_the_terminal(start, tmp_path):
    """Is no end, also in the foreground, which would leave a socket that nobody serves; and no harm."""
    d = start()
    d.process.send_signal(signal.SIGHUP)
    with d.client() as c:
        assert c.call("ping") == {}
    assert d.stop() == 0
    assert files(tmp_path) == set()


def test_path_that_is_too_long(tmp_path):
    r = run_caid("--foreground", f"--socket={tmp_path}/{'x' * 108}")
    assert r.returncode == 1
    assert "107 bytes" in r.stderr


def test_folder_that_is_missing(tmp_path):
    r = run_caid("--foreground", f"--socket={tmp_path}/none/caid.sock")
    assert r.returncode == 1
    assert "No such file" in r.stderr


def test_bad_driver_leaves_nothing_behind(tmp_path):
    r = run_caid("--foreground", f"--socket={tmp_path}/s", "--driver=/nonexistent/libcuda.so")
    assert r.returncode == 1
    assert "/nonexistent/libcuda.so" in r.stderr
    assert files(tmp_path) == set()


@pytest.mark.parametrize("which", ["option", "env", "config", "runtime"])
def test_where_it_listens(start, tmp_path, which):
    """Option, environment, settings, the runtime folder: each when those before it say nothing."""
    if which == "runtime" and os.geteuid() == 0:
        pytest.skip("root listens in /run/caid")
    places = {name: tmp_path / name for name in ("option", "env", "config", "runtime")}
    places["runtime"] /= "caid.sock"
    places["runtime"].parent.mkdir()
    given = list(places)[list(places).index(which) :]
    config = f"[daemon]\nsocket = {places['config']}\n" if "config" in given else ""
    args = [f"--socket={places['option']}"] if "option" in given else []
    env = {"CAID_SOCKET": places["env"]} if "env" in given else {}
    d = start(*args, socket=places[which], config=config, XDG_RUNTIME_DIR=tmp_path / "runtime", **env)
    assert f"serving on {places[which]}\n" in d.text()


def test_a_user_who_has_no_runtime_folder(tmp_path):
    if os.geteuid() == 0 and subprocess.run(["setpriv", "--reuid=65534", "true"], check=False).returncode:
        pytest.skip("another user's programs cannot be run here")
    who = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    r = subprocess.run([*who, CAID, "--foreground", "--config=/dev/null"], env=daemon_env(), capture_output=True, text=True,
                       check=False)
    assert r.returncode == 1
    assert "XDG_RUNTIME_DIR is not set: --socket=PATH" in r.stderr and "LocalDaemon" in r.stderr


# What a service manager does: the socket becomes fd 3 of a process that is told its own pid.
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ["LISTEN_PID"] = str(os.getpid() + int(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.fixture
def hand_over(start, tmp_path):
    socks = []

    def start_with(sock, pid_offset=0, n=1, args=(), **kwargs):
        socks.append(sock)
        prefix = [sys.executable, "-c", HAND_OVER, str(sock.fileno()), str(pid_offset)]
        return start(*args, prefix=prefix, pass_fds=[sock.fileno()], LISTEN_FDS=n,
                     LISTEN_FDNAMES="caid.socket", socket=tmp_path / "handed", **kwargs)

    yield start_with
    for sock in socks:
        sock.close()


def listening(path, kind=socket.SOCK_SEQPACKET):
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    sock.listen(16)
    return sock


def test_activation(hand_over, tmp_path):
    sock = listening(tmp_path / "handed")
    sock.setblocking(True)
    with_early = raw.Client(tmp_path / "handed", hello=False)  # who connects before the daemon runs
    d = hand_over(sock)
    with with_early as c:
        c.call("hello", version_min=1, version_max=1)
    environ = pathlib.Path(f"/proc/{d.pid}/environ").read_text()
    assert "LISTEN_FDS" in environ  # what exec gave, not what getenv sees
    assert d.stop() == 0
    assert files(tmp_path) == {"handed"}  # the socket belongs to the manager


def test_activation_that_is_meant_for_another_process(hand_over, tmp_path):
    d = hand_over(listening(tmp_path / "other"), pid_offset=1, args=[f"--socket={tmp_path}/handed"])
    assert d.stop() == 0


def refused(hand_over, sock, *args, **kwargs):
    d = hand_over(sock, args=args, wait=False, **kwargs)
    assert d.process.wait(DEADLINE) == 1
    return d.text()


def test_activation_with_what_will_not_do(hand_over, tmp_path):
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bound.bind(str(tmp_path / "bound"))
    inet = socket.socket()
    inet.bind(("127.0.0.1", 0))
    for sock in (listening(tmp_path / "stream", socket.SOCK_STREAM), bound, inet):
        assert "ListenSequentialPacket" in refused(hand_over, sock)


def test_activation_with_two_sockets(hand_over, tmp_path):
    assert "one was expected" in refused(hand_over, listening(tmp_path / "handed"), n=2)


def test_activation_and_an_option(hand_over, tmp_path):
    text = refused(hand_over, listening(tmp_path / "handed"), f"--socket={tmp_path}/own")
    assert "passes a socket already" in text
    assert files(tmp_path) == {"handed"}
