# SPDX-License-Identifier: Apache-2.0
"""LocalDaemon."""

import errno
import gc
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile

import numpy
import pytest
from conftest import forked, wait_until

import caid
from caid._session import _daemon


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_starts_and_stops():
    d = caid.LocalDaemon()
    directory = pathlib.Path(d.address).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with d.connect() as c:
        assert c.status().pid == d.pid
        assert d.address in d.log()
    assert d.stop() == 0
    assert not is_alive(d.pid) and not directory.exists()
    assert d.stop() is None and d.log() == "" and repr(d).endswith(" stopped>")


def test_arrays_end_with_it():
    with caid.LocalDaemon() as d:
        c = d.connect()
        a = c.create("a", 4, "|u1")
    with pytest.raises(caid.DisconnectedError):
        c.ping()
    with pytest.raises(ConnectionError):
        c.open("a")
    a.close()
    c.close()


def test_two_are_two():
    with caid.LocalDaemon() as d, caid.LocalDaemon() as e, d.connect() as c, e.connect() as f:
        c.create("a", 4).close()
        assert d.address != e.address and f.list() == []


def test_garbage_stops_it():
    d = caid.LocalDaemon()
    pid, directory = d.pid, pathlib.Path(d.address).parent
    with pytest.warns(ResourceWarning, match="unstopped <caid.LocalDaemon"):
        del d
        gc.collect()
    assert not is_alive(pid) and not directory.exists()


def test_the_interpreters_exit_stops_it():
    code = "import caid; d = caid.LocalDaemon(); c = d.connect(); print(d.pid, d.address)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, address = out.stdout.split()
    assert not is_alive(int(pid)) and not pathlib.Path(address).parent.exists()


def test_a_killed_interpreter_takes_it_along():
    """Also while a child lives that has inherited all that can be inherited."""
    code = "import os, time, caid; d = caid.LocalDaemon(); os.write(1, b\"%d %d\\n\" % (d.pid, os.fork())); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as p:
        words = (p.stdout.readline() + p.stdout.readline()).split()
        daemon = int(words[0])
        (child,) = {int(word) for word in words} - {daemon, 0}
        p.kill()
        try:
            wait_until(lambda: not is_alive(daemon))
            assert is_alive(child)
        finally:
            for pid in {daemon, child}:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)


def test_a_forked_child_leaves_it_alone():
    with caid.LocalDaemon() as d:
        forked(work=d.stop)
        with d.connect() as c:
            c.ping()


def test_it_may_die_before_it_is_stopped():
    with caid.LocalDaemon() as d:
        os.kill(d.pid, 9)
        wait_until(lambda: d._process.poll() is not None)
        with pytest.raises(caid.NoDaemonError):
            d.connect()
    assert not pathlib.Path(d.address).parent.exists()


def test_supervised_it_outlives_its_death():
    """And so does a client; all end with stop()."""
    with caid.LocalDaemon(supervise=True) as d:
        pids = [d.pid]
        with d.connect() as c, c.create("n", 4, "<i4") as a:
            a.copy_from_host(numpy.full(4, 7, "<i4"))
            pids.append(c.status().pid)
            os.kill(pids[-1], signal.SIGKILL)
            wait_until(lambda: not is_alive(pids[-1]))
            assert c.status().keeper and c.status().restarts == 1
            with c.open("n") as b:
                assert b.copy_to_host().tolist() == [7] * 4
            pids.append(c.status().pid)
        assert len(set(pids)) == 3 and d.stop() == 0
    assert not any(map(is_alive, pids)) and not pathlib.Path(d.address).parent.exists()


def test_unsupervised_it_has_no_keeper():
    with caid.LocalDaemon() as d, d.connect() as c:
        assert not c.status().keeper


def test_a_supervised_one_that_does_not_start():
    with pytest.raises(caid.NoDaemonError, match="/nonexistent/libcuda.so"):
        caid.LocalDaemon(supervise=True, driver="/nonexistent/libcuda.so")


def test_the_software_drivers_settings(tmp_path):
    with caid.LocalDaemon(driver="soft", devices=2, memory="64M") as d:
        with d.connect() as c:
            assert [device.total for device in c.devices] == [64 << 20] * 2
            with pytest.raises(caid.OutOfMemoryError):
                c.empty(65 << 20, "|u1")
        code = """
import caid
with caid.connect() as c, c.empty(1 << 20, "|u1", device=1) as a:
    a.copy_from_host(bytes(1 << 20))
    assert a.device == 1 and c.memory_info(1).arrays == 1 and c.memory_info(0).arrays == 0
"""
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **d.env}, check=True)


def test_the_configuration_as_text_and_as_a_path(tmp_path):
    text = '[pool "weights"]\nmode = 0666\nquota = 8M\n'
    path = tmp_path / "caid.conf"
    path.write_text(text)
    for config in (text, path):
        with caid.LocalDaemon(config=config) as d, d.connect() as c:
            assert [(p.name, p.quota) for p in c.pools() if p.quota] == [("weights", 8 << 20)]


