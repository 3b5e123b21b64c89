# SPDX-License-Identifier: Apache-2.0
"""caid --supervise: a daemon that dies is followed by another, on the same socket."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest
import raw
from conftest import CAID, DEADLINE, become, fork, is_sanitized, needs_root, public_daemon, wait_for


# Runs its argument, not caid.
INSTEAD = ("sh", "-c", 'shift; exec "$0" "$@"')


def child_of(d, but=None):
    """The daemon that serves; another than that one."""

    def find():
        pids = pathlib.Path(f"/proc/{d.pid}/task/{d.pid}/children").read_text().split()
        return int(pids[0]) if pids and int(pids[0]) != but else None

    return wait_for(find, "the daemon")


def is_gone(pid):
    return not os.path.exists(f"/proc/{pid}/exe")  # also of one that nobody has waited for yet


def open_files(d):
    """But for processes of clients: who was hung up may come back."""
    folder = pathlib.Path(f"/proc/{d.pid}/fd")
    return [name for name in map(os.path.realpath, folder.iterdir()) if "pidfd" not in name]


def serves(d):
    with d.client() as c:
        return c.call("ping") == {}


def test_a_killed_daemon_is_back(start):
    """And nobody is refused meanwhile: a client waits, or is hung up with the daemon that died."""
    d = start("--supervise")
    refused, over = [], threading.Event()

    def connect():
        while not over.is_set():
            try:
                d.client().close()
            except (raw.Closed, BrokenPipeError):
                pass
            except OSError as e:
                refused.append(e)

    wait_for(lambda: any("caid-journal" in name for name in open_files(d)), "all that is kept")
    n_files = len(open_files(d))
    thread = threading.Thread(target=connect)
    thread.start()
    for _ in range(3):
        pid = child_of(d)
        os.kill(pid, signal.SIGKILL)
        assert child_of(d, but=pid)
        assert serves(d)
    over.set()
    thread.join()
    wait_for(lambda: len(open_files(d)) == n_files, "the drop of what daemons have left")
    assert refused == []
    assert "the daemon was killed: Killed: another is started in 100 ms" in d.text()
    assert d.stop() == 0
    assert not d.socket.exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_both(start, signum):
    d = start("--supervise")
    pid = child_of(d)
    assert d.stop(signum) == 0
    assert is_gone(pid)
    assert not d.socket.exists()


def test_its_own_memory_is_of_large_pages(start):
    """As the unit has it."""
    pid = child_of(start("--supervise"))
    wait_for(lambda: b"\0GLIBC_TUNABLES=glibc.malloc.hugetlb=1\0" in pathlib.Path(f"/proc/{pid}/environ").read_bytes(), pid)


def test_caidctl_tells(start):
    d = start("--supervise")
    os.kill(child_of(d), signal.SIGKILL)
    done = subprocess.run([CAID.with_name("caidctl"), f"--socket={d.socket}"], stdout=subprocess.PIPE, text=True)
    assert re.search(r"^keeper +\d+ fds, a journal of \d[^,]+, 1 restarts$", done.stdout, re.M)


def test_caidctl_lists_what_is_lost(start):
    d = start("--supervise", config="[user-pools]\nlegacy = yes\n")
    with d.client() as c:
        c.call("create", name="gone", typestr="<f4", shape=[4], memory="legacy")
    os.kill(child_of(d), signal.SIGKILL)
    done = subprocess.run(
        [CAID.with_name("caidctl"), f"--socket={d.socket}", "list", "--lost"], stdout=subprocess.PIPE, text=True
    )
    assert re.search(r"^uid:\d+ +gone +1 +\S+ +legacy memory ends with the daemon$", done.stdout, re.M)


def connect(d, uid, **token):
    """A client of this process that comes back, as that uid's."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        c = d.client(hello=False)
    finally:
        os.seteuid(0)
        os.setegid(0)
    c.hello = c.call("hello", version_min=1, version_max=1, features=["resume"], **token)
    assert c.hello.get("resumed", False) == bool(token)
    return c


def publish_set(c):
    make = {"typestr": "|u1", "shape": [0]}
    whole, member = (c.call("create", **{**make, "shape": [n]})["arrays"][0]["lease"] for n in (0, 1))
    c.call("stage", lease=whole, keys=["key"], leases=[member])
    c.call("publish", lease=whole, name="set/")
    c.notify("close", leases=[whole, member])


@needs_root
def test_who_is_back_and_never_says_that_this_is_all_keeps_nothing_of_others():
    with public_daemon("", "--supervise") as d, contextlib.ExitStack() as open_:
        one, other = (open_.enter_context(connect(d, uid)) for uid in (64001, 64002))
        other.call("create", name="x", typestr="|u1", shape=[1])
        publish_set(one)
        os.kill(child_of(d), signal.SIGKILL)
        other = open_.enter_context(connect(d, 64002, token=other.hello["token"]))
        one = open_.enter_context(connect(d, 64001, token=one.hello["token"]))
        one.call("resume", done=True)
        publish_set(one)
        wait_for(lambda: one.call("status")["arrays"] == 3, "the end of the set that was replaced")
        other.call("resume", done=True)


