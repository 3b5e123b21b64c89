# SPDX-License-Identifier: Apache-2.0
"""Loads weights from a file straight into caid's memory by PyTorch, publishes them under a name, and
lets another process work with them: one copy on the GPU, whoever comes and goes.

usage: publish_weights_torch.py

Needs an NVIDIA GPU and PyTorch. It runs on a daemon of its own; where one is installed, leave
LocalDaemon out.
"""

import os
import subprocess
import sys
import tempfile

import numpy

import caid

try:
    import torch
except ImportError as e:
    sys.exit(f"{sys.argv[0]} needs an NVIDIA GPU and PyTorch: {e}")
if not torch.cuda.is_available():
    sys.exit(f"{sys.argv[0]} needs an NVIDIA GPU, and PyTorch finds none")

import caid.torch  # noqa: E402

SHAPE = (1024, 768)


def load(path: str, pool: caid.torch.MemPool) -> torch.Tensor:
    """From the pages of the file to the GPU: no tensor between them."""
    on_disk = torch.from_numpy(numpy.load(path, mmap_mode="c"))
    with torch.cuda.use_mem_pool(pool):
        weights = torch.empty(on_disk.shape, dtype=on_disk.dtype, device="cuda")
    return weights.copy_(on_disk)


def publish(path: str) -> None:
    weights = load(path, caid.torch.MemPool())
    generation = caid.torch.publish("weights", weights, metadata={"file": os.path.basename(path)})
    print(f"published generation {generation}; {caid.torch.arena().info}", flush=True)


def use(path: str) -> None:
    """Another process: it opens the name, and sees the same memory."""
    with caid.connect() as client, client.open("weights") as array:
        weights = torch.from_dlpack(array)
        print(f"opened {array}, {array.metadata}")
        right = torch.equal(weights.cpu(), torch.from_numpy(numpy.load(path)))
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
