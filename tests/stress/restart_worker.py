# SPDX-License-Identifier: Apache-2.0
"""A client of stress_restart.py, which runs it: it changes names of its own, reads those of others, has arrays
without a name, sends some and takes those that others have sent, and notices nothing of its daemon's deaths. If it is
killed itself, the next worker goes on with its notes.

usage: restart_worker.py INDEX WORKERS NOTES
"""

import contextlib
import os
import pathlib
import pickle
import random
import sys
import threading
import time
import traceback
from multiprocessing.reduction import ForkingPickler

import numpy

import caid

INDEX, WORKERS = int(sys.argv[1]), int(sys.argv[2])
NAMES, SIZES = 6, (4, 250, 5000, 600_000)
GONE = 0  # the value of a name that is not there
NOT_THERE = (caid.DisconnectedError, caid.NoDaemonError, caid.NotReadyError, caid.ShutdownError)


class Notes:
    """Of each name what was acknowledged last, and what was asked for since."""

    def __init__(self, path):
        self.values, self.asked, self.last = {}, {}, INDEX
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        for line in open(path):
            self.take(*line.split())

    def take(self, what, name, value):
        self.last = max(self.last, int(value))
        self.asked.setdefault(name, set()).add(int(value))
        if what == "done":
            self.values[name], self.asked[name] = int(value), set()

    def write(self, what, name, value):
        os.write(self.fd, f"{what} {name} {value}\n".encode())
        self.take(what, name, value)

    def next(self):
        """No value is used twice; it tells whose it is."""
        return self.last // WORKERS * WORKERS + WORKERS + INDEX

    @contextlib.contextmanager
    def change(self, *names, value):
        for name in names:
            self.write("asked", name, value)
        yield value
        for name in names:
            self.write("done", name, value)


def look(client, name, values, index=INDEX):
    """What the name shows is one of those values, and whole."""
    try:
        with client.open(name) as a, a.read():
            found = set(a.copy_to_host().tolist())
    except caid.NotFoundError:
        found = {GONE}
    except caid.AbandonedError:  # its writer, or the daemon, was killed in the midst of it
        return
    assert len(found) == 1, f"{name}: {len(found)} values"
    (value,) = found
    assert value == GONE or value % WORKERS == index, f"{name}: {value} is another's"
    assert values is None or value in values, f"{name}: {value}, not of {values}"


def is_alive(pid):
    """A second after its death was noticed it has been waited for."""
    time.sleep(1)
    return os.path.exists(f"/proc/{pid}")


class Worker:
    def __init__(self, client, notes, rng, mail):
        self.client, self.notes, self.rng, self.mail = client, notes, rng, mail
        self.n_sent = 0
        self.arena = client.arena()
        self.own = {}  # arrays without a name, by their values
        self.beside(self.watch)

    def check(self):
        for name, value in self.notes.values.items():
            look(self.client, name, self.notes.asked[name] | {value})

    def array(self, value):
        a = self.client.empty(self.rng.choice(SIZES), "<i4")
        a.copy_from_host(numpy.full(a.shape, value, "<i4"))
        return a

    def name(self):
        return f"{INDEX}/{self.rng.randrange(NAMES)}"

    def publish(self):
        name = self.name()
        with self.notes.change(name, value=self.notes.next()) as value, self.array(value) as a:
            a.publish(name)

    def publish_many(self):
        with self.notes.change(f"{INDEX}s/x", f"{INDEX}s/y", value=self.notes.next()) as value:
            with self.array(value) as x, self.array(value) as y:
                self.client.publish_many(f"{INDEX}s/", {"x": x, "y": y})

    def publish_part(self):
        name = self.name()
        with self.notes.change(name, value=self.notes.next()) as value, self.arena.allocate(4000) as x:
            self.client.as_array(x).copy_from_host(numpy.full(1000, value, "<i4").view("u1"))
            self.arena.publish(name, x, shape=1000, dtype="<i4")

    def unlink(self):
        name = self.name()
        with self.notes.change(name, value=GONE):
            self.client.unlink(name, missing_ok=True)

    def write(self):
        """Handed over on a stream: the bracket ends before the work does."""
        name = self.name()
        with contextlib.suppress(caid.NotFoundError), self.client.open(name, "rw") as a, self.client.stream() as s:
            with self.notes.change(name, value=self.notes.next()) as value, a.write(s) as v:
                v.copy_from_host(numpy.full(v.shape, value, "<i4"), stream=s)

    def keep(self):
        value = self.notes.next() + len(self.own) * WORKERS
        self.own[value] = self.array(value)
        for value, a in self.own.items():
            assert set(a.copy_to_host().tolist()) == {value}
        if len(self.own) > 8:
            self.own.pop(self.rng.choice(list(self.own))).close()

    def send(self):
        """Into the folder that all share."""
        if len(list(self.mail.glob(f"sent-*-{os.getpid()}-*"))) > 4:
            return
        value, self.n_sent = self.notes.next(), self.n_sent + 1
        with self.array(value) as a:
            message = bytes(ForkingPickler.dumps(a))
        written = self.mail / f"written-{value}-{os.getpid()}-{self.n_sent}"
        written.write_bytes(message)
        written.rename(self.mail / written.name.replace("written", "sent"))

    def letter(self):
        """One that nobody else has, or None."""
        for letter in self.rng.sample(there := sorted(self.mail.glob("sent-*")), len(there)):
            with contextlib.suppress(FileNotFoundError):  # another one was first
                return letter.rename(self.mail / letter.name.replace("sent", "taken"))

    def take(self):
        """Whoever has the letter has the array, once; not whole, where its sender has died over it."""
        if not (letter := self.letter()):
            return
        _, value, pid, _ = letter.name.split("-")
        try:
            with pickle.loads(letter.read_bytes()) as a:
                assert set(a.copy_to_host().tolist()) == {int(value)}
        except caid.AbandonedError:
            assert not is_alive(pid), f"{letter} is lost"
        with pickle.loads(letter.read_bytes()) as again, contextlib.suppress(caid.NotFoundError):
            again.synchronize()
            raise AssertionError(f"{letter} is taken twice")
        letter.unlink()

    def beside(self, fn, *args):
        """In a thread, whose failure is the process's."""

        def run():
            try:
                fn(*args)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def watch(self):
        for _ in self.client.watch(f"{(INDEX + 1) % WORKERS}/0"):
            pass

    def follow(self, a, value):
        with a.read() as v:
            assert set(v.copy_to_host().tolist()) == {value}

    def wait(self):
        """A begin that waits for as long as the daemon may be killed in."""
        value = self.notes.next()
        with self.array(GONE) as a:
            with a.write() as v:
                follower = self.beside(self.follow, a, value)
                time.sleep(self.rng.random() * 0.2)
                v.copy_from_host(numpy.full(v.shape, value, "<i4"))
            follower.join()

    def read(self):
        index = self.rng.randrange(WORKERS)
        look(self.client, f"{index}/{self.rng.randrange(NAMES)}", None, index)

    def run(self):
        self.check()
        while True:
            step = self.rng.choice((
                self.publish, self.publish_many, self.publish_part, self.unlink, self.write, self.read, self.keep,
                self.send, self.take, self.wait,
            ))  # fmt: skip
            step()


def connected():
    while True:
        with contextlib.suppress(*NOT_THERE):
            return caid.default_client()  # which takes what others have sent, too


def main(path):
    notes, rng = Notes(path), random.Random(INDEX)
    with connected() as client:
        Worker(client, notes, rng, pathlib.Path(path).parent).run()


main(sys.argv[3])
