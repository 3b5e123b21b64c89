# SPDX-License-Identifier: Apache-2.0
"""Lines of the log about who did what: with fields where there is a journal, as text where there is not."""

import contextlib
import itertools
import os
import pathlib
import random
import re
import socket
import tempfile

import pytest
from conftest import DEADLINE, MIB, as_user, needs_root, own_mounts, public_daemon, refused, wait_for
from test_reload import ALICE, TEAM, connect, create, pool, reload

EXISTS, QUOTA, LIMIT = 7, 9, 10  # proto/errors.def
BOB = 60002
MAN = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/man/caid.8.scd"
ROWS = re.findall(r"^_([0-9a-f]{32})_\n\t(\w+): (.*)$", MAN.read_text(), re.M)
IDS = {message_id: kind for message_id, kind, _ in ROWS}
FIELDS = {kind: set(re.findall(r"CAID_\w+", text)) for _, kind, text in ROWS}
# A /run of its own with the test's journal, to which stderr belongs.
SCRIPT = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal && mount --bind {} /run/systemd/journal && "
    'JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2) exec "$@"'
)


def parse(datagram):
    """Of the form for values of one line, which all are here."""
    assert datagram.endswith(b"\n")
    fields = [line.split("=", 1) for line in datagram.decode()[:-1].split("\n")]
    assert len(dict(fields)) == len(fields)
    return dict(fields)


