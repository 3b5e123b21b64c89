# SPDX-License-Identifier: Apache-2.0
"""caid.weights.publisher: new versions of a model of 12 GiB, and of one of 20,000 tensors, from a trainer to two workers
that use them in place, beside the bare copy on the device, and PyTorch's tensors by CUDA IPC: buckets of 512 MiB, of which
each worker makes a copy, as libraries for reinforcement learning do.

usage: bench_publisher.py SOCKET
"""

import multiprocessing
import statistics
import sys
import time

from bench_weights import layer, seconds

import caid
import caid.weights

WORKERS, ROUNDS, WARM = 2, 8, 3  # of so many rounds the first ones map the slots
BUCKET = 512 << 20
COPIES, SHARE, MANY_MS = 1.4, 0.25, 60.0  # of the copy; of the buckets; to adopt 20,000 tensors
MANY, EXPERT = 20000, (128, 256)


# --- a worker -------------------------------------------------------------------------------


class Worker:
    """Does what it is told by its pipe, and answers with the milliseconds that it took, when the device has done it."""

    def __init__(self, address, shapes, where):
        import torch

        self.torch, self.shapes, self.where = torch, shapes, where
        self.client = caid.connect(address)
        self.own = self.weights = self.tensors = None
        torch.zeros(1, device=where)

    def synchronize(self):
        if self.where == "cuda":
            self.torch.cuda.synchronize()

    def allocate(self):
        bfloat16 = self.torch.bfloat16
        self.own = {key: self.torch.zeros(shape, dtype=bfloat16, device=self.where) for key, shape in self.shapes.items()}

    def bucket(self, handle, places):
        rebuild, args = handle
        bucket = rebuild(*args)
        for key, at in places:
            tensor = self.own[key]
            tensor.view(-1).copy_(bucket[at : at + tensor.nbytes].view(tensor.dtype))

    def forget(self):
        self.own = None
        self.torch.cuda.empty_cache()

    def adopt(self):
        old = self.weights
        self.weights = caid.weights.open("actor", client=self.client) if old is None else old.newer()
        self.tensors = self.weights.torch()
        if old is not None:
            old.close()

    def check(self, value):
        found = {float(tensor.flatten()[i]) for tensor in list(self.tensors.values())[:: len(self.tensors) // 8] for i in (0, -1)}
        assert found == {value}, f"{found}, not {value}"

    def end(self):
        self.tensors = None
        self.weights.close()
        self.client.close()


def work(pipe, *args):
    worker, what = Worker(*args), None
    pipe.send(0)
    while what != "end":
        what, *more = pipe.recv()
        start = time.perf_counter()
        getattr(worker, what)(*more)
        worker.synchronize()
        pipe.send((time.perf_counter() - start) * 1e3)


class Workers:
    def __init__(self, *args):
        spawn = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(WORKERS):
            ours, its = spawn.Pipe()
            self.pipes.append(ours)
            self.processes.append(spawn.Process(target=work, args=(its, *args), daemon=True))
            self.processes[-1].start()
        self.answers()

    def answers(self):
        return [pipe.recv() for pipe in self.pipes]

    def tell(self, *message):
        """Milliseconds that each took."""
        for pipe in self.pipes:
            pipe.send(message)
        return self.answers()

    def end(self):
        self.tell("end")
        for process in self.processes:
            process.join()


# --- the trainer ----------------------------------------------------------------------------


def copy_s(torch, nbytes):
    """The copy alone, on the device."""
    source, target = (torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))

    def copy():
        target.copy_(source)
        torch.cuda.synchronize()

    copy()
    return statistics.median(seconds(copy) for _ in range(ROUNDS))


def buckets_s(torch, workers, state):
    from torch.multiprocessing.reductions import reduce_tensor

    bucket = torch.empty(max(BUCKET, *(t.nbytes for t in state.values())), dtype=torch.uint8, device="cuda")
    handle = reduce_tensor(bucket)

    def send(places):
        torch.cuda.synchronize()
        workers.tell("bucket", handle, places)

    def send_all():
        places, end = [], 0
        for key, tensor in state.items():
            if end + tensor.nbytes > len(bucket):
                send(places)
                places, end = [], 0
            bucket[end : end + tensor.nbytes].copy_(tensor.view(-1).view(torch.uint8))
            places.append((key, end))
            end += tensor.nbytes
        send(places)

    workers.tell("allocate")
    taken = [seconds(send_all) for _ in range(ROUNDS)]
    workers.tell("forget")
    return statistics.median(taken[WARM:])


def publish(torch, client, workers, state):
    """Seconds from publish() until all workers have the version; milliseconds of the slowest worker; device memory."""
    taken, adopted, used = [], [], 0
    with caid.weights.publisher("actor", like=state, client=client) as p:
        for value in range(ROUNDS):
            for tensor in state.values():
                tensor.fill_(value)
            if not client.host_accessible:
                torch.cuda.synchronize()
            start = time.perf_counter()
            p.publish(state)
            p.wait()
            adopted.append(max(workers.tell("adopt")))
            taken.append(time.perf_counter() - start)
            workers.tell("check", float(value))
            used = max(used, client.memory_info().used / p.nbytes)
        workers.end()
    caid.weights.unload("actor", client=client)
    return statistics.median(taken[WARM:]), statistics.median(adopted[WARM:]), used


def report(torch, address, client, shapes):
    where = "cpu" if client.host_accessible else "cuda"
    state = {key: torch.zeros(shape, dtype=torch.bfloat16, device=where) for key, shape in shapes.items()}
    nbytes = sum(tensor.nbytes for tensor in state.values())
    workers = Workers(address, shapes, where)
    told = f"{nbytes / 2**30:.1f} GiB, {len(state)} tensors, to {WORKERS} workers"
    if where == "cuda":
        copy, buckets = copy_s(torch, nbytes), buckets_s(torch, workers, state)
        torch.cuda.empty_cache()
        print(f"{told}: the copy alone {copy * 1e3:.1f} ms; torch IPC in buckets {buckets * 1e3:.1f} ms", flush=True)
    else:
        print(f"{told}: torch IPC left out, there is no GPU")
    taken, adopt_ms, used = publish(torch, client, workers, state)
    beside = f", {taken / copy:.2f} copies (goal: {COPIES}), {taken / buckets:.2f} of the buckets (goal: {SHARE})" if where == "cuda" else ""
    print(f"publisher, from publish() until they have it: {taken * 1e3:.1f} ms{beside}; adopted in {adopt_ms:.1f} ms"
          f"{f' (goal: {MANY_MS:.0f})' if len(state) == MANY else ''}; "
          f"device memory {used:.2f} versions (goal: 2)", flush=True)


def llama(gib):
    shapes, end, i = {}, 0, 0
    while end < gib * 2**30:
        shapes.update(layer(i))
        end += sum(2 * shape[0] * (*shape, 1)[1] for shape in layer(i).values())
        i += 1
    return shapes


def main(address):
    try:
        import torch
    except ImportError:
        print("new versions for workers: left out, PyTorch is not installed")
        return
    with caid.connect(address) as client:
        is_soft = client.host_accessible
        if not is_soft and not torch.cuda.is_available():
            print("new versions for workers: left out, PyTorch finds no GPU")
            return
        report(torch, address, client, llama(0.5 if is_soft else 12))
        expert = (8, 16) if is_soft else EXPERT
        report(torch, address, client, {f"experts.{i}": expert for i in range(MANY)})


if __name__ == "__main__":
    main(*sys.argv[1:])
