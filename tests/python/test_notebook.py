# SPDX-License-Identifier: Apache-2.0
"""A session at the prompt of Python, and of IPython where it is there, typed at a terminal: what README shows, views,
errors, Ctrl-C in each wait, completion, and an end with all of it still open."""

import fcntl
import importlib.util
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import termios

import pytest
from conftest import PATIENCE_S, wait_until

import caid

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
CTRL_C, CTRL_D, CTRL_U = "\x03", "\x04", "\x15"
IPYTHON = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--no-confirm-exit"]
KINDS = {"python": (["-q"], ">>> "), "ipython": (IPYTHON, r"In \[\d+\]: ")}


class Session:
    """An interpreter on a terminal that is wide enough for each line."""

    def __init__(self, kind, home):
        self.kind, (options, prompt) = kind, KINDS[kind]
        self.prompt, self.text = rf"(^|[\n\r]){prompt}", ""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 250, 0, 0))
        env = {**os.environ, "TERM": "dumb", "HOME": str(home), "IPYTHONDIR": str(home), "PYTHON_BASIC_REPL": "1"}
        # pylint: disable-next=consider-using-with,subprocess-popen-preexec-fn
        self.process = subprocess.Popen([sys.executable, *options], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        env=env, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.until(self.prompt)

    def read(self):
        """What has come; "" at the end."""
        assert select.select([self.master], [], [], PATIENCE_S)[0], "the session says nothing"
        try:
            return os.read(self.master, 65536).decode().replace("\r\n", "\n")
        except OSError:
            return ""

    def press(self, keys):
        os.write(self.master, keys.encode())

    def until(self, pattern):
        """What is said before that; what is said after it is for the next call."""
        while not (found := re.search(pattern, self.text)):
            new = self.read()
            assert new, f"the session has ended: {self.text}"
            self.text += new
        before, self.text = self.text[: found.start()], self.text[found.end() :]
        return before

    def answer(self):
        return self.until(self.prompt)

    def begin(self, line):
        """A line, or a block that an empty one ends, whose answer is not waited for."""
        *block, last = line.split("\n")
        for start in block:
            self.press(f"{start}\n")
            self.until(r"\n *\.\.\.:? ")
        self.press(f"{last}\n")
        self.until("\n")

    def type(self, line):
        self.begin(line)
        return self.answer().strip()

    def end(self, keys):
        """What is said at the end, and the status."""
        self.press(keys)
        while new := self.read():
            self.text += new
        return self.text, self.process.wait(PATIENCE_S)


@pytest.fixture(params=KINDS)
def session(request, tmp_path, soft):
    if request.param == "ipython" and not importlib.util.find_spec("IPython"):
        pytest.skip("IPython is not installed")
    s = Session(request.param, tmp_path)
    yield s
    s.process.kill()
    s.process.wait()
    os.close(s.master)


@pytest.fixture
def begun(session):
    """README's first lines have been typed, and a client of the test has found the session's daemon."""
    (block,) = re.findall(r"^```python\n(import caid, .*?)^```", README.read_text("utf-8"), re.M | re.S)
    for _ in range(2):  # a cell that is run again
        *lines, shown = [session.type(line) for line in block.splitlines()]
        assert lines == [""] * len(lines) and shown.endswith("786432.0")
    with caid.connect(session.type("print(d.address)")) as c:
        yield session, c


def test_values_and_views(begun):
    session, c = begun
    assert "<caid.LocalDaemon '/" in session.type("d") and "<caid.Client '/" in session.type("c")
    assert "<caid.Array 'weights' shape=(1024, 768) typestr='<f4' device=0 mode='r'>" in session.type("r")
    assert session.type("v = w[1:3, ::256]; v.fill(2)") == ""
    assert session.type("v.shape").endswith("(2, 3)")
    assert session.type("w[0, 0] = 7") == ""
    assert session.type("r[0, 0].item()").endswith("7.0") and session.type("float(r[1, 256])").endswith("2.0")
    assert session.type("np.asarray(r)[:3, 0]").endswith("array([7., 2., 2.], dtype=float32)")
    with c.open("weights") as weights:
        assert weights[2, :2].tolist() == [2, 1]
    for line, error in [
        ("r[0, 0] = 7", "ReadOnlyError: array 'weights' is read-only"),
        ("np.asarray(r)[0, 0] = 7", "ValueError: assignment destination is read-only"),
        ("w + 1", "TypeError: a caid.Array is not computed with"),
        ('c.open("wieghts")', 'NotFoundError: no array "wieghts"'),
        ("caid.LocalDeamon", "AttributeError: module 'caid' has no attribute 'LocalDeamon'"),
    ]:
        assert error in session.type(line).splitlines()[-1]


def n_waits(c):
    return c.status().watches + c.show("weights").entry.waiting


def test_ctrl_c_in_each_wait(begun):
    session, c = begun
    with c.open("weights", "rw") as weights, weights.write() as v:
        for line in (
            'c.open("later", wait=True)',
            'for change in c.watch("later"):\n    pass\n',
            "with r.read() as x:\n    pass\n",
            "with w.write() as x:\n    pass\n",
        ):
            n = n_waits(c)
            session.begin(line)
            wait_until(lambda: n_waits(c) > n)
            session.press(CTRL_C)
            assert session.answer().rstrip(": \n").endswith("KeyboardInterrupt")
        wait_until(lambda: c.show("weights").entry.waiting == 0)
        v.fill(3)
    assert session.type("with r.read() as x:\n    print(x[9, 9].item())\n").endswith("3.0")
    session.press(CTRL_C)  # at the prompt: it ends no daemon
    session.answer()
    assert session.type("c.ping(); c.status().pid == d.pid").endswith("True")


def test_completion(session):
    assert session.type("import caid; d = caid.LocalDaemon(); c = d.connect()") == ""
    if session.kind == "ipython":  # its Tab and Jupyter's ask this
        session.type("import warnings; warnings.simplefilter('ignore'); completions = get_ipython().Completer.completions")
        assert "text='LocalDaemon'" in session.type("list(completions('caid.Loc', 8))")
        assert "text='open_timeline'" in session.type("list(completions('c.op', 4))")
        return
    if "GNU readline" not in session.type("import readline; print(readline.__doc__)"):
        pytest.skip("this Python's completion is not GNU readline's")
    session.press("caid.Loc\t")
    session.until(r"caid\.LocalDaemon\(")
    session.press(f"{CTRL_U}c.op\t\t\t")
    for name in ("open", "open_many", "open_set", "open_timeline"):
        session.until(rf"c\.{name}\(")


@pytest.mark.parametrize("keys, a_thread_waits", [(CTRL_D, False), ("exit()\n", True)])
def test_an_end_with_all_open(begun, keys, a_thread_waits):
    session, c = begun
    pid, folder = c.status().pid, pathlib.Path(session.type("print(d.address)")).parent
    assert session.type("b = w.write(); v = b.begin()") == ""
    if a_thread_waits:
        session.type("import threading; threading.Thread(target=c.open, args=['later'], kwargs={'wait': True}, daemon=True).start()")
        wait_until(lambda: c.status().watches == 1)
    said, status = session.end(keys)
    assert status == 0 and (a_thread_waits or "Traceback" not in said), said
    wait_until(lambda: not folder.exists() and not pathlib.Path(f"/proc/{pid}").exists())
