# SPDX-License-Identifier: Apache-2.0
"""Many clients, dying clients, clients that do not read: what the daemon holds for them ends with
them, and nobody else waits."""

import contextlib
import os
import resource
import select
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import raw
from conftest import (
    AT_ONCE,
    DEADLINE,
    MIB,
    become,
    fd_count,
    fork,
    in_child,
    is_sanitized,
    kill,
    needs_root,
    public_daemon,
    used,
    wait_for,
)
from raw import pack, unpack


@pytest.fixture
def daemon(start):
    return start(config=AT_ONCE)


def create(client, name=None, mib=2):
    named = {} if name is None else {"name": name}
    return client.call("create", typestr="|u1", shape=[mib * MIB], exclusive=True, **named)["arrays"][0]


def wait_until_used(daemon, n):
    wait_for(lambda: used(daemon) == n, f"{n} bytes in use")


# ---- ends of clients ----


def test_sigkill_while_the_driver_works(start):
    """The answer has nobody to go to; the memory goes back."""
    d = start(config=AT_ONCE, CAID_SOFTCUDA_FAIL="cuMemCreate=delay:200000")

    def body(c):
        for _ in range(8):
            c.request("create", typestr="|u1", shape=[MIB], exclusive=True)

    kill(in_child(d, body))
    wait_for(lambda: d.status()["jobs"] == 0, "the end of the jobs")
    wait_until_used(d, 0)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_stop_with_everything_open(start, signum):
    """All memory is given back: under AddressSanitizer nothing leaks, either."""
    d = start()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(d.client()) for _ in range(8)]
        for i, c in enumerate(clients):
            create(c, f"n{i}")
            create(c)
            c.request("create", typestr="|u1", shape=[MIB])  # still under way, maybe
        assert d.stop(signum) == (0 if signum == signal.SIGTERM else -signal.SIGKILL)
        for c in clients:
            assert c.is_closed()
    assert used(start()) == 0


def test_stop_waits_for_the_driver(start):
    d = start(CAID_SOFTCUDA_FAIL="cuMemCreate=delay:500000")
    with d.client() as c:
        c.request("create", typestr="|u1", shape=[MIB])
        wait_for(lambda: d.status()["arrays"] == 1, "the job")
        assert d.stop() == 0


def test_stop_drops_what_waits_for_the_driver(start):
    """Its calls, each of a second, would take longer than a stop may."""
    d = start(CAID_SOFTCUDA_FAIL="cuMemCreate=delay:1000000", CAID_SOFTCUDA_DEVICES="8")
    with d.client() as c:
        for _ in range(100):
            c.request("create", typestr="|u1", shape=[MIB], exclusive=True)
        wait_for(lambda: d.status()["arrays"] == 100, "the jobs")
        assert d.stop() == 0


def test_creates_of_who_has_gone_are_dropped(start):
    """What has not reached the driver never does, and the name of such an array is free."""
    d = start(CAID_SOFTCUDA_FAIL="cuMemCreate=delay:300000")
    with d.client() as c:
        for i in range(64):
            c.request("create", name=f"n{i}", typestr="|u1", shape=[MIB], exclusive=True)
        wait_for(lambda: d.status()["arrays"] == 64, "the jobs")
    wait_for(lambda: d.status()["jobs"] == 0, "the end of those that have begun")
    assert d.status()["blocks"] < 64
    assert d.status()["names"] == 0


def test_second_signal_ends_at_once(start):
    d = start(CAID_SOFTCUDA_FAIL="cuMemCreate=delay:60000000")
    with d.client() as c:
        c.request("create", typestr="|u1", shape=[MIB])
        wait_for(lambda: d.status()["jobs"] == 1, "the job")
        d.process.send_signal(signal.SIGTERM)
        assert c.is_closed()
        assert d.stop() == 1
    assert not d.socket.exists()


# ---- clients that do not read ----


