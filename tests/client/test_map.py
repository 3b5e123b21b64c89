# SPDX-License-Identifier: Apache-2.0
"""caidctl map: what it says of memory, and what it draws of it."""
import collections
import itertools
import os
import re
import xml.etree.ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli import Client, caidctl, read_json, run_daemon, wait_until

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(name="socket", scope="module")
def _socket(tmp_path_factory):
    path = tmp_path_factory.mktemp("map")
    (path / "conf").write_text("[user-pools]\nlegacy = yes\n[memory]\nmax_pending_age = 60m\n")
    with run_daemon(path / "s", path / "conf"):
        yield path / "s"


@pytest.fixture(name="client")
def _client(socket):
    client = Client(socket)
    yield client
    for array in read_json(socket, "list")["arrays"]:
        client.unlink(array["name"])
    client.close()
    wait_until(lambda: read_json(socket, "status")["connections"] == 1)
    caidctl("flush", socket=socket)


def read_ranges(socket):
    """By block; each is tiled."""
    ranges = read_json(socket, "map")["ranges"]
    blocks = collections.OrderedDict()
    for piece in ranges:
        blocks.setdefault((piece["pool"], piece["block"]), []).append(piece)
    assert list(blocks) == sorted(blocks), "block by block"
    for pieces in blocks.values():
        end = 0
        for piece in pieces:
            assert piece["offset"] == end and piece["bytes"] > 0
            end += piece["bytes"]
        assert end == pieces[0]["block_size"]
        assert not any(a["state"] == b["state"] == "free" for a, b in itertools.pairwise(pieces))
    return blocks


def total(blocks, *states, is_empty=False):
    """Bytes of blocks that are empty, or not."""
    return sum(piece["bytes"] for pieces in blocks.values() for piece in pieces
               if piece["state"] in states and (len(pieces) == 1 and states == ("free",)) == is_empty)


SIZES = st.sampled_from([1, 511, 512, 4096, 100_000, 3 << 20, 5 << 20])
STEPS = st.lists(st.one_of(
    st.tuples(st.just("create"), st.booleans(), SIZES),
    st.tuples(st.sampled_from(["close", "unlink"]), st.integers(0, 31))), min_size=1, max_size=40)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, deferred=st.booleans())
def test_ranges_tile_their_blocks(socket, steps, deferred):
    client, names, sizes = Client(socket), {}, itertools.count()
    if deferred:
        client.defer()
    try:
        for what, *args in steps:
            if what == "create":
                name = f"{next(sizes)}" if args[0] else None
                client.create(name, (args[1],), "|u1")
                names.update({name: args[1]} if name else {})
            elif what == "close" and client.arrays:
                client.close_array(args[0] % len(client.arrays))
            elif what == "unlink" and names:
                name = sorted(names)[args[0] % len(names)]
                client.unlink(name)
                del names[name]
        wait_until(lambda: read_json(socket, "status")["leases"] == len(client.arrays))
        blocks, (pool,) = read_ranges(socket), read_json(socket, "show")["pools"]
        pieces = [piece for pieces in blocks.values() for piece in pieces]
        assert {p["name"]: p["nbytes"] for p in pieces if p["state"] == "array" and
                p["name"] in names} == names
        assert all(p["nbytes"] <= p["bytes"] for p in pieces if p["state"] == "array")
        assert total(blocks, "array") == pool["allocated"]
        assert total(blocks, "pending") == pool["pending"]
        assert sum(p["bytes"] for p in pieces) == pool["used"]
        assert len(blocks) == pool["blocks"]
        assert total(blocks, "free", is_empty=True) == pool["reserve"]
        assert all(p["held"] == deferred for p in pieces if p["state"] == "pending")
    finally:
        for name in names:
            client.unlink(name)
        client.close()
        wait_until(lambda: read_json(socket, "status")["connections"] == 1)


def read_svg(socket, path, *args):
    done = caidctl("map", f"--svg={path}", *args, socket=socket)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return xml.etree.ElementTree.parse(path).getroot()


def titles(svg):
    return [title.text.split("\n") for title in svg.iter(SVG + "title")]


HOSTILE = {
    "</title><script>x</script>": "</title><script>x</script>",
    "a\"b'c&amp;]]>": "a\"b'c&amp;]]>",
    "rtl\u202eoverride": r"rtl\xe2\x80\xaeoverride",
    "no\uffffcharacter": r"no\xef\xbf\xbfcharacter",
    "line\u2028break": r"line\xe2\x80\xa8break",
    "שלום/日本語": "שלום/日本語",
}


def test_svg_has_each_name_once_and_escaped(socket, client, tmp_path):
    for name in HOSTILE:
        client.create(name, (700_000,), "|u1")
    svg = read_svg(socket, tmp_path / "map.svg")
    assert svg.tag == SVG + "svg" and not list(svg.iter(SVG + "script"))
    names = collections.Counter(title[0] for title in titles(svg))
    assert all(names[shown] == 1 for shown in HOSTILE.values()), names
    for title in titles(svg):
        if title[0] in HOSTILE.values():
            assert re.fullmatch(r"array, 684\.0 KiB, [\d.]+ [KM]?i?B into block \d+", title[1])
            assert re.sub(r"\d+s", "", title[-1]) == f"held by pid {os.getpid()} of {title[2].split()[-1]}, rw for , maker"
    for rect in svg.iter(SVG + "rect"):
        right = float(rect.get("x")) + float(rect.get("width"))
        assert 0 < float(rect.get("x")) < right <= float(svg.get("width"))
        assert float(rect.get("y")) + float(rect.get("height")) <= float(svg.get("height"))


def test_terminal(socket, client):
    client.create("weights/embed", (3 << 20,), "|u1")
    client.create("evil\u202e", (4 << 20,), "|u1", memory="pinned")
    client.create("half", (2 << 20,), "|u1")
    lines = caidctl("map", socket=socket).stdout.splitlines()
    assert re.match(r"device 0, .*: 4\.0 GiB, caid has \d+\.\d MiB, ", lines[0])
    assert lines[1] == f"  uid:{os.getuid()}"
    for bar in (r"\d+: 4\.0 MiB +▌weights/embed █*·+", r"\d+: 4\.0 MiB pinned +▌evil\\xe2\\x80\\xae █+",
                r"\d+: \d+\.0 MiB +▌half █*·+"):
        assert any(re.fullmatch(r"    " + bar, line) for line in lines), lines
    assert max(map(len, lines)) <= 80


def test_what_is_pending_and_who_holds_it_back(socket, client, tmp_path):
    client.defer()
    client.create(None, (1 << 20,), "|u1")
    client.close_array()
    wait_until(lambda: read_json(socket, "status")["pending"] == 1)
    (piece,) = [p for pieces in read_ranges(socket).values() for p in pieces if p["state"] == "pending"]
    assert piece["held"] and piece["holders"] == [] and piece["nbytes"] == 1 << 20
    (title,) = [t for t in titles(read_svg(socket, tmp_path / "map.svg")) if t[1].startswith("pending")]
    assert title[0] == "pending" and "held back by connections of that user" in title
    assert "▒" in caidctl("map", socket=socket).stdout


def test_a_file_that_cannot_be_written(socket, tmp_path):
    for path in (tmp_path / "none" / "x.svg", "/dev/full"):
        done = caidctl("map", f"--svg={path}", socket=socket)
        assert done.returncode == 1 and done.stderr.startswith(f"caidctl: {path}: ")
