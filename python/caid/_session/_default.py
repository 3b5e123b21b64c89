# SPDX-License-Identifier: Apache-2.0
"""The client that functions use where they are given none. caid.connect() makes it on first use. It belongs
to the process: users do not close it, and a forked child gets its own."""

from __future__ import annotations

import os
import select
import threading

from .._base._errors import Error
from .._memory import _dlpack_export
from ._client import Client


class _Default(Client):
    """A default client, which ends with the process, without a warning."""

    __slots__ = ()

    def __del__(self):
        pass


_locks: dict = {}  # by process id: a forked child must not wait for a lock of its parent's
_daemons: dict = {}  # (process id, socket; None: that connect() finds): client


def default_client() -> Client:
    """The client that functions such as :func:`caid.to_device` use where they are given none.

    It is made by the first call, as :func:`caid.connect` does it without arguments, and again after
    it was closed, or its daemon has gone, or in a forked child. One whose daemon has gone is not
    closed: its arrays stay usable.

    Raises
    ------
    NoDaemonError
        Nobody listens at the socket.
    """
    return _client_at(None)


def client_of(socket: str) -> Client:
    """The client for what another process has sent that uses the daemon at that socket: one of the
    same daemon where root or this user runs it, else default_client()."""
    try:  # a symbolic link's own owner counts
        is_trusted = os.lstat(socket).st_uid in (0, os.geteuid())
    except OSError:
        is_trusted = False
    if not is_trusted:
        return default_client()
    for (pid, _), client in list(_daemons.items()):
        if pid == os.getpid() and client._socket == socket and _is_alive(client):
            return client
    return _client_at(socket)


def client_at(daemon_id: str) -> Client:
    """A client of this process's at that daemon, where the process has one of its own or has been sent
    arrays from there; else default_client()."""
    for (pid, _), client in list(_daemons.items()):
        if pid == os.getpid() and client.daemon_id == daemon_id and _is_alive(client):
            return client
    return default_client()


def _client_at(socket):
    key = os.getpid(), socket
    with _locks.setdefault(os.getpid(), threading.Lock()):
        client = _daemons.get(key)
        if client is None or not _is_alive(client):
            client = _daemons[key] = _Default(socket)
        return client


def _is_alive(client):
    """Whether a client is open, and its daemon there. Does not call dispatch(), which would take news that
    others wait for."""
    try:
        if _has_heard(client):  # perhaps the daemon's end
            client.ping()
    except Error:
        return False
    return not client.closed


def _has_heard(client):
    """Whether the daemon has sent something; True where that cannot be found out."""
    try:
        poll = select.poll()
        poll.register(client.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except OSError:
        return True


_dlpack_export.default_client = default_client
