# SPDX-License-Identifier: Apache-2.0
"""Workers that serve a model by PyTorch while its weights are replaced: one copy on the GPU, however many
workers, and none of them ever sees some tensors of one version and some of another.

usage: serve_weights_torch.py

Needs an NVIDIA GPU and PyTorch. It runs on a daemon of its own; where one is installed, leave
LocalDaemon out.
"""

import os
import subprocess
import sys
import tempfile
import time

import caid
import caid.weights

try:
    import safetensors.torch
    import torch
except ImportError as e:
    sys.exit(f"{sys.argv[0]} needs an NVIDIA GPU and PyTorch: {e}")
if not torch.cuda.is_available():
    sys.exit(f"{sys.argv[0]} needs an NVIDIA GPU, and PyTorch finds none")

WORKERS, VERSIONS = 3, 5


def model() -> torch.nn.Module:
    with torch.device("meta"):  # shapes without memory: the weights are caid's
        return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256))


def train(folder: str, version: int) -> str:
    """A file whose weights are all this number, as a new version of the model is."""
    path = os.path.join(folder, f"{version}.safetensors")
    state = {key: torch.full(t.shape, float(version)) for key, t in model().state_dict().items()}
    safetensors.torch.save_file(state, path)
    return path


def serve() -> None:
    """A worker: between two requests it looks for a newer version."""
    net, seen = model(), set()
    with caid.connect() as client, torch.inference_mode():
        weights = caid.weights.open("model", wait=True, timeout=60, client=client)
        net.load_state_dict(weights.torch(), assign=True)
        while True:
            values = {float(t.max()) for t in net.state_dict().values()}
            assert len(values) == 1, "a mixture"
            seen |= values
            if weights.version == VERSIONS:
                break
            newer = weights.newer()
            if newer is not None:
                net.load_state_dict(newer.torch(), assign=True)  # lets go of the old tensors
                weights.close()
                weights = newer
        weights.close()
    print(f"worker {os.getpid()}: saw versions of {sorted(seen)}, each of them whole", flush=True)


def main() -> None:
    if "serve" in sys.argv:
        return serve()
    with tempfile.TemporaryDirectory() as folder, caid.LocalDaemon() as daemon:
        os.environ.update(daemon.env)
        workers = [subprocess.Popen([sys.executable, __file__, "serve"]) for _ in range(WORKERS)]
        with daemon.connect() as client:
            for version in range(1, VERSIONS + 1):
                caid.weights.load(train(folder, version), "model", client=client)
                while version < VERSIONS and client.show("model/").entry.leases < WORKERS:
                    time.sleep(0.01)  # until all workers serve it
            for worker in workers:
                assert worker.wait() == 0
            client.flush()
            print("bytes on the GPU, of one version:", client.memory_info().used)


if __name__ == "__main__":
    main()