def send_until_held_up(client, packet, limit=200000):
    """Sends without reading until the daemon has stopped reading; how many."""
    client.sock.setblocking(False)
    n = 0
    with contextlib.suppress(BlockingIOError):
        while n < limit:
            client.send(packet)
            n += 1
    client.sock.settimeout(DEADLINE)
    return n


def test_who_does_not_read_is_not_read(daemon):
    """Back-pressure: others are served, the daemon keeps little, and nothing is lost."""
    with daemon.client() as deaf, daemon.client() as other:
        n = send_until_held_up(deaf, pack([0, 7, "status", {}]))
        assert 0 < n < 200000
        assert other.call("ping") == {}
        for _ in range(n):
            assert deaf.response(7)["server"].startswith("caid ")
        assert deaf.call("ping") == {}


def test_who_does_not_read_can_be_stopped(daemon):
    with daemon.client() as deaf:
        send_until_held_up(deaf, pack([0, 7, "status", {}]))
        assert daemon.stop() == 0


def test_who_does_not_read_and_hangs_up(daemon):
    """Seen although the daemon does not read from it."""

    def body(c):
        create(c, mib=64)
        send_until_held_up(c, pack([0, 7, "status", {}]))
        c.close()

    process = in_child(daemon, body)
    wait_for(lambda: daemon.status()["connections"] == 1, "the end of its connection")
    assert used(daemon) == 64 * MIB  # it may have work on the GPU
    kill(process)
    wait_until_used(daemon, 0)


def make_names(client, n):
    names = [f"n{i}" for i in range(n)]
    for name in names:
        create(client, name)
    return names


PER_PACKET = 8  # in one reply, also while others wait for their turn


def open_without_reading(client, names):
    """One packet for PER_PACKET names: the packets alone must not fill a socket."""
    for i in range(0, len(names), PER_PACKET):
        client.request("open", names=names[i : i + PER_PACKET], mode="r")


def read_opens(client, n):
    """Reads the answers for n names; how many fds came with them."""
    n_fds = 0
    while n > 0:
        n -= len(client.response()["arrays"])
        n_fds += len(client.fds)
    return n_fds


def test_unread_fds_are_bounded_and_all_arrive(daemon):
    with daemon.client() as owner, daemon.client() as deaf:
        names = make_names(owner, 600)  # more than one connection may leave in flight
        before = fd_count(daemon)
        open_without_reading(deaf, names)
        assert owner.call("ping") == {}
        assert read_opens(deaf, len(names)) == len(names)
        assert deaf.call("ping") == {}
        assert fd_count(daemon) == before  # those that were duplicated for the queue are closed


def test_unread_fds_do_not_hold_up_others_for_ever(start):
    """One client uses up all fds that its uid may have in flight; when others wait for long, it goes."""
    d = start(max_fds=1024)  # of which a quarter may be in flight, and half of that of one uid
    with d.client() as owner, d.client() as deaf, d.client() as other:
        names = make_names(owner, 300)
        open_without_reading(deaf, names)
        # The last packet of those that it has sent waits, or the last two.
        wait_for(lambda: owner.call("status")["leases"] in (300 + 136, 300 + 144), "fds in flight")
        open_without_reading(other, names[:50])
        assert read_opens(other, 50) == 50
        assert deaf.is_closed()
    assert "left too many fds unread" in d.text()


def test_reply_with_more_fds_than_a_uid_may_leave_unread(start):
    """Comes all the same, since nothing else of that uid is under way."""
    d = start(max_fds=1024)
    with d.client() as owner, d.client() as reader:
        names = make_names(owner, 200)
        reader.request("open", names=names, mode="r")
        assert read_opens(reader, 200) == 200


