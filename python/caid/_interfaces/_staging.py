# SPDX-License-Identifier: Apache-2.0
"""Threads that move bytes between files and a device, by page-locked memory."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
import traceback
from typing import Any, Callable, Iterable, Iterator

import numpy

from .._base._errors import SystemCallError

THREADS = min(12, os.cpu_count() or 1)
_PIECE = 4 << 20  # bytes


class Chunks:
    """Work that several threads share: what is left of it, and what has been done."""

    def __init__(self, chunks: Iterable):
        self._left: Iterator = iter(chunks)
        self._lock = threading.Lock()
        self.done = 0  # bytes

    def take(self):
        with self._lock:
            return next(self._left, None)

    def finished(self, chunk):
        with self._lock:
            self.done += chunk.nbytes

    def stop(self):
        with self._lock:
            self._left = iter(())


def run(
    work: Callable[[], None],
    stop: Callable[[], None],
    wait: Callable[[], None],
    n_threads: int | None = None,
) -> None:
    """Calls work() in several threads (THREADS), and wait() ten times a second in this one.

    What fails first, in a thread or in wait(), and Ctrl-C, calls stop(), which has every work() return
    soon, and is raised when all have.
    """
    failures: list[BaseException] = []

    def fail(e):
        failures.append(e)
        stop()

    def run_one():
        try:
            work()
        except BaseException as e:
            traceback.clear_frames(e.__traceback__)  # they have memory of a lane
            fail(e)

    threads = [threading.Thread(target=run_one, name="caid-weights") for _ in range(n_threads or THREADS)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                wait()
                thread.join(0.1)
        wait()
    except BaseException as e:
        fail(e)
    while any(thread.is_alive() for thread in threads):  # they have the caller's files and memory
        try:
            time.sleep(0.001)
        except BaseException as e:  # Ctrl-C once more
            fail(e)
    if failures:
        try:
            raise failures[0]
        finally:
            failures.clear()  # its traceback has the frames of those who have the list


class Slot:
    """Half of a lane's memory, and the stream that it is copied on."""

    def __init__(self, lane: Lane, memory: Any):
        self.memory = memory  # page-locked: ndarray of bytes
        self.stream = lane.stream
        self.copied = lane.client.event(lane.device)


class Lane:
    """What a thread moves by: while one half of its memory is copied, the other one is read or written."""

    def __init__(self, client: Any, device: int, size: int):
        self.client, self.device = client, device
        with contextlib.ExitStack() as stack:
            pinned = client.empty((2, size), "|u1", memory="pinned", device=device)
            halves = numpy.asarray(stack.enter_context(pinned))
            self.stream = client.stream(device, non_blocking=True)
            stack.callback(self.stream.close)
            self.slots = [Slot(self, half) for half in halves]
            for slot in self.slots:
                stack.callback(slot.copied.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self.stream.synchronize()

    def move(self, chunks: Chunks, each: Callable[[Slot, Any], None]) -> None:
        """Calls each(slot, chunk) for those that it gets. What that leaves on the slot's stream is done
        before the slot's memory is used again."""
        turn = 0
        while (chunk := chunks.take()) is not None:
            slot = self.slots[turn % 2]
            slot.copied.synchronize()
            each(slot, chunk)
            slot.copied.record(slot.stream)
            chunks.finished(chunk)
            turn += 1


def read(fd: int, view: Any, offset: int, path: str) -> None:
    """Fills a view from a file. Raises OSError, with ENODATA where that is too short."""
    view = memoryview(view)
    while view.nbytes:
        n = os.preadv(fd, [view], offset)
        if n == 0:
            raise SystemCallError(errno.ENODATA, f"{path}: the file has become shorter")
        view, offset = view[n:], offset + n


def write(fd: int, view: Any, offset: int) -> None:
    """Writes all of a view to a file."""
    view = memoryview(view)
    while view.nbytes:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def pieces(array: Any) -> Iterator[numpy.ndarray]:
    """The elements of an array in C order, as bytes on the host, a piece after the other."""
    if not array.nbytes:
        return
    if not array.is_c_contiguous():
        yield array.copy_to_host().reshape(-1).view("u1")
        return
    data = array.reshape(-1).view("|u1")
    for start in range(0, array.nbytes, _PIECE):
        with data[start : start + _PIECE] as part:
            yield part.copy_to_host()


def write_in_order(
    fd: int, header: bytes, data: Iterable, progress: Callable[[int], None] = lambda done: None
) -> None:
    """Writes to a pipe, from this thread, so that Ctrl-C ends it; calls progress() with how much of the data has
    been written."""
    done = -len(header)
    for part in itertools.chain([header], data):
        view = memoryview(part)
        while view.nbytes:
            n = os.write(fd, view)
            view, done = view[n:], done + n
        progress(max(done, 0))
