# SPDX-License-Identifier: Apache-2.0
"""Several processes on one array."""

import os

from conftest import wait_until

WRITER = """
with caid.connect(name="writer") as c, c.create("shared", 1000, "<i4") as a:
    a.copy_from_host(b"abcd" * 1000)
    step("written")
    assert bytes(a[:1].copy_to_host(bytearray(4))) == b"WXYZ"
    step("seen")
"""

HOLDER = """
with caid.connect(name="holder") as c:
    held = [c.open("named", "rw"), c.empty(1 << 20, "|u1"), c.create("by the dead", 4, "|u1")]
    held[2].copy_from_host(b"left")
    step("holding")
"""


def held(client):
    client.flush()
    info = client.memory_info()
    return info.used, info.blocks, info.arrays, info.pending, info.reserve


def test_the_same_memory_in_another_process(child, client):
    c = child(WRITER)
    c.expect("written")
    with client.open("shared", "rw") as a:
        assert a.copy_to_host(bytearray(4000)) == b"abcd" * 1000
        a[:1].copy_from_host(b"WXYZ")
        c.go()
        c.expect("seen")
        c.go()
        assert c.finish() == (0, "")
        assert bytes(a[:2].copy_to_host(bytearray(8))) == b"WXYZabcd"


def test_show_tells_who_holds_what(child, client):
    c = child(WRITER)
    c.expect("written")
    with client.open("shared") as a:
        details = client.show("shared")
        assert details.entry.leases == 2
        holders = {(h.client, h.pid, h.uid, h.readonly) for h in details.holders}
        assert ("writer", c.pid, os.getuid(), False) in holders
        assert os.getpid() in {pid for _, pid, _, readonly in holders if readonly}
        assert details.block == a._memory.block and details.offset == a._memory.offset
        assert details.block_size % client.devices[0].granularity == 0
    c.kill()


def test_a_killed_process_gives_its_memory_back(child, client):
    """All but what has a name: that outlives whoever made it."""
    with client.create("named", 4, "|u1") as a:
        a.copy_from_host(b"data")
        before, free = held(client), client.memory_info().free
        c = child(HOLDER)
        c.expect("holding")
        during = client.memory_info()
        assert during.arrays == 3 and during.used >= before[0]
        assert client.show("named").entry.leases == 2
        c.kill()
        wait_until(lambda: client.show("named").entry.leases == 1)
        wait_until(lambda: client.memory_info().arrays == 2)
        assert bytes(a.copy_to_host(bytearray(4))) == b"data"
        with client.open("by the dead") as b:
            assert bytes(b.copy_to_host(bytearray(4))) == b"left"
        client.unlink("by the dead")
        wait_until(lambda: held(client) == before)
        if client.host_accessible:
            wait_until(lambda: client.memory_info().free == free)


def test_many_processes_open_many_arrays(child, client):
    names = [f"n/{i:03}" for i in range(100)]
    for i, name in enumerate(names):
        with client.create(name, 16, "|u1") as a:
            a.copy_from_host(bytes([i]) * 16)
    code = """
        with caid.connect() as c:
            names = [entry.name for entry in c.list(prefix="n/")]
            arrays = c.open_many(names)
            right = [bytes(a.copy_to_host(bytearray(16))) == bytes([i]) * 16
                     for i, a in enumerate(arrays)]
            assert len(right) == 100 and all(right)
            assert [a.name for a in arrays] == names
            step("right")
            for a in arrays:
                a.close()
    """
    children = [child(code) for _ in range(3)]
    for c in children:
        c.expect("right")
    assert client.status().leases == 300
    for c in children:
        c.go()
        assert c.finish() == (0, "")
