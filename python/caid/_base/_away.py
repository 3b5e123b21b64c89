# SPDX-License-Identifier: Apache-2.0
"""Calls that wait, for coroutines: by a thread of their own, or by looking again and again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from typing import Any, Callable

from ._errors import TimedOutError, check_timeout

_FIRST_S, _MOST_S = 0.0001, 0.005  # seconds between two looks, at first and at most


async def until(look: Callable[[], Any], timeout: float | None = None, fileno: Callable[[], int] | None = None) -> Any:
    """What look() returns, which raises TimedOutError as long as there is nothing: after the timeout that is raised.
    It looks again and again or, where there is a fileno(), when that fd is readable. Other tasks have a turn before it,
    since there may always be something."""
    check_timeout(timeout)
    await asyncio.sleep(0)
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_S
    while True:
        is_over = deadline is not None and time.monotonic() >= deadline
        try:
            return look()
        except TimedOutError:
            if is_over:
                raise
        if fileno is not None:
            await _readable(fileno, deadline)
        else:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MOST_S)


async def _readable(fileno, deadline):
    """Waits for a duplicate of the fd, which others may wait for, too, or close."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    own = os.dup(fileno())
    try:
        fileno()  # raises if it may have been closed before it was duplicated
        loop.add_reader(own, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait([ready], timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
        finally:
            loop.remove_reader(own)
    finally:
        os.close(own)


class Away:
    """A thread that makes calls in their order, until it is stopped. It holds nobody up who exits."""

    def __init__(self, name: str):
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self):
        for call in iter(self._calls.get, None):
            call()

    def stop(self) -> None:
        """Ends the thread after the calls that were given to it."""
        self._calls.put(None)

    async def call(self, do: Callable[[], Any], undo: Callable[[], Any] | None = None) -> Any:
        """What do() returns or raises. Where the coroutine is cancelled meanwhile, the call goes on, and
        undo() comes after it, if it succeeds."""
        one = _Call(do, undo)
        self._calls.put(one)
        try:
            return await one.future
        except BaseException:
            one.leave()
            raise


async def once(do: Callable[[], Any], undo: Callable[[], Any] | None = None) -> Any:
    """What do() returns, in a thread for that alone. See Away.call()."""
    away = Away("caid-call")
    try:
        return await away.call(do, undo)
    finally:
        away.stop()


async def enter(bracket: Any, begin: Callable[[], Any], end: Callable[[], Any]) -> Any:
    """What begin() returns, in a thread in which leave() ends the bracket, too: by its thread the daemon knows it."""
    away = Away("caid-bracket")
    try:
        views = await away.call(begin, end)
    except BaseException:
        away.stop()
        raise
    bracket._away = away
    return views


async def leave(bracket: Any, end: Callable[[], Any]) -> None:
    try:
        await bracket._away.call(end)
    finally:
        bracket._away.stop()


class _Call:
    def __init__(self, do, undo):
        self.do = do
        self.undo = undo
        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()
        self.lock = threading.Lock()
        self.is_left = False
        self.is_done = False  # with success

    def __call__(self):
        """Of the thread."""
        result = error = None
        try:
            result = self.do()
        except BaseException as e:
            error = e
        with self.lock:
            self.is_done = error is None
            is_left = self.is_left
        if is_left:
            self.take_back()
            return
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self.loop.call_soon_threadsafe(self.tell, result, error)

    def tell(self, result, error):
        if self.future.done():  # cancelled
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)

    def leave(self):
        """The coroutine waits no more, or has had an error."""
        with self.lock:
            self.is_left = True
            is_done = self.is_done
        if is_done:
            self.take_back()

    def take_back(self):
        if self.is_done and self.undo is not None:
            with contextlib.suppress(Exception):  # there is nobody to be told
                self.undo()
