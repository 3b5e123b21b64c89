# SPDX-License-Identifier: Apache-2.0
"""Threads that move chunks between files and a device, by page-locked memory: while one half of a
thread's memory is copied, the other one is read or written."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Callable, Iterable, Iterator

import numpy

_THREADS = 8


def run(
    client: Any,
    device: int,
    chunks: Iterable,
    size: int,
    move: Callable[[Slot, Any], None],
    progress: Callable[[int], None],
) -> None:
    """Calls move(slot, chunk) for each chunk, by several threads, and progress(bytes done) by this one.

    What move() leaves on the slot's stream is done before its memory is used again, and all of it when
    this returns. The first exception of one ends all and is raised, as is one of progress(), and
    Ctrl-C.
    """
    threads = max(min(_THREADS, os.cpu_count() or 1), 1)
    with contextlib.ExitStack() as stack:
        pinned = stack.enter_context(
            client.empty((threads, 2, size), "|u1", memory="pinned", device=device)
        )
        memory = numpy.asarray(pinned)
        lanes = [stack.enter_context(_Lane(client, device, halves)) for halves in memory]
        work = _Work(chunks, move)
        for lane in lanes:
            work.start(lane)
        work.finish(progress)


class Slot:
    """Half of a thread's memory, and the stream that it is copied on."""

    def __init__(self, client, device, stream, memory):
        self.memory = memory  # page-locked: ndarray of bytes
        self.stream = stream
        self._copied = client.event(device)

    def wait(self):
        """Until what was left on the stream has been done."""
        self._copied.synchronize()

    def copied(self):
        self._copied.record(self.stream)

    def close(self):
        self._copied.close()


class _Lane:
    """What a thread has."""

    def __init__(self, client, device, halves):
        self._stream = client.stream(device, non_blocking=True)
        self.slots = [Slot(client, device, self._stream, half) for half in halves]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.synchronize()
        for slot in self.slots:
            slot.close()
        self._stream.close()


class _Work:
    """The chunks that are left, and what has become of the others."""

    def __init__(self, chunks, move):
        self._chunks: Iterator = iter(chunks)
        self._move = move
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._done = 0
        self._failed: BaseException | None = None

    def start(self, lane):
        thread = threading.Thread(target=self._run, args=(lane,), name="caid-weights", daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self, progress):
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(0.1)
                    progress(self._done)
        except BaseException as e:
            self._fail(e)
        for thread in self._threads:
            thread.join()
        if self._failed is not None:
            raise self._failed

    def _fail(self, e):
        with self._lock:
            self._failed = self._failed or e

    def _next(self):
        with self._lock:
            return None if self._failed else next(self._chunks, None)

    def _run(self, lane):
        try:
            turn = 0
            while (chunk := self._next()) is not None:
                slot = lane.slots[turn % 2]
                slot.wait()
                self._move(slot, chunk)
                slot.copied()
                with self._lock:
                    self._done += chunk.nbytes
                turn += 1
        except BaseException as e:
            self._fail(e)


def read(fd, view, offset, path):
    """Fills a view from a file. Raises EOFError."""
    view = memoryview(view)
    while view.nbytes:
        n = os.preadv(fd, [view], offset)
        if n == 0:
            raise EOFError(f"{path}: it has become shorter while it was read")
        view, offset = view[n:], offset + n


def write(fd, view, offset):
    view = memoryview(view)
    while view.nbytes:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n
