# SPDX-License-Identifier: Apache-2.0
"""Releaser: a thread that drops the objects that published parts keep alive, when nobody can reach the parts
any more.

The extension drops what a part has kept in ``Client.dispatch()`` and ``Client._dispatch_parts()``, where
an arena hears, too, that the memory of a part may be used again. A program need not call the former:
beside each client that has published a part there is a thread that calls the latter. It is started
before the first publish, and ends when all parts are gone, or when the client is closed, collected, or
has lost its daemon. One that dies of an exception is found by nobody: the next publish starts another.

It holds no client while it waits. Where it leaves the client's fd raised, for those who wait for a watch
or because another thread was about to read, it looks again, less and less often, or when more comes. A
forked child has none, and needs none: what it has inherited cannot be used there.

All end when the interpreter is about to, and are waited for: a thread that is ended with it, while what
it drops has let go of the GIL, is unwound, which std::terminate()s where C++ allows no exception (PyTorch's
destructors). One that a daemon holds up is waited for no longer than _EXIT_S.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
import time
from weakref import WeakKeyDictionary, ref

from .._base._errors import ClosedError, DisconnectedError, Error

_PAUSES_S = (0.001, 0.5)  # between polls of an fd that stays readable: the first, the longest
_EXIT_S = 5  # that the process's exit waits for all threads

# _lock guards these. It is never held over a wait. The garbage collector may run code that takes it, so it is
# reentrant.
_lock = threading.RLock()
_releasers: WeakKeyDictionary = WeakKeyDictionary()  # client: releaser
_running: set[_Releaser] = set()  # including those of closed clients
_exiting = False


class _Releaser:
    """The state of one such thread. Whoever pops one of its fds closes it."""

    def __init__(self, client):
        self.n_publishing = 0
        self.thread, self.starting = None, threading.RLock()
        self.dropping = threading.Lock()
        self.epoll, self.level = select.epoll(2), select.poll()
        self.waits, wakes = os.pipe()
        self.wakes = [wakes]
        try:
            # Edge-triggered: a watch's news keep the fd readable until somebody takes them.
            self.epoll.register(client.fileno(), select.EPOLLIN | select.EPOLLET)
            self.level.register(client.fileno(), select.POLLIN)
            self.epoll.register(self.waits, select.EPOLLIN)
        except BaseException:
            self.close()
            raise
        self.client = ref(client, self.stop)

    def start(self):
        """Starts the thread if need be. Every publish calls this first."""
        with self.starting:  # start() waits for the thread
            if self.thread is not None or _exiting:
                return
            fresh = [None]
            self.thread = threading.Thread(
                target=self.start_running, args=(fresh,), name="caid-releaser", daemon=True
            )
            _running.add(self)
            try:
                self.thread.start()
            except BaseException:
                with contextlib.suppress(IndexError):  # Ctrl-C: either the thread runs all the same, or it never will
                    fresh.pop()
                    _running.discard(self)
                    self.thread = None
                raise

    def stop(self, _client=None):
        """Ends the thread, by closing the other end of its pipe."""
        with contextlib.suppress(IndexError):
            os.close(self.wakes.pop())

    def close(self):
        """Closes the fds. Called by the thread, or where there is no thread."""
        self.stop()
        self.epoll.close()
        os.close(self.waits)

    def start_running(self, fresh):
        try:
            fresh.pop()
        except IndexError:
            return  # its starter has given it up
        self.run()

    def run(self):
        first, longest = _PAUSES_S
        pause = first
        try:
            goes_on = True
            while goes_on:
                raised = self.level.poll(0)
                more = self.epoll.poll(pause if raised else None)
                pause = first if more else min(2 * pause, longest)
                with self.dropping:
                    goes_on = self.wakes and _let_go(self)
        finally:
            _remove(self)
            self.close()
            _running.discard(self)


def _let_go(releaser):
    """Drops what gone parts have kept. Returns whether parts are left to wait for."""
    client = releaser.client()
    if client is None:
        return False
    try:
        client._dispatch_parts()
    except (ClosedError, DisconnectedError):
        end(client)
    except Error:
        pass  # the daemon refuses the request, which is made again after the next publish
    return not _is_over(client, releaser)


def _is_over(client, releaser):
    """Whether the releaser has nothing to do. If so, it is taken off the list."""
    with _lock:
        if _releasers.get(client) is not releaser:
            return True
        if releaser.n_publishing or client._n_kept:
            return False
        del _releasers[client]
        return True


def _remove(releaser):
    """Takes it off the list, as its thread ends for whatever reason."""
    client = releaser.client()
    with _lock:
        if client is not None and _releasers.get(client) is releaser:
            del _releasers[client]


# --- for the package ------------------------------------------------------------------------


@contextlib.contextmanager
def watching(client):
    """A block in which a part is published.

    Raises
    ------
    OSError, RuntimeError
        No fd, or no thread, is to be had.
    """
    releaser = _begin(client)
    try:
        releaser.start()
        yield
    finally:
        _end(client, releaser)


def _begin(client):
    with _lock:
        releaser = _releasers.get(client)
        if releaser is None:
            releaser = _releasers[client] = _Releaser(client)
        releaser.n_publishing += 1
        return releaser


def _end(client, releaser):
    with _lock:
        releaser.n_publishing -= 1
        unused = releaser.thread is None and not releaser.n_publishing
        if unused and _releasers.get(client) is releaser:
            del _releasers[client]
    if unused:
        releaser.close()
    else:
        look(client)


def read(client):
    """Reads what the daemon has sent, where the client has parts that it may be about."""
    if client._n_kept:
        with contextlib.suppress(Error):  # the next call that needs the daemon raises it
            client._dispatch_parts()
        look(client)


def look(client):
    """Ends a releaser that has nothing to do, after something may have been dropped."""
    releaser = _releasers.get(client) if _releasers else None
    if releaser is not None and _is_over(client, releaser):
        releaser.stop()


def finish(client):
    """Waits until the thread has dropped what it is dropping, since after the client's close that memory
    would be kept until the process ends. Waits _EXIT_S at most; does not wait on the thread itself, which may
    close the client by what it drops."""
    releaser = _releasers.get(client) if _releasers else None
    if releaser is not None and releaser.thread is not threading.current_thread():
        if releaser.dropping.acquire(timeout=_EXIT_S):
            releaser.dropping.release()


def end(client):
    """Ends the releaser of a client that is closed, or has lost its daemon."""
    with _lock:
        releaser = _releasers.pop(client, None)
    if releaser is not None:
        releaser.stop()


def _forget():
    """Closes the fds in a forked child, which has them and no thread."""
    global _lock
    _lock = threading.RLock()
    for releaser in list(_releasers.values()):
        releaser.close()
    _releasers.clear()
    _running.clear()


def _exit():
    """Ends all threads before the interpreter ends. What is published later is kept until the process
    exits."""
    global _exiting
    _exiting = True
    deadline = time.monotonic() + _EXIT_S
    running = list(_running)
    for releaser in running:
        releaser.stop()
    for releaser in running:
        releaser.thread.join(max(0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_forget)
atexit.register(_exit)
