# SPDX-License-Identifier: Apache-2.0
"""Several processes on one array."""

import os


WRITER = """
with caid.connect(name="writer") as c, c.create("shared", 1000, "<i4") as a:
    a.copy_from_host(b"abcd" * 1000)
    step("written")
    assert bytes(a[:1].copy_to_host(bytearray(4))) == b"WXYZ"
    step("seen")
"""

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
