# SPDX-License-Identifier: Apache-2.0
"""A dma-buf of an array's memory, by the driver: what tests/python/test_dmabuf.py shows where the kernel has udmabuf. Needs an NVIDIA GPU."""

import os

import pytest

import caid

NBYTES = 64 << 20


def test_the_fd_is_of_all_the_block_and_outlives_the_array(daemon):
    with daemon.connect() as c:
        if not c.devices[0].rdma:
            pytest.skip("the device gives its memory to no network card")
        with c.create("x", NBYTES, "|u1", exclusive=True) as a:
            block = c.show("x").block
            a.fill(7)
            with a.dmabuf() as first, a[1 << 20 :].dmabuf() as part:
                assert os.readlink(f"/proc/self/fd/{first.fd}") == "/dmabuf:"
                assert os.lseek(first.fd, 0, os.SEEK_END) == NBYTES and not os.get_inheritable(first.fd)
                assert (first.offset, first.nbytes) == (0, NBYTES)
                assert (part.offset, part.nbytes) == (1 << 20, NBYTES - (1 << 20))
            assert c.show("x").exported and (a.copy_to_host() == 7).all()
            left = a.dmabuf()
        with c.open("x") as read_only, pytest.raises(caid.ReadOnlyError):
            read_only.dmabuf()
        c.unlink("x")
        with c.create("y", NBYTES, "|u1", exclusive=True):
            assert c.show("y").block != block, "somebody may have it"
        c.unlink("y")
        with left:
            assert os.lseek(left.fd, 0, os.SEEK_END) == NBYTES