def test_unread_fds_count_when_their_connection_has_ended(start):
    """The kernel counts them until somebody takes them, or closes the socket where they lie."""
    d = start(max_fds=1024)  # of which one uid may have a quarter in flight, with what it has left there
    with contextlib.ExitStack() as stack:
        owner, last, *clients = [stack.enter_context(d.client()) for _ in range(8)]
        names = make_names(owner, 40)
        before = fd_count(d)
        for n_left, c in zip(range(8, 2, -1), clients, strict=True):  # one at a time, with who asks
            open_without_reading(c, names)
            c.send(b"nothing that is known")
            wait_for(lambda n=n_left: d.status()["connections"] == n, "the end of the connection")
        open_without_reading(last, names)
        wait_for(lambda: d.status()["leases"] >= 40 + 24, "leases")
        time.sleep(0.2)
        # The last packet waits, or the last two, and nothing is read meanwhile.
        assert d.status()["leases"] in (40 + 24, 40 + 32)
        assert [count_all_fds(c) for c in clients] == [40] * len(clients)
        assert read_opens(last, 40) == 40
        wait_for(lambda: fd_count(d) == before - len(clients), "the end of their sockets")


def count_all_fds(client):
    """Of what was sent before the end."""
    n = 0
    with contextlib.suppress(raw.Closed):
        while True:
            client.receive()
            n += len(client.fds)
    return n


def test_queued_fds_of_all_are_bounded(start):
    """When all together have too many in their queues, it is the one who has not read for longest
    that goes; the others get everything."""
    d = start(max_fds=1024)  # of which a quarter may be in flight, and a quarter in queues
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(d.client())
        names = make_names(owner, 300)
        n_leases = len(names)

        def fill(client, n, n_heard):
            nonlocal n_leases
            n_leases += n_heard
            open_without_reading(client, names[:n])
            wait_for(lambda: owner.call("status")["leases"] - n_leases in (0, 8, -136, -144), "leases")

        deaf = stack.enter_context(d.client())
        fill(deaf, 300, 136)  # half of what may be in flight, and a packet more, or two
        others = [stack.enter_context(d.client()) for _ in range(32)]
        for c in others:
            fill(c, 8, 8)
        with ThreadPoolExecutor(len(others)) as readers:  # all at once: they may have their turns in any order
            assert list(readers.map(lambda c: read_opens(c, 8), others)) == [8] * len(others)
        assert deaf.is_closed()
    assert "left too much unread" in d.text()


# ---- those who come ----

BOB = 60002
HELLO = pack([0, 1, "hello", {"version_min": 1, "version_max": 1}])


def knock(daemon, say=HELLO):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(DEADLINE)
    sock.connect(str(daemon.socket))
    if say:
        sock.send(say)
    return sock


def test_who_has_gone_without_a_word_costs_nothing(start):
    d = start()  # which has been tried already
    with d.client() as c:
        with d.paused():
            for _ in range(100):
                knock(d, say=None).close()
            knock(d).close()  # has said something
        wait_for(lambda: d.text().count("hung up") >= 2, "the last of them")
        assert c.call("status")["connections"] == 1
        assert d.text().count("hung up") == 2


def test_stop_while_some_wait_to_be_taken_up(start):
    d = start()
    with d.paused():
        socks = [knock(d) for _ in range(100)]
        d.process.send_signal(signal.SIGTERM)
    assert d.process.wait(DEADLINE) == 0
    for sock in socks:
        sock.close()


@needs_root
@pytest.mark.skipif(is_sanitized(), reason="all takes as long as a uid's share there")
def test_a_crowd_of_one_uid_does_not_go_first():
    """They came first, and all that they cost comes later."""
    with public_daemon("") as d, d.paused():
        ready = fork.Event()

        def crowd():
            become(BOB, range(2000, 3000))  # who are dear
            socks = [knock(d) for _ in range(100)]
            ready.set()
            time.sleep(DEADLINE)
            del socks

        process = fork.Process(target=crowd)
        process.start()
        assert ready.wait(DEADLINE)
        with knock(d) as sock:
            sock.send(pack([0, 2, "status", {}]))
            d.process.send_signal(signal.SIGCONT)
            sock.recv(65536)
            status = unpack(sock.recv(65536))[3]
        kill(process)
    assert status["connections"] < 90


