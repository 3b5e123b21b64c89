# SPDX-License-Identifier: Apache-2.0
"""caid-keeper under test, and a daemon's side of it by hand (daemon/keep_wire.h)."""

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import time

from conftest import BUILD, DEADLINE, daemon_env, wait_for

PROGRAM = BUILD / "bin" / "caid-keeper"
PUT, DROP, TAKE, END, MAP, KILL, MAPPED = range(1, 8)
VERSION = 2
MAX = 253  # numbers in a packet


def packet(kind, numbers=(), version=VERSION):
    return struct.pack(f"=HHI{len(numbers)}I", version, kind, len(numbers), *numbers)


class Keeper:
    def __init__(self, folder, wait=True):
        self.address = folder / "keeper"
        self.log = folder / "keeper.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, f"--socket={self.address}"], env=daemon_env(CAID_LOG="debug"), stderr=log
            )
        if wait:
            self.connect().close()
            wait_for(lambda: self.text().endswith("the daemon has gone; 0 files kept\n"), "rest")
        self.n_fds = self.count()

    def text(self):
        return self.log.read_text()

    def count(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def connect(self):
        def attempt():
            assert self.process.poll() is None, self.text()
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return Link(self.address)

        return wait_for(attempt, "the keeper")

    @contextlib.contextmanager
    def paused(self):
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def end(self, signum):
        self.process.send_signal(signum)
        return self.process.wait(DEADLINE)


class Link:
    """A connection to a keeper."""

    def __init__(self, address):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(DEADLINE)
        try:
            self.sock.connect(str(address))
        except OSError:
            self.sock.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def send(self, data, fds=()):
        while True:
            try:
                return socket.send_fds(self.sock, [data], fds)
            except OSError as e:  # too much is in flight
                if e.errno != errno.ETOOMANYREFS:
                    raise
                time.sleep(0.01)

    def put(self, files):
        """files: fds by number."""
        for some in slices(sorted(files)):
            self.send(packet(PUT, some), [files[number] for number in some])

    def map(self, number, fd):
        """The keeper's answer: an errno."""
        self.send(packet(MAP, [number]), [fd])
        kind, (mapped, error), _ = self.receive()
        assert (kind, mapped) == (MAPPED, number)
        return error

    def drop(self, numbers):
        for some in slices(sorted(numbers)):
            self.send(packet(DROP, some))

    def receive(self):
        """Kind, numbers, fds; None at the end."""
        data, fds, flags, _ = socket.recv_fds(self.sock, 4096, MAX)
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if not data:
            return None
        version, kind, n = struct.unpack_from("=HHI", data)
        assert version == VERSION
        return kind, struct.unpack_from(f"={n}I", data, 8), fds

    def take(self):
        """The inode of what the keeper has, by number; and its limit. It has all that was sent before."""
        self.send(packet(TAKE))
        found = {}
        while True:
            kind, numbers, fds = self.receive()
            if kind == END:
                return found, numbers[0]
            assert kind == PUT and len(numbers) == len(fds)
            found.update((number, os.fstat(fd).st_ino) for number, fd in zip(numbers, fds))
            for fd in fds:
                os.close(fd)

    def has_heard(self):
        return bool(select.select([self.sock], [], [], 0.1)[0])

    def is_hung_up(self):
        try:
            return self.receive() is None
        except ConnectionResetError:
            return True


def slices(numbers):
    return [numbers[i : i + MAX] for i in range(0, len(numbers), MAX)]
