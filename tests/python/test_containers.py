# SPDX-License-Identifier: Apache-2.0
"""Clients and daemons in namespaces of their own, as containers have them."""

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import pytest
from conftest import PATIENCE_S, PREAMBLE, n_blocks, wait_until

import caid
from caid._session import _daemon

BUILD = pathlib.Path(os.environ["CAID_BUILD_DIR"])
CAIDCTL = BUILD / "bin" / "caidctl"
NAMESPACES = ("pid", "mount", "user", "net")
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--net")
ALICE, OVERFLOW = 60001, 65534
POOLS = f'[pool "public"]\nmode = 0666\n[pool "nobodys"]\nowner = {OVERFLOW}\ngroup = {OVERFLOW}\nmode = 0660\n'


def can_unshare():
    return os.geteuid() == 0 and subprocess.run([*CONTAINER, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="only root can make all kinds of namespaces here")


def unshared(kinds):
    """unshare(1) with namespaces of these kinds; it is killed with what it runs. Where it may, that has a /proc of its own."""
    if not kinds:
        return []
    command = ["unshare", *(f"--{kind}" for kind in kinds)]
    command += ["--fork", "--kill-child"] if "pid" in kinds else []
    command += ["--mount-proc"] if {"pid", "mount"} <= set(kinds) else []
    return command + (["--map-root-user"] if "user" in kinds else [])


class Inside:
    """A Python process under unshare(1), say."""

    def __init__(self, under, code, address, *args, user=None):
        who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = subprocess.Popen(
            [*under, sys.executable, "-c", PREAMBLE + code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "CAID_SOCKET": address}, **who,
        )  # fmt: skip

    def says(self):
        return self.process.stdout.readline().rstrip("\n")

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        for pid in children(self.process.pid) if self.process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)  # and not unshare(1) first
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def inside():
    with contextlib.ExitStack() as stack:

        def start(*args, **options):
            process = Inside(*args, **options)
            stack.callback(process.kill)
            return process

        yield start


# It opens an array and hands it off, on a stream; has memory that nobody else has; and stays.
WORKS = """
client = caid.Client()
given = client.open("given", mode="rw", pool=sys.argv[1])
own = client.empty(8 << 20, "|u1", exclusive=True, pool=sys.argv[1])
stream = client.stream()
for line in ("done", "again"):
    with given.write(stream) as v:
        (value,) = set(v.copy_to_host(stream=stream).tolist())
        v.copy_from_host(bytes([value + 1] * 100), stream=stream)
    stream.synchronize()
    step(line)
"""


def give(client, pool=None):
    a = client.create("given", 100, "|u1", exclusive=True, pool=pool)
    a.copy_from_host(bytes(100))
    return a


def value_of(client, pool=None):
    with client.open("given", pool=pool) as a, a.read() as v:
        (value,) = set(v.copy_to_host().tolist())
    return value


def test_a_client_in_each_combination_of_namespaces(daemon, client, inside):
    """Opens, hands off, is killed, and its memory comes back."""
    combinations = list(itertools.chain(*(itertools.combinations(NAMESPACES, n) for n in range(5))))
    assert len(combinations) == 16
    give(client).close()
    before = n_blocks(client)
    processes = {kinds: inside(unshared(kinds), WORKS, daemon.address, "uid:0") for kinds in combinations}
    assert {kinds: p.says() for kinds, p in processes.items()} == dict.fromkeys(combinations, "done")
    assert value_of(client) == 16
    pids = {h.pid for h in client.show("given").holders} - {os.getpid()}
    assert len(pids) == 16 and 0 not in pids
    for n, p in enumerate(processes.values(), 1):
        assert n_blocks(client) == before + 17 - n
        p.kill()
        wait_until(lambda n=n: n_blocks(client) == before + 16 - n)


# ---- a daemon in a container ----


