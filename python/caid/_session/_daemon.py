# SPDX-License-Identifier: Apache-2.0
"""LocalDaemon: a private daemon for notebooks and tests."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from typing import Any

from .._base._errors import NoDaemonError
from ._client import Client

_POLL_S = 0.05  # how often a daemon that is starting is looked after
_STOP_S = 10.0  # what it has for a clean stop
_LOG_TAIL = 4000  # characters of its log in an error

_NOT_SERVING = "STATUS=Not serving yet: "  # what it tells of an attempt at its driver that has failed
_FALLBACK = "NO CUDA DEVICE ANSWERS"  # what it logs when the software driver steps in, and then the reason
_told_of_fallback = False

_SOCKET = "caid.sock"
_SOCKET_PATH_MAX = 107  # bytes; unix(7)
_SHORT_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")  # used where $TMPDIR is too long

_SYS_PIDFD_OPEN = 434  # the same number on all machines

# Variables of the service manager that runs this process: not for the daemon.
_NOT_INHERITED = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID")


def find_daemon():
    """The daemon's program: ``$CAID_DAEMON``, that of this package, or that on ``$PATH``."""
    candidates = [os.environ.get("CAID_DAEMON"), pathlib.Path(__file__).parents[1] / "bin" / "caid"]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which("caid")
    if not found:
        raise FileNotFoundError(
            errno.ENOENT, "the daemon is not in $CAID_DAEMON, this package or $PATH", "caid"
        )
    return found


