# SPDX-License-Identifier: Apache-2.0
"""Array.dmabuf(): who may, what the daemon does with such memory from then on, and the object.

The software driver makes a dma-buf where the kernel has /dev/udmabuf. Elsewhere the call fails, after the daemon was
told, which is what most of the tests here are about.
"""

import contextlib
import copy
import gc
import mmap
import os

import numpy
import pytest
from conftest import refuses, wait_until
from restarts import Restarts

import caid
from caid._memory import _dmabuf, _layout

# An array that ends is freed at once; an empty block stays in reserve.
KEEPS = "[memory]\nmax_pending_count = 0\nmax_pending_age = 60m\n"


def export(array):
    """Closes what it gets: the daemon's part is the same with and without."""
    if os.path.exists("/dev/udmabuf"):
        with array.dmabuf() as d:
            assert os.lseek(d.fd, 0, os.SEEK_END) == 2 << 20
    else:
        with pytest.raises(caid.UnsupportedError, match=r"by /dev/udmabuf: .*NOT_SUPPORTED"):
            array.dmabuf()


def reserve(client):
    return client.memory_info().reserve >> 20


def test_who_may(client, soft):
    def refused(error, why, array):
        with pytest.raises(error, match=why):
            array.dmabuf()

    with client.create("a", 4, "<i4") as a, client.create("b", 4, "<i4", exclusive=True) as b:
        refused(caid.InvalidError, "shares its block with others: make it with exclusive", a)
        with client.open("b") as reader:
            refused(caid.ReadOnlyError, 'opened "r"', reader)
        with client.empty(4, "<i4", memory="pinned", exclusive=True) as c:
            refused(caid.UnsupportedError, "memory of a device", c)
        refused(caid.UnsupportedError, "not in the daemon's memory", caid.from_cuda_array_interface(a.__cuda_array_interface__, a, client=client))
        b[1:].publish("part")
        with client.open("part", "rw") as part:
            refused(caid.InvalidError, "lies in the memory of another one", part)
        client.unlink("part")
        assert not client.show("a").exported and not client.show("b").exported
        export(b)
        assert client.show("b").exported and not client.show("a").exported
    with refuses(caid.ClosedError):
        b.dmabuf()


@pytest.fixture
def restarts(tmp_path):
    with contextlib.closing(Restarts(tmp_path, KEEPS)) as r:
        yield r


def test_such_memory_serves_nobody_else(restarts, soft):
    """After the daemon was killed. Other blocks of its size go on serving."""
    with restarts.connect() as c:
        with c.create("x", 4, "<i4", exclusive=True) as x, c.create("y", 4, "<i4", exclusive=True) as y:
            export(x)
            export(x)
            blocks = [c.show(name).block for name in "xy"]
            restarts.restart()
            assert [c.show(name).exported for name in "xy"] == [True, False]
            for name in "xy":
                c.unlink(name)
        del x, y
        gc.collect()
        wait_until(lambda: c.status().arrays == 0)
        wait_until(lambda: c.status().blocks == 1)  # the driver has x's
        assert reserve(c) == 2 and c.memory_info().used == 2 << 20
        with c.create("z", 4, "<i4", exclusive=True), c.create("w", 4, "<i4", exclusive=True):
            found = [c.show(name).block for name in "zw"]
            assert found[0] == blocks[1] and found[1] not in blocks


def test_pending_memory_makes_room_in_its_pool(tmp_path, soft):
    """Where the quota is reached, what is in the queue goes, whether it was exported or not."""
    with caid.LocalDaemon(config="[memory]\nmax_pending_age = 60m\n[user-pools]\nquota = 2M\n") as d, d.connect() as c:
        x = c.empty(4, "<i4", exclusive=True)
        export(x)
        available = c.memory_info().available
        x.close()
        wait_until(lambda: c.status().pending == 1)
        assert c.memory_info().available == available, "it would serve another array"
        c.empty(4, "<i4", exclusive=True).close()


def test_contents_are_seen_through_it(client, soft):
    if not os.path.exists("/dev/udmabuf"):
        pytest.skip("the kernel has no /dev/udmabuf")
    with client.empty(1024, "<i4", exclusive=True) as a:
        a.copy_from_host(numpy.arange(1024, dtype="<i4"))
        d = a[256:].dmabuf()
        assert not os.get_inheritable(d.fd)
    with d, mmap.mmap(d.fd, 2 << 20) as m:  # the array has gone
        seen = numpy.frombuffer(m[d.offset : d.offset + d.nbytes], "<i4")
        numpy.testing.assert_array_equal(seen, numpy.arange(256, 1024))


# --- the object -----------------------------------------------------------------------------


class Lease:
    """Whose "dma-buf" is an fd of a pipe; the array lies 64 bytes into it."""

    ptr = 1 << 20

    def _dmabuf(self):
        self.pipe, fd = os.pipe()
        return fd, 64


def made(shape=(3, 2)):
    lease = Lease()
    element = caid._base._typestr.element_of("<i4", 4, None)
    d = _dmabuf.make(lease, _layout.Layout(lease.ptr + 16, shape, (16, 4), element, False))
    return d, lease.pipe


def has_ended(pipe):
    """Nobody has the other end."""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False


def end_by_with(d):
    with d as entered:
        assert entered is d


@pytest.mark.parametrize("end", [caid.DmaBuf.close, end_by_with, lambda d: None], ids=["close", "with", "garbage"])
def test_it_owns_its_fd(end):
    d, pipe = made()
    assert (d.offset, d.nbytes, d.fileno(), d.closed) == (80, 40, d.fd, False)
    assert repr(d) == f"<caid.DmaBuf fd {d.fd}: 40 bytes at 80>"
    with refuses(TypeError):
        copy.copy(d)
    assert not has_ended(pipe)
    end(d)
    if d.closed:
        d.close()
        with refuses(caid.ClosedError):
            d.fileno()
        with refuses(caid.ClosedError):
            d.__enter__()
        assert repr(d).startswith("<caid.DmaBuf closed")
    del d
    gc.collect()
    assert has_ended(pipe)
    os.close(pipe)


def test_of_no_elements_there_are_no_bytes():
    d, pipe = made((0, 2))
    assert (d.offset, d.nbytes) == (80, 0)
    d.close()
    os.close(pipe)


def test_it_is_not_made_by_hand():
    with refuses(TypeError):
        caid.DmaBuf()
