# SPDX-License-Identifier: Apache-2.0
"""Loads weights from a file straight into caid's memory by CuPy, publishes them under a name, and
lets another process work with them: one copy on the GPU, whoever comes and goes.

usage: publish_weights_cupy.py

Needs an NVIDIA GPU and CuPy. It runs on a daemon of its own; where one is installed, leave
LocalDaemon out.
"""

import os
import subprocess
import sys
import tempfile

import numpy

import caid

try:
    import cupy
except ImportError as e:
    sys.exit(f"{sys.argv[0]} needs an NVIDIA GPU and CuPy: {e}")
if not cupy.cuda.is_available():
    sys.exit(f"{sys.argv[0]} needs an NVIDIA GPU, and CuPy finds none")

import caid.cupy  # noqa: E402

SHAPE = (1024, 768)


def load(path: str) -> cupy.ndarray:
    """From the pages of the file to the GPU: no array between them."""
    on_disk = numpy.load(path, mmap_mode="r")
    weights = cupy.empty(on_disk.shape, on_disk.dtype)
    weights.set(on_disk)
    return weights


def publish(path: str) -> None:
    allocator = caid.cupy.Allocator()
    cupy.cuda.set_allocator(allocator.malloc)
    weights = load(path)
    generation = caid.cupy.publish("weights", weights, metadata={"file": os.path.basename(path)})
    print(f"published generation {generation}; {allocator.arena().info}", flush=True)


def use(path: str) -> None:
    """Another process: it opens the name, and sees the same memory."""
    with caid.connect() as client, client.open("weights") as array:
        weights = cupy.from_dlpack(array)
        print(f"opened {array}, {array.metadata}")
        right = bool((weights == cupy.asarray(numpy.load(path))).all())
        print("the same bytes" if right else "other bytes")
        del weights


def main() -> None:
    if len(sys.argv) > 1:
        return use(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, caid.LocalDaemon() as daemon:
        os.environ.update(daemon.env)
        path = os.path.join(folder, "weights.npy")
        numpy.save(path, numpy.random.default_rng(1).random(SHAPE, numpy.float32))
        publish(path)
        subprocess.run([sys.executable, __file__, path], check=True)


if __name__ == "__main__":
    main()
