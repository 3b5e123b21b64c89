# SPDX-License-Identifier: Apache-2.0
"""Progress of a load or save: a bar on a terminal, else a line after a second and every ten."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Callable

_GIB = 1 << 30
_FIRST, _EVERY = 1.0, 10.0  # seconds to the first line and between lines, if there is no terminal


def none(done: int, total: int) -> None:
    """A progress function that shows nothing."""


def shown(what: str, stream=None) -> Callable[[int, int], None]:
    """A function of (bytes done, bytes in all) that shows progress on a stream, by default stderr. The last call
    is the one with all done. Without a stream, or after an error of it, nothing is shown."""
    stream = stream or sys.stderr
    if stream is None:
        return none
    start = time.monotonic()
    last = start + _FIRST - _EVERY
    is_over = False

    def show(done: int, total: int) -> None:
        nonlocal is_over
        if not is_over:
            try:
                write(done, total)
            except (OSError, ValueError):
                is_over = True

    def write(done, total):
        nonlocal last, is_over
        now = time.monotonic()
        line = _line(what, done, total, now - start)
        is_over = done >= total
        if stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            end = "\n" if is_over else ""
            stream.write(f"\r\033[K{_bar(line, done, total, width)}{end}")
            stream.flush()
        elif is_over or now - last >= _EVERY:
            last = now
            print(line, file=stream, flush=True)

    return show


def _line(what, done, total, seconds):
    rate = done / seconds if seconds > 0 else 0
    left = f"{(total - done) / rate:.0f} s left" if rate and done < total else f"{seconds:.1f} s"
    return f"{what}: {done / _GIB:.2f} of {total / _GIB:.2f} GiB, {rate / _GIB:.2f} GiB/s, {left}"


def _bar(line, done, total, width):
    room = min(width - len(line) - 3, 40)
    if room < 4:
        return line[:width]
    full = room * done // total if total else room
    return f"{line} [{'#' * full}{'.' * (room - full)}]"
