# SPDX-License-Identifier: Apache-2.0
"""A camera, two viewers and a recorder, of a process each. A viewer takes the newest frame when it is ready for one, and
never holds the camera up; the recorder gets each frame. Nobody copies frames: with CuPy they are looked at on the GPU.

usage: camera.py [LOOKS]
"""

import multiprocessing
import sys
import time
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event

import numpy as np

import caid

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
except Exception:
    xp = np


def capture(address: str, off: Event, recording: "SimpleQueue[caid.Array | None]") -> None:
    with caid.connect(address) as client:
        i = 0
        while not off.wait(1 / 60):
            image = np.full((480, 640, 3), i % 256, "u1")
            with client.array(image) as frame:
                frame.publish("camera", metadata={"frame": i})  # who has an older one open keeps that
                recording.put(frame)  # has sent it when it returns, as Queue.put() has not
            i += 1
        client.unlink("camera")
        recording.put(None)


def view(address: str, looks: int, seconds: float) -> None:
    frames = []
    with caid.connect(address) as client, client.watch("camera") as changes:
        for change in changes:
            if not change.generation:  # it is not on yet
                continue
            with client.open("camera") as frame:
                pixels, i = xp.asarray(frame), frame.metadata["frame"]
                assert pixels.min() == pixels.max() == i % 256
            frames.append(i)
            if len(frames) == looks:
                break
            time.sleep(seconds)
    print(f"a viewer saw {len(set(frames))} of {frames[-1] - frames[0] + 1} frames")


def record(recording: "SimpleQueue[caid.Array | None]") -> None:
    n = 0
    for frame in iter(recording.get, None):
        with frame:
            assert frame.metadata["frame"] == n and (frame.copy_to_host() == n % 256).all()
        n += 1
    print(f"the recorder has all {n} frames")


def main(looks: int = 20) -> int:
    spawn = multiprocessing.get_context("spawn")
    off, recording = spawn.Event(), spawn.SimpleQueue()
    with caid.LocalDaemon() as daemon:
        viewers = [spawn.Process(target=view, args=(daemon.address, looks, pause)) for pause in (0, 0.1)]
        camera = spawn.Process(target=capture, args=(daemon.address, off, recording))
        recorder = spawn.Process(target=record, args=(recording,))
        for process in (*viewers, camera, recorder):
            process.start()
        for process in viewers:
            process.join()
        off.set()
        camera.join()
        recorder.join()
    return sum(process.exitcode != 0 for process in (*viewers, camera, recorder))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
