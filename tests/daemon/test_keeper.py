# SPDX-License-Identifier: Apache-2.0
"""The keeper: what it was given is there, under its number, whoever dies meanwhile."""

import contextlib
import errno
import fcntl
import os
import pathlib
import resource
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid

import hypothesis
import hypothesis.strategies as st
import keepers
import pytest
from conftest import DEADLINE, become, daemon_env, fork, is_sanitized, needs_root, wait_for
from keepers import DROP, END, KILL, MAP, MAX, PUT, TAKE, Keeper, packet
from raw import Refused
from slots import give_up, own_page, pages

FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, which Python does not name


@pytest.fixture
def start_keeper(tmp_path):
    started = []

    def start_one(**kwargs):
        started.append(Keeper(tmp_path, **kwargs))
        return started[-1]

    yield start_one
    for k in started:
        if k.process.poll() is None:
            assert k.end(signal.SIGTERM) == 0, k.text()


@pytest.fixture
def keeper(start_keeper):
    return start_keeper()


class Daemon:
    """What a daemon does: it has every file itself, and knows what it has given."""

    def __init__(self, keeper):
        self.keeper, self.files = keeper, {}
        self.link = keeper.connect()

    def put(self, numbers):
        """The files under these numbers are new ones."""
        self.close_files(numbers)
        self.files.update((number, os.memfd_create("kept")) for number in numbers)
        self.link.put({number: self.files[number] for number in numbers})

    def drop(self, numbers):
        self.close_files(numbers)
        self.link.drop(numbers)

    def close_files(self, numbers):
        for number in numbers & self.files.keys():
            os.close(self.files.pop(number))

    def another(self):
        self.link.close()
        self.link = self.keeper.connect()

    def die_having_said(self, puts, drops):
        """The process that has the connection is killed by itself, right after sendmsg(2)."""
        self.another()
        with self.keeper.paused():
            self.close_files(puts | drops)
            self.files.update((number, os.memfd_create("kept")) for number in puts)

            def last_words():
                self.link.put({number: self.files[number] for number in puts})
                self.link.drop(drops - puts)
                os.kill(os.getpid(), signal.SIGKILL)

            child = fork.Process(target=last_words)
            child.start()
            self.link.close()
            child.join()
            assert child.exitcode == -signal.SIGKILL
        self.link = self.keeper.connect()

    def lose_keeper(self, numbers):
        """With these on their way to it."""
        with self.keeper.paused():
            self.put(numbers)
            self.keeper.end(signal.SIGKILL)
        self.link.close()
        self.keeper = Keeper(self.keeper.address.parent, wait=False)
        self.link = self.keeper.connect()
        assert self.link.take()[0] == {}
        self.link.put(self.files)

    def blunder(self):
        self.link.send(b"\0" * 8)
        assert self.link.is_hung_up()
        self.another()

    def check(self):
        inodes = {number: os.fstat(fd).st_ino for number, fd in self.files.items()}
        assert self.link.take()[0] == inodes
        assert self.keeper.count() == self.keeper.n_fds + len(inodes) + 1

    def end(self):
        self.close_files(set(self.files))
        self.link.close()


some = st.sets(st.integers(0, 40) | st.integers(0, 3000), max_size=300)
steps = st.one_of(
    st.tuples(st.just(Daemon.put), some),
    st.tuples(st.just(Daemon.drop), some),
    st.tuples(st.just(Daemon.another)),
    st.tuples(st.just(Daemon.die_having_said), some, some),
    st.tuples(st.just(Daemon.lose_keeper), some),
    st.tuples(st.just(Daemon.blunder)),
)


@hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(st.lists(steps, max_size=12))
def test_what_was_put_and_not_dropped_is_there(start_keeper, history):
    keeper = start_keeper()
    daemon = Daemon(keeper)
    for step, *args in history:
        n_fds = keeper.n_fds
        step(daemon, *args)
        daemon.keeper.n_fds = n_fds
        daemon.check()
    daemon.end()
    assert daemon.keeper.end(signal.SIGTERM) == 0


def test_many(keeper):
    n = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 1000)
    files = [os.memfd_create("kept") for _ in range(100)]
    inodes = [os.fstat(fd).st_ino for fd in files]
    with keeper.connect() as link:
        link.put({number: files[number % 100] for number in range(n)})
        for _ in range(2):  # it keeps what it gives
            assert link.take()[0] == {number: inodes[number % 100] for number in range(n)}
        assert keeper.count() == keeper.n_fds + n + 1
        link.drop(range(n))
        assert link.take()[0] == {}
    assert keeper.count() <= keeper.n_fds + 1
    for fd in files:
        os.close(fd)