def test_a_stop_while_no_daemon_runs(start):
    d = start("--supervise")
    for n in range(1, 5):  # each is waited for twice as long
        os.kill(child_of(d), signal.SIGKILL)
        wait_for(lambda n=n: d.text().count("was killed") == n, "the end")
    assert "another is started in 800 ms" in d.text()
    d.stop()
    assert not d.socket.exists()


def test_the_end_of_the_parent_ends_both(start):
    reader, writer = os.pipe()
    d = start("--supervise", f"--stop-fd={reader}", pass_fds=[reader])
    os.close(reader)
    pid = child_of(d)
    os.close(writer)
    assert d.process.wait(DEADLINE) == 0
    assert is_gone(pid)


def test_a_supervisor_that_is_killed_takes_the_daemon_along(start):
    d = start("--supervise")
    pid = child_of(d)
    d.kill()
    wait_for(lambda: is_gone(pid), "the daemon's end")


def test_a_daemon_that_is_told_to_stop_is_the_end(start):
    d = start("--supervise")
    os.kill(child_of(d), signal.SIGTERM)
    assert d.process.wait(DEADLINE) == 0


def test_a_first_daemon_that_fails(start):
    d = start("--supervise", "--driver=/nonexistent/libcuda.so", wait=False)
    assert d.process.wait(DEADLINE) == 1
    assert "/nonexistent/libcuda.so" in d.text()
    assert not d.socket.exists()


def test_reload(start, tmp_path):
    d = start("--supervise")
    pid = child_of(d)
    (tmp_path / "caid.conf").write_text('[pool "p"]\nmode = 0666\n')
    d.process.send_signal(signal.SIGHUP)
    with d.client() as c:
        wait_for(lambda: "p" in [p["name"] for p in c.call("pools")["pools"]], "the new pool")
    assert child_of(d) == pid


def test_another_binary(start, tmp_path):
    """That which lies at its path by then; the daemon before it ends well."""
    program = tmp_path / "caid"
    library = next(CAID.parent.parent.rglob("libcaid-softcuda.so"))
    shutil.copy(CAID, program)
    d = start("--supervise", "--log-level=info", prefix=[*INSTEAD, program], CAID_CUDA_DRIVER=library)
    pid = child_of(d)
    shutil.copy(CAID, tmp_path / "new")
    os.replace(tmp_path / "new", program)
    d.process.send_signal(signal.SIGUSR2)
    another = child_of(d, but=pid)
    assert serves(d)
    assert os.stat(f"/proc/{another}/exe").st_ino == program.stat().st_ino
    assert "has ended with status 0: another takes its place" in d.text()


def test_a_keeper_of_its_own(start):
    d = start("--supervise", "--keeper=/run/x", wait=False)
    assert d.process.wait(DEADLINE) == 1
    assert "--supervise is its own keeper" in d.text()


# --- memory -------------------------------------------------------------------------------------

V1, V2 = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")


@pytest.fixture
def cgroup():
    """A folder whose processes may have 64 MiB, and a function: how many were killed for more."""
    over, limit, events = (V1, "memory.limit_in_bytes", "memory.oom_control")
    if not (V1 / limit).exists():
        over, limit, events = (V2, "memory.max", "memory.events")
    folder = over / f"caid-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(64 << 20))
    except OSError as e:
        pytest.skip(f"no memory cgroup of one's own here: {e}")
    yield folder, lambda: int(re.search(r"oom_kill (\d+)", (folder / events).read_text())[1])
    with contextlib.suppress(OSError):
        folder.rmdir()


def hoard(d, uid, is_full):
    """All that one uid may have, most of it metadata; then publishes on, also after a restart."""
    become(uid, [])
    with contextlib.suppress(raw.Refused), d.client() as c:
        for n in range(1 << 20):
            c.call("create", typestr="|u1", shape=[0], name=f"h{n}", metadata="m" * 4000)
    is_full.set()
    while True:
        with contextlib.suppress(raw.Closed, OSError), d.client() as c:
            [array] = c.call("open", names=["h0"], mode="rw")["arrays"]
            while True:
                c.call("publish", lease=array["lease"], name="h0")


@needs_root
@pytest.mark.skipif(is_sanitized(), reason="a sanitizer keeps what is freed, beyond the memory of the service")
def test_hoards_and_kills_in_the_memory_of_the_service(cgroup):
    """A sixty-fourth of what it has (MemoryMax=), as of its limits: three uids, each with all that it may have."""
    folder, oom_kills = cgroup
    enter = ("sh", "-c", f'echo $$ >{folder}/cgroup.procs; exec "$0" "$@"')
    limits = "[limits]\nhost_bytes = 16M\ntotal_host_bytes = 40M\n"
    with public_daemon(limits, "--supervise", prefix=enter, level="") as d:
        hoards = []
        for uid in (61001, 61002, 61003):
            is_full = fork.Event()
            hoards.append(fork.Process(target=hoard, args=(d, uid, is_full), daemon=True))
            hoards[-1].start()
            assert is_full.wait(DEADLINE)
        n_arrays = d.status()["arrays"]
        assert n_arrays > 2000
        for _ in range(5):
            time.sleep(1)
            child = child_of(d)
            os.kill(child, signal.SIGKILL)
            child_of(d, but=child)
            wait_for(lambda: serves(d), "the next daemon")
        assert d.status()["arrays"] == n_arrays
        for process in hoards:
            process.kill()
            process.join()
        assert oom_kills() == 0