class Container:
    """caid --supervise as PID 1; of the users outside, it knows root alone, as 0."""

    def __init__(self, folder, *args, under=CONTAINER, **env):
        folder.chmod(0o755)
        self.address, self.log = str(folder / "caid.sock"), folder / "log"
        (folder / "caid.conf").write_text(POOLS)
        command = [*under, _daemon.find_daemon(), f"--socket={self.address}", f"--config={folder}/caid.conf", *args]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env={**os.environ, **env})
        wait_until(self.listens, self.log.read_text)

    def listens(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            return sock.connect_ex(self.address) == 0

    def pids(self):
        """PID 1 and its children, as they are known outside."""
        first = children(self.process.pid)
        return first + (children(first[0]) if first else [])

    def stop(self):
        os.kill(self.pids()[0], signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def children(pid):
    with contextlib.suppress(FileNotFoundError):
        return list(map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


@pytest.fixture
def folder():
    """That every uid can reach, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="caid-") as name:
        yield pathlib.Path(name)


@pytest.fixture(params=["--supervise", "--foreground"])
def container(folder, request):
    with Container(folder, request.param) as c:
        yield c
        assert c.stop() == 0, c.log.read_text()
        assert not os.path.exists(c.address)


@pytest.mark.parametrize("kinds", [(), ("pid", "mount"), NAMESPACES], ids=str)
def test_a_client_of_a_daemon_in_a_container(container, inside, kinds):
    """Its pid is not known there, but its end is."""
    with caid.Client(container.address) as c:
        give(c, "public").close()
        before = n_blocks(c)
        p = inside(unshared(kinds), WORKS, container.address, "public")
        assert p.says() == "done"
        assert value_of(c, "public") == 1
        assert {h.pid for h in c.show("given", pool="public").holders} == {0}
        shown = subprocess.run([CAIDCTL, f"--socket={container.address}", "show", "given", "--pool=public"],
                               stdout=subprocess.PIPE, text=True, check=True).stdout
        assert "a process in another pid namespace of " in shown
        p.kill()
        wait_until(lambda: n_blocks(c) == before)


def test_a_restart_in_a_container(folder, inside):
    """The pidfd at the keeper is the process, also of one that has no pid there; and of one that dies meanwhile."""
    with Container(folder, "--supervise") as container, caid.Client(container.address) as c:
        give(c, "public").close()
        before = n_blocks(c)
        lives, dies = (inside(unshared(NAMESPACES), WORKS, container.address, "public") for _ in range(2))
        assert [lives.says(), dies.says()] == ["done", "done"]
        daemon = container.pids()[1]
        os.kill(container.pids()[0], signal.SIGSTOP)  # it starts no other meanwhile
        os.kill(daemon, signal.SIGKILL)
        dies.kill()
        os.kill(container.pids()[0], signal.SIGCONT)
        wait_until(lambda: n_blocks(c) == before + 1)
        lives.go()
        assert lives.says() == "again"
        assert value_of(c, "public") == 3
        lives.kill()
        wait_until(lambda: n_blocks(c) == before)
        assert container.stop() == 0


def test_pid_1_reaps_whoever_has_lost_their_parent(folder):
    with Container(folder, "--supervise") as container:
        first, daemon = container.pids()[:2]
        enter = ["nsenter", f"--target={first}", "--user", "--pid", "--mount"]
        subprocess.run([*enter, "sh", "-c", "sleep 0.1 & sleep 0.2 & exit"], check=True)
        wait_until(lambda: children(first) == [daemon])
        os.kill(daemon, signal.SIGKILL)
        with caid.Client(container.address) as c:
            assert c.status().pid != 1
        assert container.stop() == 0


# ---- users that are not mapped ----

ASKS = """
client = caid.Client()
for pool in (None, "uid:65534", "nobodys", "public"):
    try:
        with client.empty(4, "<i4", pool=pool) as a:
            a.publish("x")
            step(f"{pool}: {a.pool}")
    except caid.Error as e:
        step(f"{pool}: {type(e).__name__}: {e}")
step([p.name for p in client.pools()])
"""


def test_a_user_who_is_not_mapped_has_no_pool(folder, inside):
    """Nor has the one who owns a pool under the number that stands for all of those."""
    with Container(folder, "--supervise") as container:
        check_nobody(inside([], ASKS, container.address, user=ALICE))
        with caid.Client(container.address) as c:
            (x,) = c.list(all=True)
            assert (x.pool, x.name, x.uid) == ("public", "x", OVERFLOW)
        assert container.stop() == 0


def check_nobody(process):
    said = []
    for _ in range(5):
        said.append(process.says())
        process.go()
    assert said[0].startswith("None: AccessError: uid 65534 stands for all users that are not mapped"), said
    assert [line.split(": ")[1] for line in said[1:3]] == ["NotFoundError"] * 2, said
    assert said[3:] == ["public: public", "['public']"]


def test_the_hosts_nobody_has_no_pool_either(folder, inside):
    """And root is none of those who could do anything in it."""
    with Container(folder, "--foreground", under=()) as container:
        check_nobody(inside([], ASKS, container.address, user=OVERFLOW))
        with caid.Client(container.address) as c, pytest.raises(caid.NotFoundError):
            c.empty(4, "<i4", pool=f"uid:{OVERFLOW}")
        container.process.send_signal(signal.SIGTERM)
        assert container.process.wait(PATIENCE_S) == 0


# ---- before Linux 6.5 ----


def test_a_kernel_that_has_no_pidfd_of_a_peer(folder, inside):
    """Whoever has a pid here is served, in whatever namespaces; others are told why not."""
    before_it = os.environ.get("LD_PRELOAD")  # a sanitizer's runtime has to come first
    old = {"LD_PRELOAD": ":".join(filter(None, [before_it, str(BUILD / "tests" / "old-kernel.so")]))}
    with Container(folder, "--supervise", **old) as container:
        with pytest.raises(caid.UnsupportedError, match="another pid namespace.* Linux 6.5 or later .caid.8., CONTAINERS"):
            caid.Client(container.address)
        enter = ["nsenter", f"--target={container.pids()[0]}", "--user", "--pid", "--mount"]
        ping = [CAIDCTL, f"--socket={container.address}", "status"]
        subprocess.run([*enter, *ping], check=True, stdout=subprocess.DEVNULL)
        wait_until(lambda: "is refused: it is in another pid namespace" in container.log.read_text())
        assert container.stop() == 0
    with Container(folder, "--foreground", under=(), **old) as host, caid.Client(host.address) as c:
        give(c).close()
        before = n_blocks(c)
        p = inside(unshared(NAMESPACES), WORKS, host.address, "uid:0")
        assert p.says() == "done"
        p.kill()
        wait_until(lambda: n_blocks(c) == before)
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(PATIENCE_S) == 0


# ---- a keeper that takes no more ----


def test_a_process_that_was_not_kept_and_has_no_pid(folder, inside):
    """Nothing tells of its exit: what it had stays. The next daemon starts all the same."""
    few = ("prlimit", "--nofile=340:340", *CONTAINER)
    with Container(folder, "--supervise", under=few) as container, caid.Client(container.address) as c:
        give(c, "public").close()
        held = []
        while "is not kept" not in container.log.read_text():
            held.append(c.empty(8 << 20, "|u1", exclusive=True, pool="public"))
        held.pop().close()
        p = inside([], "a = caid.Client().open('given', pool='public')\nstep(a.name)", container.address)
        assert p.says() == "given"
        os.kill(container.pids()[1], signal.SIGKILL)
        assert c.status().restarts == 1
        assert "cannot be found again" in container.log.read_text()
        for a in held:
            a.close()
        p.kill()
        assert value_of(c, "public") == 0
        assert container.stop() == 0