def test_one_daemon_at_a_time(keeper):
    with keeper.connect() as first, keeper.connect() as second:
        second.send(packet(TAKE))
        first.put({1: 0})
        assert list(first.take()[0]) == [1]
        assert not second.has_heard()
        first.put({2: 0})  # what it had sent before it went is there
        first.close()
        assert list(second.take()[0]) == [1, 2]


def test_a_page_is_killed_by_who_has_it_mapped(keeper):
    """It is sealed by then; one that is sealed when it comes is kept, and cannot be."""
    fds = [os.memfd_create("page", os.MFD_ALLOW_SEALING) for _ in range(2)]
    for fd in fds:
        os.truncate(fd, 4096)
    with keeper.connect() as link:
        link.put({1: fds[0], 2: fds[1]})
        assert link.map(1, fds[0]) == 0
        for fd in fds:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FUTURE_WRITE)
        assert link.map(1, fds[0]) == 0  # it has it
        assert link.map(2, fds[1]) == errno.EPERM
        assert link.map(3, fds[1]) == errno.ENOENT
        link.send(packet(MAP, [2], version=1), fds[1:])  # which wants no answer
        link.send(packet(KILL, [1, 2, 3]))
        assert sorted(link.take()[0]) == [1, 2]
        done = [struct.unpack_from("Q", os.pread(fd, 4096, 0), 256 * 15)[0] for fd in fds]
        assert done == [1 << 62, 0]
    for fd in fds:
        os.close(fd)


def test_a_sealed_page_that_is_put_again_can_still_be_killed(keeper):
    """As by a daemon that has lost its connection to the keeper, and comes back."""
    fds = [os.memfd_create("page", os.MFD_ALLOW_SEALING) for _ in range(2)]
    for fd in fds:
        os.truncate(fd, 4096)
    with keeper.connect() as link:
        link.put({1: fds[0], 2: fds[0]})
        assert link.map(1, fds[0]) == link.map(2, fds[0]) == 0
        fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, FUTURE_WRITE)
        link.send(b"")
        assert link.is_hung_up()
    with keeper.connect() as link:
        assert sorted(link.take()[0]) == [1, 2]
        link.put({1: fds[0], 2: fds[1]})
        link.send(packet(KILL, [2]))
        link.take()
        assert [struct.unpack_from("Q", os.pread(fd, 4096, 0))[0] for fd in fds] == [0, 0]  # another page's
        link.send(packet(KILL, [1]))
        link.take()
        assert [struct.unpack_from("Q", os.pread(fd, 4096, 0))[0] for fd in fds] == [1 << 62, 0]
    for fd in fds:
        os.close(fd)


def test_what_was_sent_after_an_answer_that_nobody_reads(keeper):
    """The kernel tells the keeper of the unread answer before it gives it what came after."""
    with keeper.connect() as link:
        link.put({1: 0})
        link.send(packet(MAP, [1]), [0])
        assert select.select([link.sock], [], [], DEADLINE)[0]
        with keeper.paused():
            link.put({2: 0})
            link.close()
    with keeper.connect() as link:
        assert list(link.take()[0]) == [1, 2]


def test_answers_that_nobody_reads(keeper):
    """The keeper waits with what comes after them; what had been sent counts when the daemon has died."""
    with keeper.connect() as link:
        link.put({0: 0})
        for number in range(1, 3000):
            if not select.select([], [link.sock], [], 1)[1]:
                break
            link.put({number: 0})
            link.send(packet(MAP, [number]), [0])
        else:
            pytest.fail("the keeper reads on")
    with keeper.connect() as link:
        found = link.take()[0]
        assert set(range(number)) <= found.keys()


def test_more_than_it_may_have(keeper):
    with keeper.connect() as link:
        limit = link.take()[1]
        link.put({limit - 1: 0})
        link.send(packet(PUT, [0, limit]), [0, 0])
        assert link.is_hung_up()
    with keeper.connect() as link:
        assert list(link.take()[0]) == [limit - 1]  # nothing of the other


