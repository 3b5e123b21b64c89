# SPDX-License-Identifier: Apache-2.0
"""What the service manager is told, and when."""

import os
import pathlib
import re
import signal
import socket
import time

import pytest
import raw
from conftest import DEADLINE, wait_for

NOT_READY = 22  # proto/errors.def


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(address)
        self.sock.settimeout(DEADLINE)

    def receive(self):
        return self.sock.recv(4096).decode().split("\n")

    def receive_until(self, line):
        """All lines up to the packet with this one."""
        lines = []
        while line not in lines:
            lines += self.receive()
        return lines


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    name = str(tmp_path / "notify") if request.param == "path" else f"\0caid-test-{os.getpid()}"
    manager = Manager(name)
    manager.name = name.replace("\0", "@")
    yield manager
    manager.sock.close()


def test_ready_and_stopping(start, manager):
    d = start(wait=False, NOTIFY_SOCKET=manager.name)
    assert "READY=1" in manager.receive()
    with d.client() as c:  # ready means: this works at the first try
        assert c.call("ping") == {}
    assert d.stop() == 0
    assert "STOPPING=1" in manager.receive_until("STOPPING=1")


def reload_times(manager, how_it_ends):
    reloading, began = manager.receive()
    assert (reloading, began[:15]) == ("RELOADING=1", "MONOTONIC_USEC=")
    assert manager.receive() == ["READY=1", how_it_ends]
    return int(began[15:]) * 1000


def test_reload(start, manager, tmp_path):
    d = start(wait=False, NOTIFY_SOCKET=manager.name)
    manager.receive_until("READY=1")
    before = time.monotonic_ns()
    d.process.send_signal(signal.SIGHUP)
    assert before // 1000 * 1000 <= reload_times(manager, "STATUS=Serving") <= time.monotonic_ns()
    (tmp_path / "caid.conf").write_text("[limits]\njobs = 0\n")
    d.process.send_signal(signal.SIGHUP)
    reload_times(manager, "STATUS=Serving; the last reload has failed")


def test_reload_before_the_driver_answers(start, manager, tmp_path):
    """It is asked again for as long as that takes: what is served then is what was asked for last."""
    d = start("--driver=soft", wait=False, NOTIFY_SOCKET=manager.name, CAID_SOFTCUDA_FAIL="cuInit@1=delay:500000")
    wait_for(lambda: d.socket.exists(), "the socket")
    (tmp_path / "caid.conf").write_text('[pool "p"]\nmode = 0666\n')
    d.process.send_signal(signal.SIGHUP)
    assert "READY=1" in manager.receive()
    reload_times(manager, "STATUS=Serving")
    with d.client() as c:
        assert "p" in [p["name"] for p in c.call("pools")["pools"]]


def test_not_ready_before_the_driver_answers(start, manager):
    """Under a service manager --driver=cuda waits for the driver, and can be stopped meanwhile."""
    d = start("--driver=cuda", wait=False, NOTIFY_SOCKET=manager.name, CUDA_VISIBLE_DEVICES="")
    told = manager.receive_until("READY=1")
    assert len(told) > 2 and told[-2] == "READY=1"  # the others may be sure of it, and it tells why it does not serve
    why = r"STATUS=Not serving yet: no driver answers: .*libcuda.*\(without a GPU: CAID_CUDA_DRIVER=soft"
    assert all(re.match(why, line) for line in told if line != "READY=1"), told
    for _ in range(2):
        with pytest.raises(raw.Refused, match="not ready, try again: .*libcuda.*CAID_CUDA_DRIVER=soft") as refused:
            d.client()
        assert refused.value.code == NOT_READY
    d.process.send_signal(signal.SIGHUP)  # waits for the driver
    with d.client(hello=False) as silent:  # is no matter to the next one
        with pytest.raises(raw.Refused):
            d.client()
        assert d.stop() == 0
        assert silent.is_closed()
    assert not d.socket.exists()


