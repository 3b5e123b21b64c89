# SPDX-License-Identifier: Apache-2.0
"""Bad input: what each costs who sends it, and that it costs nobody else anything (I6)."""

import contextlib
import struct

import pytest
import raw
from conftest import fd_count, wait_for
from raw import pack

PROTOCOL, VERSION, UNKNOWN_METHOD, INVALID, LIMIT = 1, 2, 3, 4, 10


@pytest.fixture
def bystander(daemon):
    """A client that must not notice, whatever the test does."""
    with daemon.client() as c:
        c.call("create", name="bystander", typestr="<f4", shape=[16])
        before = counts(c), shown(c)
        yield c
        assert (counts(c), shown(c)) == before


def shown(client):
    """The array and who holds it, but for their ages."""
    answer = client.call("show", name="bystander")
    for record in (*answer["entries"], *answer["holders"]):
        for age in ("age_ns", "published_ns", "opened_ns"):
            record.pop(age, None)
    return answer


def counts(client):
    status = client.call("status")
    return {k: status[k] for k in ("connections", "pools", "blocks", "arrays", "names", "leases", "jobs")}


def hello():
    return pack([0, 1, "hello", {"version_min": 1, "version_max": 1}])


def nested(depth):
    return b"\x91" * depth + b"\xc0"


MALFORMED = {
    "one byte": b"\xc1",
    "random": bytes(range(256)),
    "nil": pack(None),
    "a string": pack("hello"),
    "an empty array": pack([]),
    "an unknown kind": pack([3, 1, "ping", {}]),
    "a response": pack([1, 1, None, {}]),
    "a method that is a number": pack([0, 1, 7, {}]),
    "an id that is a string": pack([0, "1", "ping", {}]),
    "an id over 32 bits": pack([0, 1 << 32, "ping", {}]),
    "params that are a list": pack([0, 1, "ping", []]),
    "params missing": pack([0, 1, "ping"]),
    "one element more": pack([0, 1, "ping", {}, 0]),
    "truncated": pack([0, 1, "ping", {}])[:-1],
    "one byte more": pack([0, 1, "ping", {}]) + b"\xc0",
    "two objects": pack([0, 1, "ping", {}]) * 2,
    "nested too deep": b"\x94\x00\x01" + pack("ping") + b"\x81" + pack("x") + nested(100),
    "nested to the end": nested(60000),
    "an array of 2^32-1": b"\xdd\xff\xff\xff\xff",
    "a map of 2^32-1": b"\xdf\xff\xff\xff\xff",
    "a string of 2^32-1": b"\x94\x00\x01\xdb\xff\xff\xff\xffping",
    "too many items": b"\x94\x00\x01" + pack("ping") + b"\x81" + pack("x") + pack([None] * 20000),
    "a key twice": b"\x94\x00\x01" + pack("ping") + b"\x82" + (pack("x") + b"\x01") * 2,
    "a key that is a number": b"\x94\x00\x01" + pack("ping") + b"\x81\x01\x01",
    "no UTF-8": pack([0, 1, b"\xff\xfe", {}]),
    "a float": b"\x94\x00\x01" + pack("ping") + b"\x81" + pack("x") + b"\xcb" + struct.pack(">d", 1),
    "an extension": b"\x94\x00\x01" + pack("ping") + b"\x81" + pack("x") + b"\xd4\x00\x00",
}


