# SPDX-License-Identifier: Apache-2.0
"""Pages of timelines: who may write to them, when they come, and what becomes of them (I3, I7)."""

import ctypes
import fcntl
import mmap
import os
import signal as sig
import stat
import threading
import time

import pytest
from conftest import (
    DEADLINE,
    MIB,
    as_user,
    charges,
    fd_count,
    fds_at_rest,
    fork,
    in_child,
    kill,
    needs_root,
    nothing_charged,
    public_daemon,
    refused,
    wait_for,
)
from slots import DEAD, N_SLOTS, Page, begin, give_up, libc, named, own_page, pages, signal

NOT_FOUND, LIMIT, BUSY = 6, 10, 27
AT_FIRST = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, which Python does not name
IN_USE = AT_FIRST | FUTURE_WRITE | fcntl.F_SEAL_SEAL
KEEP_SIZE, PUNCH_HOLE = 1, 2  # fallocate(2)
BOB = 60002
SHARED_POOL = '[pool "shared"]\nmode = 0666\n'


def create(client, **params):
    return client.call("create", typestr="|u1", shape=[1000], **params)["arrays"][0]["lease"]


def open_timeline(client, name, **params):
    """The page, or None where the client has it."""
    return next(iter(pages(client, client.call("open_timeline", name=name, **params))), None)


def seals(fd):
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS)


# ---- the owner's ----


def test_page_is_a_private_memfd_that_nobody_can_cut(daemon):
    with daemon.client() as c:
        (record,) = c.call("page")["pages"]
        (fd,) = c.fds
        info = os.fstat(fd)
        assert stat.S_IMODE(info.st_mode) == 0o600
        assert info.st_size == record["size"] == mmap.PAGESIZE
        assert info.st_blocks * 512 >= mmap.PAGESIZE  # its memory is there
        assert seals(fd) == AT_FIRST
        for size in (0, 2 * mmap.PAGESIZE):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        assert os.pread(fd, mmap.PAGESIZE, 0) == bytes(mmap.PAGESIZE)
        assert own_page(c).number != record["page"]
        assert c.call("status")["pages"] == 2


def use_by_name(client, page):
    client.call("timeline", name="t", page=page.number)


def use_by_end(client, page):
    begin(client, 1, read=[create(client)])
    signal(client, 1, page, 1)
    client.call("ping")


@pytest.mark.parametrize("use", [use_by_name, use_by_end])
def test_page_in_use_cannot_be_mapped_for_writing_again(daemon, use):
    """Not by the owner's own fd either, while the mapping that it has goes on."""
    with daemon.client() as c:
        (page,) = pages(c, c.call("page"), writable=True)
        fd = os.dup(c.fds[0])
        use(c, page)
        assert seals(fd) == IN_USE
        with pytest.raises(PermissionError):
            mmap.mmap(fd, mmap.PAGESIZE)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        page.land(7)
        assert os.pread(fd, 1, 0) == b"\x07"
        os.close(fd)


