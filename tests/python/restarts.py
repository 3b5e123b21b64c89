# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed and started again, and the keeper that has its memory meanwhile."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import threading

from conftest import PATIENCE_S, wait_until

import caid
from caid._session import _daemon

KEEPER = pathlib.Path(_daemon.find_daemon()).resolve().with_name("caid-keeper")


class Restarts:
    """In that folder; both run from the start on."""

    def __init__(self, folder, config=""):
        self.folder, self.address = folder, str(folder / "caid.sock")
        self.env = {"CAID_SOCKET": self.address}
        self.config = folder / "caid.conf"
        self.config.write_text(config)
        self.logs = {name: folder / f"{name}.log" for name in ("caid", "keeper")}
        self.process = None
        self.start_keeper()
        self.start()

    def run(self, name, *command, **env):
        with open(self.logs[name], "ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **env}
            )

    def start_keeper(self):
        self.keeper = self.run("keeper", KEEPER, f"--socket={self.folder}/keeper")
        wait_until(lambda: self.answers(self.folder / "keeper"))

    @staticmethod
    def answers(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                sock.connect(str(path))
                return True

    def launch(self, *under):
        (self.folder / "notify").unlink(missing_ok=True)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(self.folder / "notify"))
        self.notify.settimeout(PATIENCE_S)
        self.process = self.run(
            "caid", *under, _daemon.find_daemon(), "--foreground", f"--socket={self.address}",
            f"--config={self.config}", f"--keeper={self.folder}/keeper",
            NOTIFY_SOCKET=str(self.folder / "notify"), GLIBC_TUNABLES="glibc.malloc.hugetlb=1",  # as the unit has it
        )  # fmt: skip

    def start(self, *under, wait=True):
        self.launch(*under)
        wait_until(lambda: self.answers(self.address))
        if wait:
            self.wait()

    def wait(self):
        while b"READY=1" not in self.notify.recv(4096).split(b"\n"):
            pass

    def end(self, signum=signal.SIGKILL):
        self.process.send_signal(signum)
        assert self.ended() == (-signal.SIGKILL if signum == signal.SIGKILL else 0), self.log()

    def ended(self):
        """Its exit status."""
        self.notify.close()
        return self.process.wait(PATIENCE_S)

    def restart(self, signum=signal.SIGKILL):
        self.end(signum)
        self.start()

    def end_keeper(self):
        self.keeper.kill()
        self.keeper.wait()

    def connect(self):
        return caid.Client(self.address)

    def log(self):
        return self.logs["caid"].read_text()

    def kept(self):
        """What lies at the keeper: the targets of its fds."""
        folder = f"/proc/{self.keeper.pid}/fd"
        found = []
        for fd in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"{folder}/{fd}"))
        return found

    def kept_memory(self):
        """Its blocks, and pages."""
        return [f for f in self.kept() if f.startswith("/memfd:") and "caid-journal" not in f]

    def close(self):
        self.end(signal.SIGTERM)
        self.keeper.send_signal(signal.SIGTERM)
        assert self.keeper.wait(PATIENCE_S) == 0


class Deaf:
    """Between clients of this process and the daemon. While it loses answers, none arrives; once, it hangs up
    when it has passed on so many requests."""

    def __init__(self, restarts):
        self.there, self.loses, self.cuts_after, self.threads = restarts.address, False, 0, []
        self.address = str(restarts.folder / "deaf.sock")  # by the same folder they see the daemon
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(self.address)
        self.listening.listen()
        self.run(self.accept)

    def run(self, target, *args):
        self.threads.append(threading.Thread(target=target, args=args))
        self.threads[-1].start()

    def accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                self.run(self.serve, self.listening.accept()[0])

    def serve(self, client):
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            if daemon.connect_ex(self.there) == 0:
                asks = threading.Thread(target=self.pass_on, args=(client, daemon))
                asks.start()
                self.pass_on(daemon, client, answers=True)
                asks.join()

    def pass_on(self, source, sink, answers=False):
        n = 0
        with contextlib.suppress(OSError):
            while (got := socket.recv_fds(source, 1 << 16, 253))[0]:
                if not (answers and self.loses):
                    socket.send_fds(sink, [got[0]], got[1])
                for fd in got[1]:
                    os.close(fd)
                n += 1
                if n == self.cuts_after and not answers:
                    self.cuts_after = 0
                    break
        for sock in source, sink:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        """After its clients."""
        self.listening.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.listening.close()