# ---- whose turn it is ----

ALICE = 60003
N_GREEDY = 200
NAMES = [f"n{i}" for i in range(1024)]


@contextlib.contextmanager
def connected_as(daemon, uid, n=1):
    """Connections of that uid; the process's own again when they are there."""
    with contextlib.ExitStack() as stack:
        os.seteuid(uid)
        try:
            clients = [stack.enter_context(daemon.client()) for _ in range(n)]
        finally:
            os.seteuid(0)
        yield clients


def order_of_answers(daemon, asks):
    """[ask()] of clients while the daemon does not run: the clients as their answers came after that."""
    with select.epoll() as epoll:  # which has them in the order in which they were ready
        with daemon.paused():
            for client, ask in asks:
                epoll.register(client.sock, select.EPOLLIN | select.EPOLLET)
                ask()
        for client, _ in asks:
            client.sock.recv(1, socket.MSG_PEEK)
        ready = [fd for fd, _ in epoll.poll(maxevents=len(asks))]
    clients = {client.sock.fileno(): client for client, _ in asks}
    return [clients[fd] for fd in ready]


@needs_root
@pytest.mark.parametrize("method, params", [("list", {}), ("open", {"names": NAMES, "mode": "r"})])
def test_costly_requests_of_one_uid_do_not_go_first(method, params):
    """They came first, on very many connections, and nearly all of them are answered later."""
    with public_daemon("") as d, connected_as(d, BOB, N_GREEDY) as greedy, connected_as(d, ALICE) as [victim]:
        for name in NAMES:
            greedy[0].call("create", name=name, typestr="|u1", shape=[1])
        asks = [(c, lambda c=c: c.request(method, **params)) for c in greedy]
        order = order_of_answers(d, [*asks, (victim, lambda: victim.request("ping"))])
        assert len(order) == N_GREEDY + 1
        assert order.index(victim) < N_GREEDY // 4


@needs_root
def test_a_greedy_uid_gets_little_at_a_time():
    """As soon as another one is heard, too; that one gets all that it asks for."""
    with public_daemon("") as d, connected_as(d, BOB, 20) as greedy, connected_as(d, ALICE) as [modest]:
        for name in NAMES:
            greedy[0].call("create", name=name, typestr="|u1", shape=[1])
        for name in NAMES[:100]:
            modest.call("create", name=name, typestr="|u1", shape=[1])

        def sizes(clients):
            for c in clients:
                c.request("list")
            return [len(c.receive()) for c in clients]

        wait_for(lambda: max(sizes(greedy)) > 60000, "all at once, while nobody else is heard")
        wait_for(lambda: max(sizes([modest])) > 4096 > min(sizes(greedy)), "little at a time")


@needs_root
def test_the_end_of_many_connections_does_not_go_first(many_fds):
    """Their process has exited before another uid has asked."""

    def body(c, clients=[]):  # that stay
        create(c, "x")
        for _ in range(N_GREEDY):
            clients.append(d.client())
            clients[-1].call("open", names=["x"], mode="r")

    with public_daemon("") as d, connected_as(d, ALICE) as [victim]:
        process = in_child(d, body, uid=BOB)
        with d.paused():
            kill(process)
            victim.request("status")
        assert victim.response()["connections"] > N_GREEDY // 2


@needs_root
def test_those_who_read_no_more_do_not_go_first(many_fds):
    """All are sent something at once, which shows that they are gone."""
    with public_daemon("") as d, connected_as(d, BOB, N_GREEDY + 1) as bobs, connected_as(d, ALICE) as [victim]:
        for c in bobs[1:]:
            c.request("watch", name="x")
            c.sock.shutdown(socket.SHUT_RD)
        wait_for(lambda: d.status()["watches"] == N_GREEDY, "the watches")
        lease = bobs[0].call("create", typestr="|u1", shape=[1])["arrays"][0]["lease"]
        with d.paused():
            bobs[0].request("publish", lease=lease, name="x")
            victim.request("status")
        assert victim.response()["connections"] > N_GREEDY // 2
        wait_for(lambda: d.status()["connections"] == 3, "their end")


