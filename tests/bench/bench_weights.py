# SPDX-License-Identifier: Apache-2.0
"""caid.weights: a model of 8 GiB from the page cache into named arrays, beside the bare copy of as many bytes from
page-locked memory, and the other loaders that are installed; then eight workers that open it.

usage: bench_weights.py SOCKET [GIB]
"""

import importlib.util
import json
import multiprocessing
import os
import statistics
import struct
import sys
import tempfile
import time

import caid
import caid.weights

ROUNDS, WORKERS = 3, 8
LEAST, OPEN_MS = 0.92, 50.0  # of the bare copy; of the second to eighth
PIECE = 256 << 20  # bytes of page-locked memory that the bare copy takes again and again


def layer(i):
    hidden, inner, kv = 4096, 14336, 1024
    name = f"model.layers.{i}."
    return {
        f"{name}self_attn.q_proj.weight": (hidden, hidden),
        f"{name}self_attn.k_proj.weight": (kv, hidden),
        f"{name}self_attn.v_proj.weight": (kv, hidden),
        f"{name}self_attn.o_proj.weight": (hidden, hidden),
        f"{name}mlp.gate_proj.weight": (inner, hidden),
        f"{name}mlp.up_proj.weight": (inner, hidden),
        f"{name}mlp.down_proj.weight": (hidden, inner),
        f"{name}input_layernorm.weight": (hidden,),
        f"{name}post_attention_layernorm.weight": (hidden,),
    }


def write_model(path, gib):
    """Layers as of a model of 8 billion parameters, of bfloat16, until there are so many bytes."""
    header, end, i = {}, 0, 0
    while end < gib << 30:
        for key, shape in layer(i).items():
            n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + n]}
            end += n
        i += 1
    text = json.dumps(header).encode()
    block = os.urandom(1 << 20) * 64
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, end, len(block)):
            f.write(block[: end - start])
    return end


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bare_copy(client, nbytes):
    """Seconds of copies on one stream, nothing else."""
    with client.stream(non_blocking=True) as stream, client.empty(PIECE, "|u1") as device:
        with client.empty(PIECE, "|u1", memory="pinned") as host:
            import numpy

            source = numpy.asarray(host)
            source[:] = 1

            def copy():
                for _ in range(nbytes // PIECE):
                    device.copy_from_host(source, stream=stream)
                stream.synchronize()

            copy()
            return seconds(copy)


# --- other loaders --------------------------------------------------------------------------


def load_file(path):
    import safetensors.torch

    return safetensors.torch.load_file(path, device="cuda")


def fastsafetensors(path):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", nogds=True, max_threads=16)
    loader.add_filenames({0: [path]})
    files = loader.copy_files_to_device()
    tensors = {key: files.get_tensor(key) for key in loader.get_keys()}
    tensors.clear()
    files.close()
    loader.close()


def runai_model_streamer(path):
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([path])
        return {key: tensor.to("cuda") for key, tensor in streamer.get_tensors()}


def instanttensor(path):
    from instanttensor import safe_open

    with safe_open(path, framework="pt", device=0) as f:
        return dict(f.tensors())


PEERS = {"safetensors": load_file, "fastsafetensors": fastsafetensors, "runai_model_streamer": runai_model_streamer,
         "instanttensor": instanttensor}


def peers():
    """What loads a file by each that is installed; of the others it says why not."""
    missing = {name for name in ("torch", *PEERS) if importlib.util.find_spec(name) is None}
    if "torch" not in missing:
        import torch

        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
            for name in missing:
                print(f"{name}: left out, it is not installed")
            return {name: load for name, load in PEERS.items() if name not in missing}
    print(f"{', '.join(PEERS)}: left out, PyTorch {'is not installed' if 'torch' in missing else 'finds no GPU'}")
    return {}


def peer_s(load, path):
    import torch

    def until_it_is_there():
        tensors = load(path)
        torch.cuda.synchronize()
        del tensors

    taken = seconds(until_it_is_there)
    torch.cuda.empty_cache()
    return taken


def worker(address, ready, go, times):
    """Opens all of it, once it has a context; keeps it until it is told to end."""
    with caid.connect(address) as client:
        client.stream().close()
        ready.release()
        go.acquire()
        weights = None

        def open_it():
            nonlocal weights
            weights = caid.weights.open("model", client=client)
            for array in weights.values():
                array.ptr

        times.put(seconds(open_it) * 1e3)
        go.acquire()
        weights.close()


def workers(address):
    """Milliseconds of each, one after another."""
    context = multiprocessing.get_context("spawn")
    ready, times = context.Semaphore(0), context.Queue()
    going = [context.Semaphore(0) for _ in range(WORKERS)]
    processes = [
        context.Process(target=worker, args=(address, ready, go, times)) for go in going
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    taken = []
    for go in going:
        go.release()
        taken.append(times.get())
    yield taken
    for go in going:
        go.release()
    for process in processes:
        process.join()


def report(client, path, nbytes):
    """All in turn, and once more than is told: the first time is by itself."""
    gib, ways = nbytes / 2**30, peers()
    taken = {name: [] for name in ("bare copy", "caid.weights.load", *ways)}
    for _ in range(1 + ROUNDS):
        taken["bare copy"].append(bare_copy(client, nbytes))
        taken["caid.weights.load"].append(seconds(lambda: caid.weights.load(path, "model", client=client)))
        caid.weights.unload("model", client=client)
        client.flush()
        for name, load in list(ways.items()):
            try:
                taken[name].append(peer_s(load, path))
            except Exception as e:  # another one's: it is told, and the others go on
                print(f"{name}: left out, {type(e).__name__}: {e}")
                del ways[name], taken[name]
    bare = statistics.median(taken["bare copy"][1:])
    print(f"{gib:.1f} GiB from the page cache; goals of caid: {LEAST} of the bare copy, and ahead of each other one")
    for name, (first, *others) in taken.items():
        s = statistics.median(others)
        print(f"{name:22} {gib / s:6.1f} GiB/s, {bare / s:.2f} of the bare copy; the first time {gib / first:.1f} GiB/s", flush=True)


def main(address, gib="8"):
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=folder) as d, caid.connect(address) as client:
        if client.status().driver == "soft":
            gib = "1"
        path = os.path.join(d, "model.safetensors")
        nbytes = write_model(path, int(gib))
        report(client, path, nbytes)
        caid.weights.load(path, "model", client=client)
        for taken in workers(address):
            used = client.memory_info().used
            print(f"{WORKERS} workers that have a context open it: "
                  f"{', '.join(f'{ms:.1f}' for ms in taken)} ms (goal, second to eighth: {OPEN_MS:.0f}); "
                  f"device memory {used / nbytes:.3f} of the model's", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
