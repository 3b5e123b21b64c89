# SPDX-License-Identifier: Apache-2.0
"""A trainer's new weights, sent to an engine's process: by caid.rl, and by checkpoint-engine's and verl's own ways.

- checkpoint-engine: its ParameterServer sends an update. Its own receiver copies it to tensors of the engine's; caid's
  publishes it, for all engines of the machine.
- verl: its BucketedWeightSender copies tensors to a buffer, from which its receiver copies them to the engine's; by caid
  they are copied to a version, which the engine maps.

usage: bench_updates.py, with CAID_SOCKET of a daemon. A GPU, PyTorch, and what is to be compared with, have to be there.
"""

import asyncio
import contextlib
import importlib.util
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import types

import caid

N, ROWS, COLUMNS = 128, 4096, 4096  # tensors, of bfloat16: 4 GiB
ROUNDS = 6
BUCKET_MIB = 512
WAIT_S = 120
READY = "ready"
GIB = N * ROWS * COLUMNS * 2 / (1 << 30)
DEVICE = "cuda"


def model(torch, value):
    return {f"layers.{i}": torch.full((ROWS, COLUMNS), value, dtype=torch.bfloat16, device=DEVICE) for i in range(N)}


def shown(what, times):
    first, *others = times
    median = statistics.median(others)
    print(f"{what}: {1e3 * median:.1f} ms, {GIB / median:.1f} GiB/s; the first {1e3 * first:.0f} ms", flush=True)
    return median


def check(value, tensors):
    assert len(tensors) == N and all(t.flatten()[0] == value == t.flatten()[-1] for t in tensors.values())


class Own:
    """An engine's own tensors."""

    def __init__(self):
        self.tensors = {}

    def take(self, some):
        for name, tensor in some:
            if name in self.tensors:
                self.tensors[name].copy_(tensor)
            else:
                self.tensors[name] = tensor.clone()


# --- checkpoint-engine ----------------------------------------------------------------------


def serve(inbox, outbox):
    """A ParameterServer, which sends an update for each value that it is told, and tells how long it took."""
    import torch
    from checkpoint_engine.ps import ParameterServer

    from caid.rl.checkpoint_engine import private_sockets

    private_sockets()
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    os.environ["PS_MAX_BUCKET_SIZE_GB"] = str(BUCKET_MIB / 1024)
    server = ParameterServer(auto_pg=False)
    server.init_process_group()
    outbox.put(READY)
    for value in iter(inbox.get, None):
        server.register_checkpoint("update", named_tensors={k: t.cpu() for k, t in model(torch, value).items()})
        server.gather_metas("update")
        start = time.perf_counter()
        server.update("update", lambda addresses: outbox.put(dict(addresses)))
        outbox.put(time.perf_counter() - start)
        server.unregister_checkpoint("update")


def receive_by_theirs(inbox, outbox):
    import torch
    import zmq
    from checkpoint_engine.worker import update_weights_from_ipc

    own, context = Own(), zmq.Context()
    outbox.put(READY)
    for value, addresses in iter(inbox.get, None):
        (address,) = addresses.values()
        update_weights_from_ipc(context, address, torch.cuda.current_device(), run=own.take)
        outbox.put(value)
        check(value, own.tensors)


def receive_by_caid(inbox, outbox):
    from caid.rl.checkpoint_engine import Receiver

    with Receiver("bench/checkpoint-engine") as receiver, caid.connect() as client:
        outbox.put(READY)
        for value, addresses in iter(inbox.get, None):
            receiver.update_weights_from_ipc(addresses)
            with caid.weights.open("bench/checkpoint-engine", client=client) as w:
                tensors = w.torch()
                outbox.put(value)
                check(value, tensors)
                del tensors


def checkpoint_engine_way(context, receive):
    with process(context, serve) as (ask, told), process(context, receive) as (give, taken):
        times = []
        for value in range(1, ROUNDS + 1):
            ask.put(value)
            give.put((value, told.get(timeout=WAIT_S)))
            times.append(told.get(timeout=WAIT_S))
            assert taken.get(timeout=WAIT_S) == value
    return times


# --- verl -----------------------------------------------------------------------------------