class Journal:
    def __init__(self, folder):
        self.path = f"{folder}/socket"
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        self.sock.settimeout(DEADLINE)

    def next(self):
        """What the next line is, and its fields, all but those that each has."""
        fields = parse(self.sock.recv(1 << 16))
        assert (fields.pop("PRIORITY"), fields.pop("SYSLOG_IDENTIFIER")) == ("5", "caid")
        kind, text = IDS[fields.pop("MESSAGE_ID")], fields.pop("MESSAGE")
        assert fields.keys() <= FIELDS[kind]
        return kind, fields, text

    def fill(self):
        """How many packets that was."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            for n in itertools.count():
                try:
                    s.sendto(b"", self.path)
                except BlockingIOError:
                    return n


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="caid-") as path:
        os.chmod(path, 0o777)
        yield path


@contextlib.contextmanager
def journal_daemon(config, folder):
    prefix = own_mounts(SCRIPT.format(folder))
    journal = Journal(folder)
    with public_daemon(config, prefix=prefix) as d:
        yield d, journal


def random_name(rng):
    """Anything that a name may have, quotes, backslashes and what looks like a field among it."""
    pieces = ['"', "\\", "\\x22", "CAID_UID=0", " in pool ", "é", "\u2028", "\U0001f600", "%s%n", "a"]
    name = "".join(rng.choices(pieces, k=rng.randint(1, 60))).encode()[:255].decode(errors="ignore")
    return name or "a"


WAYS = {
    "unlink": ("remove", "unlinks"),
    "expire": ("remove", "sets a time to live for"),
    "rename": ("remove", "moves"),
    "publish": ("replace", "replaces"),
}


def do(c, way, name):
    more = {"expire": {"ttl_ns": 10**12}, "rename": {"to": os.urandom(4).hex()}}
    if way == "publish":
        lease = create(c, "p")["arrays"][0]["lease"]
        c.call("publish", lease=lease, name=name)
    else:
        c.call(way, name=name, pool="p", **more.get(way, {}))


@needs_root
def test_what_is_done_to_names_of_another_uid(folder):
    """Each way, by each of the other and the same uid, with names that would forge what is logged."""
    rng = random.Random(os.environ.get("CAID_TEST_SEED", 1))
    with journal_daemon(pool("p"), folder) as (d, journal), connect(d, ALICE, TEAM) as alice:
        for uid in (BOB, 0):
            for way, (kind, verb) in WAYS.items():
                name = random_name(rng)
                create(alice, "p", name)
                with connect(d, uid, uid) as other:
                    do(other, way, name)
                assert journal.next() == (
                    kind,
                    {
                        "CAID_UID": str(uid),
                        "CAID_PID": str(os.getpid()),
                        "CAID_CREATOR_UID": str(ALICE),
                        "CAID_POOL": "p",
                        "CAID_NAME": name,
                    },
                    f'pid {os.getpid()}, uid {uid} {verb} what uid {ALICE} created in pool "p": {name}',
                )
                if way == "expire":
                    alice.call("unlink", name=name, pool="p")
        for way in WAYS:  # of one's own: a refusal is the next line
            create(alice, "p", way)
            do(alice, way, way)
        with pytest.raises(TimeoutError):
            journal.sock.settimeout(0.2)
            journal.next()


@needs_root
def test_permission(folder):
    before = pool("a") + pool("b", quota="8M") + pool("c", owner=ALICE) + pool("d")
    after = pool("a", mode="0640") + pool("b", quota="16M") + pool("d") + pool("e") + "[user-pools]\nmode = 0644\n"
    with journal_daemon(before, folder) as (d, journal):
        reload(d, after)
        said = {fields["CAID_POOL"]: (kind, text) for kind, fields, text in (journal.next() for _ in range(5))}
        assert {kind for kind, _ in said.values()} == {"permission"}
        assert {name: text for name, (_, text) in said.items()} == {
            "a": '[pool "a"] is uid 0, gid 0, mode 0640, quota 0; it was uid 0, gid 0, mode 0666, quota 0',
            "b": f'[pool "b"] is uid 0, gid 0, mode 0666, quota {16 * MIB}; it was uid 0, gid 0, mode 0666, quota {8 * MIB}',
            "c": f'[pool "c"] is removed; it was uid {ALICE}, gid 0, mode 0666, quota 0',
            "e": '[pool "e"] is new: uid 0, gid 0, mode 0666, quota 0; it was not there',
            "uid:*": '[pool "uid:*"] is mode 0644, quota 0; it was mode 0600, quota 0',
        }


@needs_root
def test_refusals_by_a_limit(folder):
    """A pool's quota, a uid's limit, a connection: whoever is refused so, and for nothing else."""
    config = pool("p", quota="8M") + "[limits]\nnames = 1\nconnections = 2\n"
    with journal_daemon(config, folder) as (d, journal), connect(d, ALICE, TEAM) as c, connect(d, ALICE, TEAM):
        who = {"CAID_UID": str(ALICE), "CAID_PID": str(os.getpid())}
        refused(QUOTA, create, c, "p", mib=16)
        kind, fields, text = journal.next()
        assert (kind, fields) == ("limit", {**who, "CAID_POOL": "p"})
        assert f'uid {ALICE} is refused: pool "p": quota of 8 MiB exceeded by 8 MiB' in text
        create(c, "p", "a")
        refused(EXISTS, create, c, "p", "a")
        refused(LIMIT, create, c, "p", "b")
        assert journal.next()[:2] == ("limit", who)
        refused(LIMIT, connect, d, ALICE, TEAM)
        kind, fields, text = journal.next()
        assert (kind, fields) == ("limit", who)
        assert "has 2 connections, as many as it may" in text
        c.sock.send(b"x")
        assert c.is_closed()
        assert journal.next()[:2] == ("client", who)


@needs_root
@pytest.mark.parametrize("how", ["full", "gone"])
def test_a_journal_that_takes_nothing_is_not_waited_for(folder, how):
    """The line is text then, and the next one has fields again, when it does."""
    with journal_daemon(pool("p", quota="8M"), folder) as (d, journal), d.client() as c:
        if how == "full":
            n = journal.fill()
        else:
            os.rename(journal.path, f"{folder}/away")
        refused(QUOTA, create, c, "p", mib=16)
        wait_for(lambda: "<5>pid" in d.text(), "the line")
        if how == "full":
            for _ in range(n):
                assert journal.sock.recv(1) == b""
        else:
            os.rename(f"{folder}/away", journal.path)
        refused(QUOTA, create, c, "p", mib=16)
        assert journal.next()[0] == "limit"
        assert d.text().count("quota of 8 MiB") == 1


@needs_root
def test_nobody_fills_the_log_or_keeps_others_out():
    def many(c):
        for _ in range(70):
            refused(QUOTA, create, c, "p", mib=16)

    def once(c):
        refused(QUOTA, create, c, "p", mib=16)

    with public_daemon(pool("p", quota="8M")) as d:
        as_user(d, ALICE, [], many)
        as_user(d, BOB, [], once)
        reload(d, pool("p", quota="9M"))
        assert d.text().count(f", uid {ALICE} is refused") == 20
        assert d.text().count(f", uid {BOB} is refused") == 1
        assert '[pool "p"] is uid 0' in d.text()
        assert d.stop() == 0
        assert f"50 more lines about uid {ALICE} were left out" in d.text()


@needs_root
def test_more_uids_than_have_a_share():
    """The first 63 have theirs, and those after them one together."""
    uids = range(61000, 61063 + 5)

    def many(c):
        for _ in range(21):
            refused(QUOTA, create, c, "p", mib=16)

    with public_daemon(pool("p", quota="8M")) as d:
        for uid in uids:
            as_user(d, uid, [], many)
        assert [d.text().count(f", uid {uid} is refused") for uid in uids] == 63 * [20] + [20, 0, 0, 0, 0]
        assert d.stop() == 0
        assert d.text().count("1 more lines about uid") == 63
        assert "85 more lines about further uids were left out" in d.text()
