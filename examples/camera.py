# SPDX-License-Identifier: Apache-2.0
"""A camera of 60 frames a second, a viewer and a recorder, of a process each. The viewer takes the newest frame when it
is ready for one, and never holds the camera up; the recorder, on a channel of its own, gets every frame. Nobody copies
frames: with CuPy they stay on the GPU. Camera and viewer are killed meanwhile, and started again.

usage: camera.py [FRAMES]
"""

import multiprocessing
import statistics
import struct
import sys
import time
from ctypes import c_bool
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Callable, Iterator, Literal

import numpy as np

import caid

MEMORY: Literal["device", "pinned"]
try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
    MEMORY, STREAM = "device", xp.cuda.Stream.null
except Exception:
    xp, MEMORY, STREAM = np, "pinned", None

SHAPE = (480, 640, 3)


def capture(address: str, ready: Event, off: c_bool) -> None:
    with caid.connect(address) as client, client.channel("camera", SHAPE, memory=MEMORY) as newest, client.channel(
        "recording", SHAPE, mode="fifo", slots=32, memory=MEMORY
    ) as every:
        ready.set()
        ends = False
        while not ends:
            time.sleep(1 / 60)
            ends = off.value
            for channel in newest, every:
                with channel.put(STREAM) as frame:
                    xp.asarray(frame)[:] = frame.sequence % 256
                    frame.info = struct.pack("d?", time.monotonic(), ends)


def frames(channel: caid.Channel) -> Iterator[caid.Frame]:
    """Up to the camera's last one, whoever is the camera."""
    while True:
        try:
            for frame in channel.frames(STREAM, timeout=60):
                yield frame
                if frame.info[8]:
                    return
        except caid.AbandonedError:  # it was killed: another one comes
            pass


def look(frame: caid.Frame) -> None:
    pixels = xp.asarray(frame)
    assert pixels.min() == pixels.max() == frame.sequence % 256


def view(address: str, ready: Event) -> None:
    latencies, missed = [], 0
    with caid.connect(address) as client, client.open_channel("camera", wait=True) as channel:
        ready.set()
        for frame in frames(channel):
            latencies.append(time.monotonic() - struct.unpack_from("d", frame.info)[0])
            missed += frame.missed
            look(frame)
            time.sleep(0.03)
    print(f"the viewer saw {len(latencies)} of {len(latencies) + missed} frames, {statistics.median(latencies) * 1e6:.0f} us old")


def record(address: str, ready: Event) -> None:
    n, first = 0, 0
    with caid.connect(address) as client, client.open_channel("recording", wait=True) as channel:
        ready.set()
        for frame in frames(channel):
            look(frame)
            n, first = n + 1, first or frame.sequence
    print(f"the recorder has {n} of {frame.sequence - first + 1} frames")


def wait_for(channel: caid.Channel, n: int) -> None:
    for _ in zip(range(n), frames(channel)):
        pass


def main(n: int = 90) -> int:
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    off = spawn.RawValue(c_bool, False)  # no Event, which a process that is killed may leave locked

    def start(target: Callable[..., None], *args: object) -> BaseProcess:
        ready.clear()
        process = spawn.Process(target=target, args=(daemon.address, ready, *args), daemon=True)
        process.start()
        while not ready.wait(1):
            if process.exitcode is not None:
                sys.exit(f"{target.__name__} ended before it was ready")
        return process

    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        camera, viewer, recorder = start(capture, off), start(view), start(record)
        with client.open_channel("camera") as channel:
            wait_for(channel, n // 3)
            camera.kill()
            camera.join()
            camera = start(capture, off)
            wait_for(channel, n // 3)
            viewer.kill()
            viewer.join()
            viewer = start(view)
            wait_for(channel, n // 3)
        off.value = True
        for process in (camera, viewer, recorder):
            process.join()
        client.unlink("camera")
        client.unlink("recording")
    return sum(process.exitcode != 0 for process in (camera, viewer, recorder))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