def test_owner_that_seals_the_seals_harms_nobody(daemon):
    """Nobody else gets a page out of which it could take the memory that they have registered."""
    with daemon.client() as c, daemon.client() as other:
        mine = []
        for name in ("t", "u"):
            mine += pages(c, c.call("page"), writable=True)
            fcntl.fcntl(c.fds[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
            c.call("timeline", name=name, page=mine[-1].number)
        assert daemon.text().count("cannot be sealed") == 2
        for page, name in zip(mine, ("t", "u"), strict=True):
            page.submit(5)
            seen = open_timeline(other, name)
            assert seen.number == page.number
            assert all(seen.is_dead(slot) and seen.landed(slot) == 0 for slot in range(N_SLOTS))
            assert page.get() == (0, 5)
            with pytest.raises(PermissionError):
                mmap.mmap(os.open(f"/proc/self/fd/{other.fds[0]}", os.O_RDWR), mmap.PAGESIZE)
        named(other, "v").submit(1)
        assert open_timeline(c, "v").get() == (0, 1)


def test_owner_that_seals_the_seals_is_as_one_that_has_died(daemon):
    """Who would read what it says to have written is told so, though the page comes with the end."""
    with daemon.client() as c, daemon.client() as other:
        (page,) = pages(c, c.call("page"), writable=True)
        fcntl.fcntl(c.fds[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        begin(c, 1, write=[create(c, name="x")])
        lease = other.call("open", names=["x"], mode="r")["arrays"][0]["lease"]
        asked = other.request("begin", bracket=1, read=[lease])
        signal(c, 1, page, 5)
        (seen,) = pages(other, other.response(asked))
        assert seen.is_dead() and seen.landed() == 0


def test_owner_that_seals_it_itself(daemon):
    with daemon.client() as c, daemon.client() as other:
        (page,) = pages(c, c.call("page"), writable=True)
        fcntl.fcntl(c.fds[0], fcntl.F_ADD_SEALS, FUTURE_WRITE | fcntl.F_SEAL_SEAL)
        c.call("timeline", name="t", page=page.number)
        page.submit(5)
        assert open_timeline(other, "t").get() == (0, 5)
        assert "cannot be sealed" not in daemon.text()


def test_owner_that_takes_memory_out_of_a_page(daemon):
    """Before it is sealed, a hole in it reads as zeros, for the daemon, too."""
    with daemon.client() as c:
        (page,) = pages(c, c.call("page"), writable=True)
        page.submit(5)
        assert libc.fallocate(c.fds[0], PUNCH_HOLE | KEEP_SIZE, 0, mmap.PAGESIZE) == 0
        c.call("timeline", name="t", page=page.number)
        (record,) = c.call("timelines")["timelines"]
        assert (record["value"], record["submitted"]) == (0, 0)


# ---- others' ----


def test_reader_cannot_write(daemon):
    with daemon.client() as c, daemon.client() as other:
        page = named(c, "t")
        reply = other.call("open_timeline", name="t")
        assert reply["page"] == page.number
        (fd,) = other.fds
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        with pytest.raises(PermissionError):
            mmap.mmap(fd, mmap.PAGESIZE)
        with pytest.raises(OSError):
            os.write(fd, b"x")
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        seen = Page(page.number, fd, mmap.PAGESIZE, writable=False)
        page.submit(3)
        page.land(2)
        assert seen.get() == (2, 3)
        # Of the same uid, or root, it can be opened anew, and is sealed all the same.
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        with pytest.raises(PermissionError):
            mmap.mmap(again, mmap.PAGESIZE)
        with pytest.raises(PermissionError):
            os.pwrite(again, b"x", 0)
        os.close(again)


@needs_root
def test_reader_of_another_uid_cannot_open_the_page_anew():
    def body(client):
        client.call("open_timeline", name="t", pool="shared")
        results = []
        for flags in (os.O_RDWR, os.O_WRONLY):
            try:
                os.close(os.open(f"/proc/self/fd/{client.fds[0]}", flags))
            except PermissionError:
                results.append("refused")
        return results

    with public_daemon(SHARED_POOL) as d, d.client() as c:
        named(c, "t", pool="shared")
        assert as_user(d, BOB, [], body) == ["refused", "refused"]


# ---- the end ----


def test_page_that_was_given_up_dies_when_its_values_have_landed(daemon):
    """Its name is free at once."""
    before = fds_at_rest(daemon)
    with daemon.client() as c, daemon.client() as other:
        page = named(c, "t")
        seen = open_timeline(other, "t")
        page.submit(7)
        give_up(c, page)
        refused(NOT_FOUND, other.call, "open_timeline", name="t")
        time.sleep(0.1)
        assert seen.get() == (0, 7)
        page.land(7)
        wait_for(seen.is_dead, "its end")
        assert seen.landed() == 7
        give_up(c, page)  # as one that has gone
        assert charges(daemon)["pages"] == 1  # somebody has it
        give_up(other, seen)
        other.call("ping")
        assert charges(daemon)["pages"] == 0
        give_up(other, named(other, "t"))
    wait_for(lambda: fd_count(daemon) == before, "the fds")


def test_owner_that_lives_on_is_forgotten_with_its_last_page(daemon):
    """This process: it is watched until nobody has what it could write to."""
    before = fds_at_rest(daemon)
    with daemon.client() as other:
        with daemon.client() as c:
            give_up(c, named(c, "t"))  # nobody else has it
            page = named(c, "t")
            seen = open_timeline(other, "t")
            give_up(c, page)
            wait_for(seen.is_dead, "its end")
        wait_for(lambda: other.call("status")["connections"] == 1, "the end of its connection")
        assert other.call("status")["pages"] == 1
        give_up(other, seen)
        assert other.call("status")["pages"] == 0
    wait_for(lambda: fd_count(daemon) == before, "the fds")
    assert nothing_charged(daemon)


def signals_and_stays(client, submitted, done):
    """Of its first slots."""
    page = named(client, "t")
    for slot, (value, reached) in enumerate(zip(submitted, done, strict=True)):
        page.submit(value, slot)
        page.land(reached, slot)
    client.call("ping")


def test_exit_of_the_owner_lets_all_waiters_go(daemon):
    before = fds_at_rest(daemon)
    process = in_child(daemon, signals_and_stays, [3, 5, 2], [3, 1, 0])
    with daemon.client() as c:
        seen = open_timeline(c, "t")
        waiter = threading.Thread(target=seen.wait_submitted, args=(5, 1), daemon=True)
        waiter.start()
        time.sleep(0.1)
        assert seen.get(1) == (1, 5) and waiter.is_alive()
        kill(process)
        waiter.join(DEADLINE)
        assert not waiter.is_alive()
        wait_for(lambda: all(seen.is_dead(slot) for slot in range(N_SLOTS)), "the end of all slots")
        assert [seen.landed(slot) for slot in range(4)] == [3, 1, 0, 0]
        refused(NOT_FOUND, c.call, "open_timeline", name="t")
        assert c.call("status")["pages"] == 0
    wait_for(lambda: fd_count(daemon) == before, "the fds")


def hung_up_with_a_page(daemon):
    """A process without a connection, that tells what its page holds when it gets a message."""
    mine, its = fork.Pipe()

    def run():
        with daemon.client() as c:
            page = named(c, "t")
            page.submit(3)
        its.send(None)
        its.recv()
        its.send(page.get())

    process = fork.Process(target=run)
    process.start()
    assert mine.poll(DEADLINE)
    mine.recv()
    wait_for(lambda: daemon.status()["timelines"] == 0, "the end of its connection")
    return process, mine


def test_hang_up_alone_kills_nothing(daemon):
    """What is on its way to the device still comes."""
    before = fds_at_rest(daemon)
    process, pipe = hung_up_with_a_page(daemon)
    time.sleep(0.1)
    assert daemon.status()["pages"] == charges(daemon)["pages"] == 1
    pipe.send(None)
    assert pipe.recv() == (0, 3)
    process.join()
    wait_for(lambda: daemon.status()["pages"] == 0, "the end of its page")
    wait_for(lambda: nothing_charged(daemon), "the end of all charges")
    wait_for(lambda: fd_count(daemon) == before, "the fds")


# ---- channels: proto/channel.h ----

FRAMES = 4
TAIL = 128 + 128 * FRAMES


def member_page(client):
    (page,) = pages(client, client.call("page", tail=TAIL), writable=True)
    assert page.size >= 4096 + TAIL
    return page


def lease_on(client, mode):
    return client.call("open", names=["cam"], mode=mode)["arrays"][0]["lease"]


def produces_and_stays(client):
    """Its frame 2 has landed."""
    page = member_page(client)
    client.call("join", lease=lease_on(client, "rw"), page=page.number, produce=True)
    words = (ctypes.c_uint64 * 3).from_address(page.address + 4096 + 128 + 128 * 2)
    words[0], words[2] = 2, 77
    page.submit(3)
    page.land(2)


def test_a_channel_is_taken_over_by_the_next_process(daemon):
    with daemon.client() as c, daemon.client() as reader:
        lease = c.call("create", name="cam", typestr="|u1", shape=[FRAMES])["arrays"][0]["lease"]
        process = in_child(daemon, produces_and_stays)
        joins = reader.request("join", lease=lease_on(reader, "r"), page=member_page(reader).number, depth=1, wait=True)
        page = member_page(c)
        assert str(process.pid) in str(refused(BUSY, c.call, "join", lease=lease, page=page.number, produce=True))
        kill(process)
        wait_for(lambda: c.call("status")["connections"] == 2, "the end of the connection")
        told = c.call("join", lease=lease, page=page.number, produce=True)
        assert told["sequence"] == 3
        assert told["kept"] == [{"slot": 2, "sequence": 2, "info": [77, *[0] * 7]}]
        (member,) = c.call("members", lease=lease)["members"]
        c.notify("admit", lease=lease, member=member["member"], sequence=3)
        told = reader.response(joins)
        (seen,) = pages(reader, told)
        assert (told["producer"], told["sequence"]) == (page.number, 3)
        page.submit(4)
        assert seen.get() == (0, 4)
        assert [it["producer"] for it in c.call("channels")["channels"]] == [False, True]


@pytest.mark.parametrize("done", [DEAD, DEAD + 1, 1 << 63, 2**64 - 1])
def test_owner_that_leaves_no_value_holds_nobody(daemon, done):
    """A wait of a stream is a cyclic compare: left as it is, it would never end."""
    process = in_child(daemon, signals_and_stays, [2**64 - 1], [done])
    with daemon.client() as c:
        seen = open_timeline(c, "t")
        kill(process)
        wait_for(seen.is_dead, "its end")
        assert seen.landed() == 0


def test_stop_leaves_pages_to_their_owners(start):
    """They live on, and so does what they have submitted."""
    d = start()
    with d.client() as c, d.client() as other:
        page = named(c, "t")
        seen = open_timeline(other, "t")
        page.submit(3)
        assert d.stop() == 0
        assert seen.get() == (0, 3)
        page.land(3)
        assert seen.get() == (3, 3)


@pytest.mark.parametrize("hung_up", [False, True])
def test_stop_lets_those_go_who_wait_for_a_process_that_has_exited(start, hung_up):
    """The loop may be told of the stop before it is told of the exit, whose end takes it several turns."""
    d, n = start(), 100
    with d.client() as c:
        mine, its = fork.Pipe()

        def run():
            client = d.client()
            for i in range(n):
                named(client, f"t{i}").submit(3)
            client.call("ping")
            its.send(None)
            its.recv()
            client.close() if hung_up else None
            its.send(None)
            time.sleep(DEADLINE)

        process = fork.Process(target=run)
        process.start()
        mine.recv()
        seen = [open_timeline(c, f"t{i}") for i in range(n)]
        mine.send(None)
        mine.recv()
        wait_for(lambda: d.status()["timelines"] == (0 if hung_up else n), "the state")
        with d.paused():
            d.process.send_signal(sig.SIGTERM)
            kill(process)
        assert d.process.wait(DEADLINE) == 0
        assert all(page.is_dead() and page.landed() == 0 for page in seen)


def test_stop_after_a_hang_up_leaves_pages_to_their_owners(start):
    d = start()
    process, pipe = hung_up_with_a_page(d)
    assert d.stop() == 0
    pipe.send(None)
    assert pipe.recv() == (0, 3)
    process.join()


def test_sigkill_of_the_daemon_leaves_pages(start):
    d = start()
    with d.client() as c:
        page = named(c, "t")
        page.submit(3)
        d.kill()
        assert page.get() == (0, 3)


# ---- limits ----


def test_pages_leave_fds_to_others(start):
    """However many a uid may have: the daemon can still take up connections, and make blocks."""
    d = start(config="[limits]\npages = 100000\n", max_fds=512)
    assert "[limits] pages is 32 rather than 100000: all uids together have room for 64" in d.text()
    with d.client() as c:
        mine = [own_page(c) for _ in range(512 // 4 // 2 // 2)]
        assert "32" in str(refused(LIMIT, c.call, "page"))
        with d.client() as other:
            for kind in ("device", "pinned"):
                other.call("create", typestr="|u1", shape=[MIB], exclusive=True, memory=kind)
        give_up(c, *mine)
        own_page(c)


def takes_pages(client, n):
    for _ in range(n):
        own_page(client)


@needs_root
def test_one_uid_leaves_pages_to_others():
    with public_daemon("[limits]\npages = 100000\n", max_fds=512) as d, d.client() as c:
        process = in_child(d, takes_pages, 32, uid=BOB)
        mine = [own_page(c) for _ in range(32)]
        with pytest.raises(AssertionError):  # there is none left
            in_child(d, takes_pages, 1, uid=BOB + 1)
        give_up(c, *mine)
        kill(process)


def test_limit_of_pages_that_fits_is_left_alone(start):
    assert "[limits] pages" not in start(config="[limits]\npages = 100\n").text()