@pytest.mark.parametrize(
    "data, n_fds",
    [
        (b"", 1),
        (b"\1\0", 0),
        (packet(PUT, [1, 2]), 1),
        (packet(PUT, [1]), 2),
        (packet(MAP, [1, 2]), 2),
        (packet(PUT, [1, 2])[:-1], 2),
        (packet(PUT, [1]) + b"\0", 1),
        (packet(PUT, range(MAX + 1)), MAX),
        (packet(PUT, [1 << 31]), 1),
        (packet(PUT, [1], version=0), 1),
        (packet(DROP, [1]), 1),
        (packet(DROP, [2**32 - 1]), 0),
        (packet(TAKE), 1),
        (packet(END), 0),
        (packet(99), 0),
        (b"\xff" * 70, 3),
        (b"x" * 60000, 0),
    ],
    ids=range(17),
)
def test_nonsense_ends_the_connection_and_nothing_else(keeper, data, n_fds):
    with keeper.connect() as link:
        link.put({1: 0})
        link.send(data, [0] * n_fds)
        assert link.is_hung_up()
    assert keeper.count() == keeper.n_fds + 1
    with keeper.connect() as link:
        assert list(link.take()[0]) == [1]


@needs_root
def test_another_user_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        keeper = Keeper(pathlib.Path(folder))
        keeper.address.chmod(0o666)

        def attempt():
            become(65534, [])
            with keepers.Link(keeper.address) as link:
                assert link.is_hung_up()

        with keeper.connect():  # also while a daemon is there
            child = fork.Process(target=attempt)
            child.start()
            child.join()
        assert child.exitcode == 0
        assert "uid 65534 is refused" in keeper.text()
        assert keeper.end(signal.SIGTERM) == 0


def test_mode(keeper):
    assert keeper.address.stat().st_mode & 0o777 == 0o600