@pytest.mark.parametrize("greeted", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("packet", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(daemon, bystander, packet, greeted):
    with daemon.client(hello=greeted) as c:
        c.send(packet)
        assert c.is_closed()


@pytest.mark.parametrize("n", [65537, 100000])
def test_oversized(daemon, bystander, n):
    with daemon.client() as c:
        c.send(pack([0, 1, "ping", {}]).ljust(n, b"\xc0"))
        assert c.is_closed()
    assert "too large" in daemon.text()


def test_largest(daemon, bystander):
    """A packet of exactly 64 KiB is one like any other."""
    with daemon.client() as c:
        head = pack([0, 1, "ping", {"x": "", "y": ""}])
        n = 65536 - len(head)
        packet = pack([0, 1, "ping", {"x": "x" * 60000, "y": "y" * (n - 60000)}])
        assert len(packet) == 65536
        c.send(packet)
        assert c.response(1) == {}


def test_empty_packet(daemon, bystander):
    with daemon.client() as c:
        c.send(b"")
        assert c.is_closed()


@pytest.mark.parametrize("n", [1, 253])
def test_fds_from_a_client(daemon, bystander, n):
    before = fd_count(daemon)
    with daemon.client() as c, open("/dev/null", "rb") as f:
        c.send(pack([0, 1, "ping", {}]), [f.fileno()] * n)
        assert c.is_closed()
    assert "or fds" in daemon.text()
    wait_for(lambda: fd_count(daemon) == before, "the end of all its fds")


def test_second_hello(daemon, bystander):
    with daemon.client() as c:
        c.send(hello())
        assert c.is_closed()
    assert "a second hello" in daemon.text()


@pytest.mark.parametrize("method", ["ping", "status", "create", "no_such_method"])
def test_anything_before_hello(daemon, bystander, method):
    with daemon.client(hello=False) as c:
        c.request(method)
        assert c.is_closed()


@pytest.mark.parametrize(
    "params, code",
    [
        ({"version_min": 2, "version_max": 9}, VERSION),
        ({"version_min": 0, "version_max": 0}, VERSION),
        ({"version_min": 1, "version_max": 0}, VERSION),
        ({}, PROTOCOL),
        ({"version_min": "1", "version_max": 1}, PROTOCOL),
        ({"version_min": -1, "version_max": 1}, PROTOCOL),
        ({"version_min": 1, "version_max": 1, "client": "x" * 65}, INVALID),
    ],
)
def test_bad_hello(daemon, bystander, params, code):
    """It is told why, and then disconnected."""
    with daemon.client(hello=False) as c:
        with pytest.raises(raw.Refused) as e:
            c.call("hello", **params)
        assert e.value.code == code
        assert c.is_closed()


def test_hello_of_a_newer_client(daemon, bystander):
    """Keys that are not known yet are no mistake."""
    with daemon.client(hello=False) as c:
        result = c.call("hello", version_min=1, version_max=7, features=["a", "b"], colour="red")
        assert result["version"] == 1


def test_unknown_method(daemon, bystander):
    with daemon.client() as c:
        with pytest.raises(raw.Refused, match="no_such_method") as e:
            c.call("no_such_method", x=1)
        assert e.value.code == UNKNOWN_METHOD
        c.notify("no_such_notification")
        assert c.call("ping") == {}


def test_request_as_notification(daemon, bystander):
    with daemon.client() as c:
        c.notify("ping")
        assert c.is_closed()


def test_notification_as_request(daemon, bystander):
    with daemon.client() as c:
        c.request("close", leases=[])
        assert c.is_closed()


def test_log_cannot_be_forged(daemon, bystander):
    with daemon.client() as c:
        with pytest.raises(raw.Refused):
            c.call("x\ncaid: error: forged")
        c.notify("close")  # without its parameter
        assert c.is_closed()
    assert not any(line.startswith("caid: error: forged") for line in daemon.text().splitlines())


def test_never_hello(start):
    """Closed after the timeout; who has said hello stays."""
    d = start(config="[daemon]\nhello_timeout = 200ms\n")
    with d.client() as greeted, d.client(hello=False) as silent, d.client(hello=False) as other:
        assert silent.is_closed()
        assert other.is_closed()
        assert greeted.call("ping") == {}
    assert "no hello in time" in d.text()


def test_end_is_explained_whatever_else_was_sent(daemon, bystander):
    """Unread packets behind a fatal one do not turn its answer into a reset."""
    with daemon.client(hello=False) as c:
        with daemon.paused():
            c.request("hello", version_min=2, version_max=2)
            for _ in range(20):
                c.request("ping")
        with pytest.raises(raw.Refused) as e:
            c.response(1)
        assert e.value.code == VERSION
        assert c.is_closed()


def test_too_many_connections(start):
    """Told so at hello; the place is free again when one of the others has gone."""
    d = start(config="[limits]\nconnections = 3\n")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(d.client()) for _ in range(3)]
        for _ in range(2):
            with pytest.raises(raw.Refused, match="limit of 3 connections") as e:
                d.client()
            assert e.value.code == LIMIT
        assert clients[0].call("status")["connections"] == 3
        clients[1].close()
        with d.client() as c:
            assert c.call("ping") == {}
    assert "the uid has 3 connections, as many as it may" in d.text()


def test_far_too_many_connections(start):
    """Even those that are refused are bounded, in number and time."""
    d = start(config="[limits]\nconnections = 1\n[daemon]\nhello_timeout = 300ms\n")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(d.client())
        silent = [stack.enter_context(d.client(hello=False)) for _ in range(200)]
        assert first.call("ping") == {}
        assert all(c.is_closed() for c in silent)
        with pytest.raises(raw.Refused, match="limit of 1 connections"):
            d.client()
        assert first.call("ping") == {}


def test_garbage_of_who_is_refused(start):
    d = start(config="[limits]\nconnections = 1\n")
    with d.client() as first:
        for packet in (b"\xc1", pack([2, "close", {"leases": []}]), pack([1, 1, None, {}])):
            with d.client(hello=False) as c:
                c.send(packet)
                assert c.is_closed()
        assert first.call("ping") == {}


def test_clients_cannot_fill_the_log(start):
    d = start("--log-level=info")
    for _ in range(200):
        with d.client() as c:
            c.send(b"\xc1")
            assert c.is_closed()
    assert d.text().count("a malformed packet") <= 60  # 20 in each 10 s


def test_packets_that_are_cut_anywhere(daemon, bystander):
    """Every prefix of a good packet is a bad one."""
    packet = pack([0, 2, "create", {"name": "x", "typestr": "<f4", "shape": [1, 2], "exclusive": True}])
    for n in range(1, len(packet)):
        with daemon.client() as c:
            c.send(packet[:n])
            assert c.is_closed()