class LocalDaemon:
    """A daemon of one's own, in a temporary directory that only this user can enter. Where $TMPDIR is too
    long for the path of a socket, that is in /tmp, /var/tmp or /dev/shm.

    Parameters
    ----------
    driver : str, optional
        "auto", "cuda", "soft" or the path of a CUDA driver; see caid(8). With "auto", the default, the first
        daemon that falls back to the software driver is told of on standard error.
    config : str or os.PathLike, optional
        The text of a caid.conf(5), or the path of one. Without it there are only defaults:
        the system's configuration is not read.
    devices : int, optional
        How many devices the software driver has.
    memory : int or str, optional
        How much memory each of them has: bytes, or as "1G".
    env : dict, optional
        More environment for the daemon.
    supervise : bool
        Start the daemon again when it dies; clients go on, and nothing is lost: ``caid --supervise``,
        see caid(8).
    timeout : float
        Seconds that it may take to start.

    Attributes
    ----------
    address : str
        Its socket.
    pid : int
        Of the process that was started. With `supervise` the daemon is its child:
        ``connect().status().pid``.
    env : dict
        Environment for other processes that are to use this daemon: the socket, and what was
        set for the software driver, which is to be the same in all of them.

    Raises
    ------
    NoDaemonError
        It did not start; the message ends with what it logged. A driver that does not answer at the first
        attempt is not waited for. Or there is no directory whose path is short enough.

    Notes
    -----
    The daemon is stopped by stop(), by leaving the ``with`` block, when the object is collected, and when
    this process ends in any way, also for its child processes. (If the process is killed, the directory
    stays.) The daemon has a session of its own, so that Ctrl-C does not end it.
    """

    def __init__(
        self,
        *,
        driver: str | None = None,
        config: str | os.PathLike[str] | None = None,
        devices: int | None = None,
        memory: int | str | None = None,
        env: dict[str, str] | None = None,
        supervise: bool = False,
        timeout: float = 30.0,
    ):
        directory = _make_directory()
        self.address = str(directory / _SOCKET)
        self.env = {"CAID_SOCKET": self.address}
        if devices is not None:
            self.env["CAID_SOFTCUDA_DEVICES"] = str(devices)
        if memory is not None:
            self.env["CAID_SOFTCUDA_MEMORY"] = str(memory)
        self._log = directory / "log"
        try:
            self._process = self._start(directory, driver, config, env or {}, supervise, timeout)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self.pid = self._process.pid
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _stop, self._process, directory, self._owner)

    def _start(self, directory, driver, config, env, supervise, timeout):
        mode = "--supervise" if supervise else "--foreground"
        command = [find_daemon(), mode, f"--socket={self.address}"]
        command.append(f"--config={_config_path(directory, config)}")
        if driver is not None:
            command.append(f"--driver={driver}")
        environment = {**os.environ, **self.env, **env}
        for name in _NOT_INHERITED:
            environment.pop(name, None)
        notify = directory / "notify"
        environment["NOTIFY_SOCKET"] = str(notify)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(str(notify))
            with open(self._log, "wb") as log, _own_pidfd() as pidfd:
                process = subprocess.Popen(
                    [*command, f"--stop-fd={pidfd}"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    pass_fds=[pidfd],
                    start_new_session=True,
                )
            try:
                self._await_ready(process, ready, timeout)
            except BaseException:
                _end(process)
                raise
        self._tell_of_fallback()
        return process

    def _await_ready(self, process, ready, timeout):
        deadline = time.monotonic() + timeout
        ready.settimeout(_POLL_S)
        while time.monotonic() < deadline:
            try:
                told = ready.recv(4096).decode(errors="replace").split("\n")
            except socket.timeout:
                if process.poll() is not None:
                    raise self._failure(f"it ended with status {process.returncode}") from None
                continue
            why = [line[len(_NOT_SERVING) :] for line in told if line.startswith(_NOT_SERVING)]
            if "READY=1" not in told and why:
                raise self._failure(why[0])
            if "READY=1" in told and not why:  # else its driver merely takes long
                return
        raise self._failure(f"it was not ready within {timeout} s")

    def _tell_of_fallback(self):
        global _told_of_fallback
        lines = self.log().splitlines()
        found = next((i for i, line in enumerate(lines) if _FALLBACK in line), None)
        if found is not None and not _told_of_fallback:
            _told_of_fallback = True
            print("\n".join(lines[found : found + 2]), file=sys.stderr)

    def _failure(self, what):
        log = self.log()[-_LOG_TAIL:].strip()
        return NoDaemonError(errno.ECONNREFUSED, f"caid did not start: {what}\n{log}".strip())

    def log(self) -> str:
        """What the daemon has logged so far: str. Empty once it was stopped."""
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def connect(self, **kwargs: Any) -> Client:
        """A :class:`Client` of this daemon; `kwargs` are its parameters.

        This process's software driver is set up by its own environment: where `devices` or `memory` are not
        the defaults, put `env` into ``os.environ`` before the first client.
        """
        return Client(self.address, **kwargs)

    def stop(self) -> int | None:
        """Stops the daemon and waits for its end. Idempotent. Returns its exit status: 0 for a
        clean stop, None if it was stopped before."""
        return self._finalizer()

    def __enter__(self) -> LocalDaemon:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def __del__(self, _warn=warnings.warn):
        finalizer = getattr(self, "_finalizer", None)
        if finalizer is not None and finalizer.alive and os.getpid() == self._owner:
            _warn(f"unstopped {self!r}", ResourceWarning, source=self)

    def __repr__(self):
        state = f"pid={self.pid}" if self._finalizer.alive else "stopped"
        return f"<caid.LocalDaemon {self.address!r} {state}>"


@contextlib.contextmanager
def _own_pidfd():
    """A pidfd of this process, by which the daemon sees its end. A pipe would stay open in forked
    children."""
    if hasattr(os, "pidfd_open"):
        pidfd = os.pidfd_open(os.getpid())
    else:  # a Python that was built with old headers
        libc = ctypes.CDLL(None, use_errno=True)
        pidfd = libc.syscall(ctypes.c_long(_SYS_PIDFD_OPEN), os.getpid(), 0)
        if pidfd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _make_directory():
    """Makes a temporary directory of mode 0700 whose path leaves room for a socket's name."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="caid-"))
    if len(os.fsencode(directory / _SOCKET)) <= _SOCKET_PATH_MAX:
        return directory
    directory.rmdir()
    for parent in _SHORT_DIRECTORIES:
        with contextlib.suppress(OSError):
            return pathlib.Path(tempfile.mkdtemp(prefix="caid-", dir=parent))
    raise NoDaemonError(
        errno.ENAMETOOLONG,
        f"{directory / _SOCKET}: a socket's path has at most {_SOCKET_PATH_MAX} bytes, and no directory can be"
        f" made in {', '.join(_SHORT_DIRECTORIES)}: $TMPDIR says where else",
    )


def _config_path(directory, config):
    if isinstance(config, os.PathLike):
        return os.fspath(config)
    path = directory / "caid.conf"
    path.write_text(config or "", encoding="utf-8")
    return str(path)


def _stop(process, directory, owner):
    if os.getpid() != owner:  # a forked child has the object, but not the daemon
        process.returncode = 0  # so that Popen does not warn
        return None
    status = _end(process)
    shutil.rmtree(directory, ignore_errors=True)
    return status


def _end(process):
    """Ends a child that was not waited for yet, so that its pid was not reused."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