@needs_root
def test_notifications_of_one_uid_do_not_go_first():
    """Though nobody waits for an answer to one of them before the next."""
    n, leases = 256, []
    with public_daemon("") as d, connected_as(d, BOB) as [greedy], connected_as(d, ALICE) as [victim]:
        create(greedy, "x")
        while len(leases) < 8 * n:
            opened = greedy.call("open", names=["x"] * n, mode="r")["arrays"]
            leases += [array["lease"] for array in opened]
        with d.paused():
            for i in range(0, 8 * n, n):
                greedy.notify("close", leases=leases[i : i + n])
            victim.request("status")
        assert victim.response()["leases"] > 4 * n


@needs_root
def test_time_is_that_of_who_asks():
    start = time.monotonic_ns()
    with public_daemon("") as d, connected_as(d, BOB) as [bob], connected_as(d, ALICE), d.client() as root:

        def times():
            return {user["uid"]: user["time_ns"] for user in root.call("users")["users"]}

        before = times()
        for _ in range(10):
            bob.call("list")
        after = times()
        assert after[BOB] > before[BOB] > 0 and after[ALICE] == before[ALICE] > 0
        status = root.call("status")
        assert sum(after.values()) < status["uptime_ns"]
        # Of a virtual machine the two clocks differ: a thread may have run longer than it took.
        # The longest turn may be the one in which it began to serve.
        assert 0 < status["turn_cpu_ns"] < time.monotonic_ns() - start > status["turn_wall_ns"] > 0


# ---- many clients ----


def anonymous_memory(daemon):
    with open(f"/proc/{daemon.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon:"))


@pytest.fixture
def many_fds():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_clients_cost_little(daemon, many_fds):
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon.client())
        before = anonymous_memory(daemon)
        for _ in range(2000):
            stack.enter_context(daemon.client())
        cost = (anonymous_memory(daemon) - before) / 2000
        print(f"{cost:.0f} bytes for each idle client")
        if not is_sanitized():
            assert cost <= 8192
        with daemon.client() as c:
            assert c.call("status")["connections"] == 2002
    wait_for(lambda: daemon.status()["connections"] == 1, "the end of all connections")


def test_memory_of_many_arrays_goes_back(daemon):
    """To the kernel: the daemon is not as large for ever as it was with most arrays."""
    n, at_a_time = 40000, 50
    with daemon.client() as c:
        before = anonymous_memory(daemon)
        for _ in range(0, n, at_a_time):
            numbers = [c.request("create", typestr="<f4", shape=[0] * 8) for _ in range(at_a_time)]
            for number in numbers:
                c.response(number)
        most = anonymous_memory(daemon)
        for i in range(1, n, 1000):  # all but one in 1000, lest whole pages be free by themselves
            c.notify("close", leases=list(range(i, i + 999)))
        assert c.call("status")["arrays"] == n // 1000
        print(f"{before}, then {most} bytes with {n} arrays")
        if not is_sanitized():
            limit = before + (most - before) // 4
            wait_for(lambda: anonymous_memory(daemon) < limit, "the memory")


@needs_root
def test_fds_are_shared(many_fds):
    """One uid's connections lock nobody out: it has half of what the others leave."""
    with public_daemon("[daemon]\nhello_timeout = 1m\n", max_fds=512) as d, contextlib.ExitStack() as stack:

        def connect_all():
            n = 0
            with pytest.raises(raw.Refused):
                while n < 256:
                    stack.enter_context(d.client())
                    n += 1
            return n

        os.seteuid(1234)
        try:
            n = connect_all()
            os.seteuid(0)
            os.seteuid(1235)
            assert 0 < connect_all() < n
        finally:
            os.seteuid(0)
        create(stack.enter_context(d.client()))
