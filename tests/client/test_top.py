# SPDX-License-Identifier: Apache-2.0
"""caidctl top on a terminal that is emulated."""
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from cli import CAIDCTL, Client, caidctl, run_daemon

pyte = pytest.importorskip("pyte", reason="the emulated terminal")
if "left out" in caidctl("top", "--device=x").stderr:
    pytest.skip("built without ncurses", allow_module_level=True)


class Terminal:
    """caidctl on a screen of that size."""

    def __init__(self, *args, rows=30, columns=120):
        self.screen, self.master = pyte.Screen(columns, rows), None
        self.stream = pyte.ByteStream(self.screen)
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen([CAIDCTL, *args], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        env={**os.environ, "TERM": "linux"})
        os.close(slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def read(self):
        """What the screen shows once some output has come, or a while has passed."""
        if select.select([self.master], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                self.stream.feed(os.read(self.master, 65536))
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, pattern):
        deadline = time.monotonic() + 60
        while not re.search(pattern, text := self.read(), re.M):
            assert time.monotonic() < deadline, f"no {pattern!r} on the screen:\n{text}"
        return text

    def end(self, keys=b"q"):
        os.write(self.master, keys)
        status = self.process.wait(30)
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.stream.feed(os.read(self.master, 65536))
            except OSError:
                break
        os.close(self.master)
        return status


@pytest.fixture
def socket(tmp_path):
    with run_daemon(tmp_path / "s"):
        yield tmp_path / "s"


@pytest.fixture
def terminal(socket):
    started = []

    def start(*args, **size):
        started.append(Terminal(f"--socket={socket}", "top", "--delay=0.2", *args, **size))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def test_what_it_shows(socket, terminal):
    ann, bob = Client(socket, name="ann\u202e"), Client(socket, name="bob")
    ann.create("weights", (3 << 20,), "|u1")
    bob.open("weights")
    bob.create(None, (64 << 20,), "|u1")
    top = terminal()
    pid = os.getpid()
    text = top.wait_for(r"^q quit")
    assert re.search(r"^caid \S+, up \d+s: 3 clients, 2 arrays, 0\.0 opens/s, 0\.0 hand-offs/s$", text, re.M)
    assert re.search(r"^device 0 █+·+ caid \d+\.\d MiB, free \d\.\d GiB of 4\.0 GiB$", text, re.M)
    assert r"ann\xe2\x80\xae" in text
    rows = re.findall(rf"^uid:\S+ +{pid} +\S+ +(\S+) +\d+s +\d+s +(\d) +(\S+) MiB +0 +0 +0$", text, re.M)
    assert rows == [("bob", "2", "67.0"), ("ann\\xe2\\x80\\xae", "1", "3.0")], "the largest first"
    os.write(top.master, b"p")
    top.wait_for(r"ann\S+ .*\n.* bob ")
    os.write(top.master, b"h")
    text = top.wait_for(r" h held ")
    assert re.search(r"^ *POOL +PID +USER +CLIENT +AGE +HELD +ARRAYS +SIZE ", text, re.M)
    bracket = bob.arrays.pop()
    begun = bob.begin()
    ann_waits = ann.begin(write=True, wait=False)
    text = top.wait_for(r"^weights: pid \d+ \(ann\S+\) waits$")
    assert re.search(r"^weights: pid \d+ \(bob\) reads, and is waited for$", text, re.M)
    top.wait_for(r", [1-9]\d*\.\d hand-offs/s$")
    bob.end(begun)
    top.wait_for(r"(?s)\A(?!.* waits$)")
    assert top.end() == 0
    ann.response()
    ann.end(ann_waits)
    bob.arrays.append(bracket)
    ann.close()
    bob.close()


def test_batch(socket):
    """It needs no terminal, and -b is not --bytes."""
    client = Client(socket)
    client.create("a", (3 << 20,), "|u1")
    done = caidctl("top", "-b", "-n2", "-d0.1", socket=socket)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^caid \S+, up ", done.stdout, re.M)) == len(re.findall(r" maker +.* 3\.0 MiB ", done.stdout)) == 2
    assert "\x1b" not in done.stdout
    done = caidctl("top", "--batch", "--bytes", "--count=1", socket=socket)
    assert done.returncode == 0 and re.search(r" maker .* 3145728 ", done.stdout)
    assert caidctl("top", "-b", "--json", socket=socket).returncode == 1
    assert caidctl("list", "--batch", socket=socket).returncode == 1
    assert " 3145728 " in caidctl("list", "-b", socket=socket).stdout
    client.close()


def test_a_narrow_terminal_that_grows(socket, terminal):
    client = Client(socket)
    client.create("a", (1,))
    top = terminal(rows=5, columns=20)
    text = top.wait_for(r"^q quit")
    assert len(text.splitlines()) == 5 and "…" in text
    top.resize(40, 150)
    top.process.send_signal(signal.SIGWINCH)
    text = top.wait_for(r"(?s)WAITS\n.*\nq quit")  # the last line is drawn last
    assert text.splitlines()[-1].startswith("q quit") and len(text.splitlines()) == 40
    assert top.end() == 0
    client.close()


def test_it_goes_on_with_the_next_daemon(tmp_path):
    with run_daemon(tmp_path / "s"):
        top = Terminal(f"--socket={tmp_path / 's'}", "top", "-d", "0.2")
        top.wait_for("^q quit")
    top.wait_for(r"the daemon has gone")
    assert "device 0" in top.read(), "what was seen last stays"
    with run_daemon(tmp_path / "s"):
        top.wait_for("^q quit")
        assert top.end() == 0


def test_it_ends_by_itself(terminal):
    top = terminal("-n", "3")
    assert top.process.wait(30) == 0


def test_refused(socket):
    for args in ((), ("--json",), ("--delay=0",), ("-d", "x"), ("-d", "inf"), ("-n", "0"), ("--device=0",)):
        done = caidctl("top", *args, socket=socket)
        assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("caidctl: ")