def test_a_driver_that_hangs(start, manager):
    """Clients are taken up all the same, and hear of it; those that come later are served. The manager's watchdog,
    which begins with READY=1, is fed meanwhile."""
    d = start("--driver=soft", wait=False, NOTIFY_SOCKET=manager.name, WATCHDOG_USEC=20000,
              CAID_SOFTCUDA_FAIL="cuInit@1=delay:8000000")
    assert manager.receive() == ["READY=1", "STATUS=Not serving yet: its driver has not answered yet"]
    assert manager.receive() == ["WATCHDOG=1"]
    wait_for(lambda: d.socket.exists() and can_connect(d), "being heard")
    with pytest.raises(raw.Refused, match="its driver has not answered yet") as refused:
        d.client()
    assert refused.value.code == NOT_READY
    assert "STATUS=Serving" in manager.receive_until("STATUS=Serving")
    assert is_served(d)
    assert d.stop() == 0


def test_a_driver_that_hangs_does_not_hold_up_a_stop(start):
    d = start("--driver=soft", wait=False, CAID_SOFTCUDA_FAIL="cuInit@1=delay:60000000")
    wait_for(lambda: d.socket.exists(), "the socket")
    assert d.stop() == 0
    assert not d.socket.exists()


def can_connect(d):
    try:
        d.client(hello=False).close()
    except ConnectionRefusedError:
        return False
    return True


def is_served(d):
    try:
        d.client().close()
    except (raw.Refused, raw.Closed):
        return False
    return True


def test_without_a_manager_a_missing_driver_is_the_end(start):
    d = start("--driver=cuda", wait=False, CUDA_VISIBLE_DEVICES="")
    assert d.process.wait(DEADLINE) == 1
    assert 'driver "cuda": ' in d.text()
    assert not d.socket.exists()


def test_a_stop_by_fd_while_the_driver_does_not_answer(start, manager):
    reader, writer = os.pipe()
    d = start("--driver=cuda", f"--stop-fd={reader}", wait=False, pass_fds=[reader],
              NOTIFY_SOCKET=manager.name, CUDA_VISIBLE_DEVICES="")
    os.close(reader)
    manager.receive()
    os.close(writer)
    assert d.process.wait(DEADLINE) == 0
    assert not d.socket.exists()


def test_watchdog(start, manager):
    d = start(wait=False, NOTIFY_SOCKET=manager.name, WATCHDOG_USEC=20000)
    manager.receive_until("READY=1")
    for _ in range(3):
        assert manager.receive() == ["WATCHDOG=1"]
    assert d.stop() == 0


def test_watchdog_of_another_process(start, manager):
    d = start(wait=False, NOTIFY_SOCKET=manager.name, WATCHDOG_USEC=1000, WATCHDOG_PID=1)
    manager.receive_until("READY=1")
    assert d.stop() == 0
    assert "STOPPING=1" in manager.receive()


def test_manager_that_does_not_read(start, manager):
    """Its queue is full; the daemon serves all the same, and tells it when there is room."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    n = 0
    with sender, pytest.raises(BlockingIOError):
        while True:
            sender.sendto(b"X=1", manager.name.replace("@", "\0"))
            n += 1
    d = start(NOTIFY_SOCKET=manager.name)
    d.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "read anew" in d.text(), "the reload")
    with d.client() as c:
        assert c.call("ping") == {}
    for _ in range(n):
        assert manager.receive() == ["X=1"]
    assert "READY=1" in manager.receive()
    reload_times(manager, "STATUS=Serving")  # in datagrams of their own


@pytest.mark.parametrize("address", ["/nonexistent/notify", "relative", "/" + "x" * 200])
def test_manager_that_cannot_be_reached(start, address):
    d = start(NOTIFY_SOCKET=address)
    assert f"NOTIFY_SOCKET={address}" in d.text()


def test_inherits_nothing_to_others(start, manager):
    """Every fd is closed on exec."""
    d = start(NOTIFY_SOCKET=manager.name)
    with d.client():
        for entry in pathlib.Path(f"/proc/{d.pid}/fdinfo").iterdir():
            if int(entry.name) > 2:
                flags = next(v for k, v in (s.split(":") for s in entry.read_text().splitlines()) if k == "flags")
                assert int(flags, 8) & os.O_CLOEXEC, os.readlink(f"/proc/{d.pid}/fd/{entry.name}")