def test_the_systems_configuration_is_not_read():
    with caid.LocalDaemon() as d:
        assert "/etc" not in d.log()
        assert f"--config={pathlib.Path(d.address).parent}" in pathlib.Path(
            f"/proc/{d.pid}/cmdline"
        ).read_text()


def test_a_daemon_that_does_not_start(tmp_path):
    broken = tmp_path / "caid.conf"
    broken.write_text("[limits]\nleases = many\n")
    with pytest.raises(caid.NoDaemonError) as caught:
        caid.LocalDaemon(config=broken)
    assert "it ended with status" in str(caught.value) and "many" in str(caught.value)
    with pytest.raises(caid.NoDaemonError, match="no-such-driver"):
        caid.LocalDaemon(driver="/no-such-driver.so")


def test_a_daemon_that_never_gets_ready(tmp_path, monkeypatch):
    sleeper = tmp_path / "caid"
    sleeper.write_text("#!/bin/sh\necho waiting for a GPU\nexec sleep 1000\n")
    sleeper.chmod(0o755)
    monkeypatch.setenv("CAID_DAEMON", str(sleeper))
    with pytest.raises(caid.NoDaemonError, match="not ready within 0.5 s\nwaiting for a GPU"):
        caid.LocalDaemon(timeout=0.5)


def test_a_driver_that_is_not_there(tmp_path, monkeypatch):
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    for supervise in (False, True):
        with pytest.raises(caid.NoDaemonError, match="did not start: no driver answers: .*libcuda") as caught:
            caid.LocalDaemon(driver="cuda", supervise=supervise, timeout=600)
        assert "CAID_CUDA_DRIVER=soft" in str(caught.value)


def test_a_driver_that_takes_long():
    """After 5 seconds the daemon tells that it does not serve yet."""
    with caid.LocalDaemon(env={"CAID_SOFTCUDA_FAIL": "cuInit@1=delay:6000000"}) as d, d.connect() as c:
        assert "serving on" in d.log()
        c.ping()


def test_the_software_driver_is_told_of_when_nobody_asked_for_it(tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"")  # stands before a true one
    code = "import caid\nfor _ in range(2): caid.LocalDaemon(driver=%r).stop()"
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    for driver, n in (("auto", 1), ("soft", 0)):
        done = subprocess.run([sys.executable, "-c", code % driver], env=env, stderr=subprocess.PIPE, text=True, check=True)
        assert done.stderr.count("NO CUDA DEVICE ANSWERS: arrays live in host memory") == n
        assert done.stderr.count("the reason: ") == n


def starts_there_or_elsewhere(place, monkeypatch, there):
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with caid.LocalDaemon() as d:
        assert d.address.startswith(str(place)) == there
        code = "import caid; caid.connect().ping()"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **d.env}, check=True)
    assert not pathlib.Path(d.address).parent.exists() and not any(place.iterdir())
    monkeypatch.setattr(_daemon, "_SHORT_DIRECTORIES", ("/nonexistent",))
    if not there:
        with pytest.raises(caid.NoDaemonError, match=f"{place}/.* /nonexistent"):
            caid.LocalDaemon()
        assert not any(place.iterdir())


@pytest.mark.parametrize("length", [82, 83, 84, 200])
def test_a_temporary_directory_of_any_length(monkeypatch, length):
    """A program of this one's environment finds the daemon."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        place = pathlib.Path(short, "x" * (length - len(short) - 1))
        place.mkdir()
        starts_there_or_elsewhere(place, monkeypatch, length <= 83)


def test_where_the_program_is(tmp_path, monkeypatch):
    monkeypatch.setenv("CAID_DAEMON", "/bin/true")
    assert _daemon.find_daemon() == "/bin/true"
    monkeypatch.delenv("CAID_DAEMON")
    own = pathlib.Path(caid.__file__).parent / "bin" / "caid"
    assert _daemon.find_daemon() == str(own)
    monkeypatch.setattr(_daemon, "__file__", str(tmp_path / "_session" / "_daemon.py"))
    (tmp_path / "caid").write_text("#!/bin/sh\n")
    (tmp_path / "caid").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _daemon.find_daemon() == str(tmp_path / "caid")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError) as caught:
        _daemon.find_daemon()
    assert caught.value.errno == errno.ENOENT


def test_arrays_stay_readable_after_its_death():
    with caid.LocalDaemon() as d, d.connect() as c, c.create("kept", (4,), "<i4") as a:
        a.copy_from_host(numpy.arange(4, dtype="i4"))
        os.kill(d.pid, signal.SIGKILL)
        with pytest.raises(caid.DisconnectedError):
            while True:
                c.ping()
        assert a.copy_to_host().tolist() == [0, 1, 2, 3]
        assert numpy.asarray(a).tolist() == [0, 1, 2, 3]