def buckets():
    """verl's module of them, which by itself needs nothing of the rest of verl but these."""
    import torch

    async def ensure_async_iterator(some):
        for one in some:
            yield one

    device = types.ModuleType("verl.utils.device")
    device.get_device_id, device.get_device_name = (lambda: 0), (lambda: DEVICE)
    device.get_torch_device, device.is_support_ipc = (lambda: torch.cuda), (lambda: True)
    utils = types.ModuleType("verl.workers.rollout.utils")
    utils.ensure_async_iterator = ensure_async_iterator
    for module in device, utils:
        parts = module.__name__.split(".")
        for i in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        sys.modules[module.__name__] = module
    path = os.path.join(VERL, "workers/rollout/vllm_rollout/bucketed_weight_transfer.py")
    spec = importlib.util.spec_from_file_location("buckets", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verl_at():
    spec = importlib.util.find_spec("verl")
    return spec and os.path.dirname(spec.origin)


VERL = verl_at()


def engine_by_theirs(inbox, outbox):
    import torch

    theirs, own = buckets(), Own()
    outbox.put(READY)
    for value, address in iter(inbox.get, None):
        receiver = theirs.BucketedWeightReceiver(address, torch.device(DEVICE, 0))
        receiver.receive_weights(lambda some, is_last: own.take(some))
        outbox.put(value)
        check(value, own.tensors)


def engine_by_caid(inbox, outbox):
    import torch

    torch.empty(1, device=DEVICE)
    opened = []
    outbox.put(READY)
    for value, name in iter(inbox.get, None):
        opened.append(opened[0].newer() if opened else caid.weights.open(name))
        tensors = opened[-1].torch()
        outbox.put(value)
        check(value, tensors)
        del tensors
        if len(opened) > 1:
            opened.pop(0).close()


def verl_way(context, engine, send):
    import torch

    with process(context, engine) as (give, taken):
        times = []
        for value in range(1, ROUNDS + 1):
            tensors = model(torch, value)
            torch.cuda.synchronize()
            start = time.perf_counter()
            send(give, value, tensors)
            assert taken.get(timeout=WAIT_S) == value
            times.append(time.perf_counter() - start)
    return times


def send_by_theirs(folder):
    theirs, address = buckets(), f"ipc://{folder}/buckets.sock"

    def send(give, value, tensors):
        give.put((value, address))
        asyncio.run(theirs.BucketedWeightSender(address, BUCKET_MIB).async_send_weights(iter(tensors.items())))

    return send


def send_by_caid(versions):
    def send(give, value, tensors):
        with versions.version() as put:
            for name, tensor in tensors.items():
                put(name, tensor)
        give.put((value, "bench/verl"))

    return send


# --- both -----------------------------------------------------------------------------------


@contextlib.contextmanager
def process(context, function):
    queues = context.Queue(), context.Queue()
    made = context.Process(target=function, args=queues, daemon=True)
    made.start()
    try:
        assert queues[1].get(timeout=WAIT_S) == READY
        yield queues
        queues[0].put(None)
        made.join(60)
        assert made.exitcode == 0
    finally:
        made.kill()


def main():
    try:
        import torch
    except ImportError:
        return print("updates of weights: left out, PyTorch is not here")
    if not torch.cuda.is_available():
        return print("updates of weights: left out, PyTorch has no GPU")
    from caid.rl._versions import Versions

    context = multiprocessing.get_context("spawn")
    if importlib.util.find_spec("checkpoint_engine"):
        times = [checkpoint_engine_way(context, way) for way in (receive_by_theirs, receive_by_caid)]
        theirs, ours = map(shown, ("checkpoint-engine's receiver, into its tensors", "caid's, into a version"), times)
        print(f"ratio {ours / theirs:.2f}", flush=True)
    else:
        print("checkpoint-engine: left out, it is not here")
    with contextlib.closing(Versions("bench/verl")) as versions:
        ours = shown("verl's engine \"caid\", copied and mapped", verl_way(context, engine_by_caid, send_by_caid(versions)))
    if VERL is None:
        return print("verl's buckets: left out, verl is not here")
    with tempfile.TemporaryDirectory() as folder:
        theirs = shown("verl's buckets, copied twice", verl_way(context, engine_by_theirs, send_by_theirs(folder)))
    print(f"ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
