# SPDX-License-Identifier: Apache-2.0
"""caid.weights: a model of 16 GiB from the page cache into named arrays, beside the bare copy of as many
bytes from page-locked memory, and safetensors' own load_file(); then eight workers that open it.

usage: bench_weights.py SOCKET [GIB]
"""

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
LEAST, TIMES, OPEN_MS = 0.85, 2.0, 50.0  # of the bare copy; of load_file(); of the second to eighth
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


def theirs(path):
    """What load_file() takes in a process that has a context, or None."""
    try:
        import safetensors.torch
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.zeros(1, device="cuda")

    def load():
        tensors = safetensors.torch.load_file(path, device="cuda")
        torch.cuda.synchronize()
        del tensors

    load()
    torch.cuda.empty_cache()
    return statistics.median(seconds(load) for _ in range(ROUNDS))


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
    gib = nbytes / 2**30
    ours, bare = [], []
    for _ in range(ROUNDS):
        bare.append(bare_copy(client, nbytes))
        ours.append(seconds(lambda: caid.weights.load(path, "model", client=client)))
        caid.weights.unload("model", client=client)
        client.flush()
    ours_s, bare_s = min(ours), min(bare)
    print(f"{gib:.1f} GiB from the page cache: load {gib / ours_s:.1f} GiB/s (all: "
          f"{', '.join(f'{s:.3f}' for s in ours)} s); bare copy of page-locked memory "
          f"{gib / bare_s:.1f} GiB/s; ratio {bare_s / ours_s:.2f} (goal: {LEAST})", flush=True)
    other = theirs(path)
    if other is not None:
        print(f"safetensors.torch.load_file(device='cuda'): {gib / other:.1f} GiB/s; caid is faster "
              f"{other / ours_s:.1f} times (goal: {TIMES:.0f})", flush=True)


def main(address, gib="16"):
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