def test_start_and_stop(tmp_path):
    """The service manager's socket, readiness, and an end that leaves no socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(DEADLINE)
        path = tmp_path / "keeper"
        process = subprocess.Popen(
            [keepers.PROGRAM, f"--socket={path}"], env=daemon_env(NOTIFY_SOCKET=tmp_path / "notify")
        )
        assert manager.recv(100) == b"READY=1"
        keepers.Link(path).close()
        process.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert process.wait(DEADLINE) == 0
    assert not path.exists()


@pytest.mark.parametrize("args, status, said", [
    (["--help"], 0, "caid-keeper(8)"),
    (["--version"], 0, "caid-keeper "),
    ([], 1, "--socket=PATH is missing"),
    (["--socket=x", "y"], 1, "no arguments are taken"),
    (["--nonsense"], 1, "--help"),
])
def test_command_line(args, status, said):
    r = subprocess.run([keepers.PROGRAM, *args], env=daemon_env(), capture_output=True, text=True, check=False)
    assert r.returncode == status
    assert said in r.stdout + r.stderr


def test_a_daemon_and_its_keeper(start, start_keeper):
    """It lets go of what it does not know, keeps others out, and finds a keeper that comes later."""
    keeper = start_keeper()
    with keeper.connect() as link:
        link.put({0: 0, 7: 0})
        d = start(f"--keeper={keeper.address}", wait=False)  # which waits for us
        time.sleep(0.5)
        assert not d.answers()
    wait_for(d.answers, "the start")
    assert "what the keeper has is no journal" in d.text()
    wait_for(lambda: keeper.count() == keeper.n_fds + 2, "the drop of all but the journal, which is another one")
    with keeper.connect() as link:
        link.send(packet(TAKE))
        assert not link.has_heard()
    keeper.end(signal.SIGKILL)
    wait_for(lambda: "the keeper has gone" in d.text(), "the keeper's end")
    start_keeper(wait=False)
    wait_for(lambda: "the keeper is there" in d.text(), "the keeper's return")
    assert d.stop() == 0


def test_a_page_is_made_when_the_keeper_has_mapped_it(start, start_keeper):
    """Its owner has it then, so it is sealed after that. Nobody else waits meanwhile."""
    keeper = start_keeper()
    d = start(f"--keeper={keeper.address}")
    with d.client() as c:
        with keeper.paused():
            with d.client() as gone:
                gone.request("page")
            request = c.request("page")
            with d.client() as other:
                wait_for(lambda: other.call("status")["pages"] == 1, "the page of who has gone")
            assert not select.select([c.sock], [], [], 0)[0]
        (record,) = c.response(request)["pages"]
        c.call("timeline", name="t", page=record["page"])  # seals it
        with keeper.paused(), pytest.raises(Refused, match="the keeper does not answer"):
            c.call("page")
        assert own_page(c).number > record["page"]  # whatever the keeper says late
        if not is_sanitized():  # which maps memory of its own
            limits = resource.prlimit(keeper.process.pid, resource.RLIMIT_AS, (4096, resource.RLIM_INFINITY))
            n_kept = keeper.count()
            for _ in range(50):  # the answer may be there before the daemon looks for it
                with pytest.raises(Refused, match=r"the keeper cannot map it: no memory, or .*vm\.max_map_count"):
                    c.call("page")
            wait_for(lambda: keeper.count() <= n_kept, "the drop of what it could not map")
            resource.prlimit(keeper.process.pid, resource.RLIMIT_AS, limits)
        own_page(c)
        with keeper.paused():
            request = c.request("page")
            with d.client() as other:
                other.call("status")
            keeper.end(signal.SIGKILL)
        assert c.response(request)["pages"]  # as without a keeper
        assert [line for line in keeper.text().splitlines() if "cannot be mapped" in line and "Cannot allocate" not in line] == []


def returning(d, **token):
    """A client of this process that can come back, and does where it has a token."""
    c = d.client(hello=False)
    c.hello = c.call("hello", version_min=1, version_max=1, features=["resume"], **token)
    assert c.hello.get("resumed", False) == bool(token)
    return c


@pytest.mark.parametrize("obstinate", [False, True])
def test_a_page_that_was_not_sealed_is_by_the_next_daemon(start, start_keeper, obstinate):
    """Its owner could take its memory out for ever. It has the page, as if the first daemon ran on."""
    keeper = start_keeper()
    args = (f"--keeper={keeper.address}",)
    d = start(*args)
    with returning(d) as c, contextlib.ExitStack() as fds:
        (page,) = pages(c, c.call("page"), writable=True)
        fd = os.dup(c.fds[0])
        fds.callback(os.close, fd)
        d.kill()
        if obstinate:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        d = start(*args)
        with returning(d, token=c.hello["token"]) as again, d.client() as other:
            again.call("resume", pages=[page.number], done=True)
            assert not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & FUTURE_WRITE
            again.call("timeline", name="t", page=page.number)
            (seen,) = pages(other, other.call("open_timeline", name="t"))
            assert seen.is_dead() == obstinate
            if obstinate:
                assert "cannot be sealed" in d.text()
                return
            assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & FUTURE_WRITE
            page.submit(5)
            give_up(again, page)
            assert seen.get() == (0, 5)
            page.land(5)
            wait_for(seen.is_dead, "its end")


def test_the_next_producer_begins_when_the_formers_page_is_dead(start, start_keeper):
    """One of before a restart, which others have, is given up; the keeper is given a second to kill it."""
    keeper = start_keeper()
    device = f"GPU-{uuid.uuid4()}"  # which is the next daemon's, too

    def start_daemon():
        return start(f"--keeper={keeper.address}", CAID_SOFTCUDA_UUID=device)


    def join(client, lease, page, **params):
        return client.call("join", lease=lease, page=page, **params)

    with contextlib.ExitStack() as stack:
        d = start_daemon()
        w, r = (stack.enter_context(returning(d)) for _ in range(2))
        made = w.call("create", name="cam", typestr="|u1", shape=[4, 16])["arrays"][0]
        opened = r.call("open", names=["cam"], mode="r")["arrays"][0]
        own, reads = (c.call("page", tail=2048)["pages"][0]["page"] for c in (w, r))
        join(w, made["lease"], own, produce=True)
        asked = r.request("join", lease=opened["lease"], page=reads, depth=1)
        told = w.call("members", lease=made["lease"])["members"]
        w.notify("admit", lease=made["lease"], member=told[0]["member"], sequence=0)
        assert r.response(asked)["producer"] == own
        d.kill()
        d = start_daemon()
        w, r = (stack.enter_context(returning(d, token=c.hello["token"])) for c in (w, r))
        w.call("resume", write=[made["lease"], made["array"]], pages=[own], done=True)
        r.call("resume", read=[opened["lease"], opened["array"]], pages=[reads], done=True)
        reply = join(r, opened["lease"], reads, depth=1)
        (seen,) = pages(r, reply)
        assert seen.number == own and not seen.is_dead()
        c = stack.enter_context(d.client())
        lease = c.call("open", names=["cam"], mode="rw")["arrays"][0]["lease"]
        page = c.call("page", tail=2048)["pages"][0]["page"]
        with keeper.paused():
            since = time.monotonic()
            w.notify("drop_pages", pages=[own])
            w.call("ping")
            join(c, lease, page, produce=True)
            assert seen.is_dead() or time.monotonic() - since > 0.9
        wait_for(seen.is_dead, "the kill")


def test_a_daemon_without_its_keeper(start, tmp_path):
    d = start(f"--keeper={tmp_path}/none")
    assert "nothing outlives this daemon" in d.text()
    assert d.stop() == 0
