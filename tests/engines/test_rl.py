# SPDX-License-Identifier: Apache-2.0
"""caid.rl with the real checkpoint-engine and verl: the bytes of each update arrive. What these do on CUDA devices is done
in the host's memory here: a buffer's IPC handle is the name of a shared-memory file."""

import contextlib
import multiprocessing
import os
import socket
import sys
import types

import pytest
import torch

import caid

GPU = "0"


def on_the_host():
    """Puts functions of the host's memory in the place of CUDA's."""
    from torch.multiprocessing import reductions

    for name in "synchronize", "ipc_collect", "empty_cache":
        setattr(torch.cuda, name, lambda *_: None)
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = lambda _: contextlib.nullcontext()
    torch.cuda.get_device_properties = lambda _: types.SimpleNamespace(uuid=GPU)

    def rebuild(cls, shape, strides, offset, storage_class, dtype, device, handle, nbytes, at, grad, counter, n, manager, *_):
        storage = torch.UntypedStorage._new_shared_filename_cpu(manager, handle, nbytes)
        return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)

    rebuild.__module__, rebuild.__qualname__ = reductions.__name__, "rebuild_cuda_tensor"
    reductions.rebuild_cuda_tensor = rebuild

    def reduce(tensor):
        manager, handle, nbytes = tensor.untyped_storage()._share_filename_cpu_()
        storage = torch.storage.TypedStorage, torch.uint8, 0, handle, nbytes, 0
        return rebuild, (torch.Tensor, tensor.size(), tensor.stride(), 0, *storage, False, b"/torch_1_2_3", 0, manager, True)

    return reduce


# --- checkpoint-engine ----------------------------------------------------------------------


def parameter_server(env, updates, addresses, answers):
    """A process with the real ParameterServer. It sends each of `updates`, and tells what came of it."""
    os.environ.update(env, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", PS_MAX_BUCKET_SIZE_GB=str(4096 / 2**30))
    reduce = on_the_host()
    import checkpoint_engine.device_utils as device_utils
    import checkpoint_engine.pin_memory as pin_memory
    import checkpoint_engine.ps as ps

    from caid.rl.checkpoint_engine import private_sockets

    host = types.SimpleNamespace(
        device_count=lambda: 1, set_device=lambda _: None, synchronize=lambda: None, empty_cache=lambda: None,
        ipc_collect=lambda: None, mem_get_info=lambda *_: (1 << 30, 1 << 30), memory_allocated=lambda: 0,
        memory_reserved=lambda: 0, get_device_properties=lambda _: types.SimpleNamespace(uuid=GPU),
    )
    manager = types.SimpleNamespace(device_type="cpu", device_module=host, backend="gloo")
    ps.DeviceManager = lambda: manager
    ps.reduce_tensor, ps._get_physical_gpu_id = reduce, lambda *_: f"GPU-{GPU}"
    torch.Tensor.pin_memory = lambda self, *_: self
    empty = torch.empty
    for module in ps, pin_memory, device_utils:
        module.torch = types.ModuleType("torch")
        vars(module.torch).update(vars(torch), empty=lambda *a, pin_memory=False, **k: empty(*a, **k))
    if env["CAID_PRIVATE"] == "1":
        private_sockets()
    server = ps.ParameterServer(master_port=int(env["CAID_PORT"]))
    for number, tensors in enumerate(updates):
        server.register_checkpoint(str(number), named_tensors=tensors, use_inplace_pin_memory=False)
        server.gather_metas(str(number))
        try:
            server.update(str(number), lambda paths: addresses.put(dict(paths)))
            answers.put(None)
        except BaseException as e:
            answers.put(repr(e))
        server.unregister_checkpoint(str(number))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def server(daemon):
    context, processes = multiprocessing.get_context("spawn"), []

    def start(updates, private=True):
        queues = context.Queue(), context.Queue()
        env = {**daemon.env, "CAID_PRIVATE": str(int(private)), "CAID_PORT": str(free_port())}
        processes.append(context.Process(target=parameter_server, args=(env, updates, *queues), daemon=True))
        processes[-1].start()
        return queues

    yield start
    for process in processes:
        process.kill()
        process.join()


def model(value):
    generator = torch.Generator().manual_seed(value)
    return {
        f"layers.{i}.{name}": torch.randn(shape, generator=generator).to(dtype)
        for i in range(8)
        for name, shape, dtype in (("w", (30, 17), torch.bfloat16), ("b", (17,), torch.float32))
    }


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def host(monkeypatch):
    """The functions of CUDA that on_the_host() replaces come back with the test's end."""
    from torch.multiprocessing import reductions

    for name in "synchronize", "ipc_collect", "empty_cache", "current_device", "device", "get_device_properties":
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", reductions.rebuild_cuda_tensor)
    on_the_host()


@pytest.fixture
def receiver(host, client):
    from caid.rl.checkpoint_engine import Receiver

    with Receiver("actor", client=client, timeout=60) as receiver:
        yield receiver


def current(client):
    with caid.weights.open("actor", client=client) as w:
        return w.version, w.metadata, {key: tensor.clone() for key, tensor in w.torch().items()}


def test_updates_of_a_parameter_server_become_versions(client, server, receiver):
    updates = [model(seed) for seed in range(3)]
    addresses, answers = server(updates)
    sockets = []
    for number, tensors in enumerate(updates, 1):
        there = addresses.get(timeout=60)
        sockets += [address[len("ipc://") :] for address in there.values()]
        assert receiver.update_weights_from_ipc(there, metadata=number) == number
        assert answers.get(timeout=60) is None
        version, metadata, there = current(client)
        assert version == metadata == number and same(there, tensors)
    assert not any(map(os.path.exists, sockets[:-1]))


def test_an_update_that_does_not_fit_is_refused_and_told(client, server, receiver):
    wrong = {**model(1), "layers.3.b": torch.zeros(18)}
    addresses, answers = server([model(0), wrong, model(2)])
    receiver.update_weights_from_ipc(addresses.get(timeout=60))
    assert answers.get(timeout=60) is None
    with pytest.raises(RuntimeError, match="failed to update") as refusal:
        receiver.update_weights_from_ipc(addresses.get(timeout=60))
    assert isinstance(refusal.value.__cause__, caid.InvalidError) and "layers.3.b" in str(refusal.value.__cause__)
    assert "remote errors" in answers.get(timeout=60)
    assert same(current(client)[2], model(0))
    receiver.update_weights_from_ipc(addresses.get(timeout=60))
    assert same(current(client)[2], model(2))


def test_the_sockets_of_checkpoint_engine_itself_are_refused(server, receiver):
    addresses, _ = server([model(0)], private=False)
    with pytest.raises(PermissionError, match="anyone can make such a socket"):
        receiver.update_weights_from_ipc(addresses.get(timeout=60))


def test_its_own_receiver_takes_private_sockets(server, host):
    """Whoever keeps checkpoint-engine's receiver, as SGLang does, has the folder's protection."""
    from checkpoint_engine import worker
    import zmq

    addresses, answers = server([model(0)])
    (address,) = addresses.get(timeout=60).values()
    got = {}
    worker.DeviceManager = lambda: type("", (), {"device_module": torch.cuda})()
    worker.update_weights_from_ipc(
        zmq.Context.instance(), address, 0, run=lambda some: got.update((key, tensor.clone()) for key, tensor in some)
    )
    assert answers.get(timeout=60) is None and same(got, model(0))


def test_a_sender_that_is_gone_is_given_up(client, host):
    from caid.rl import _wire
    from caid.rl.checkpoint_engine import Receiver

    with Receiver("actor", client=client, timeout=0.2) as receiver, pytest.raises(TimeoutError, match="no word"):
        receiver.update_weights_from_ipc({f"GPU-{GPU}": f"ipc://{_wire.folder()}/none.sock"})
    assert client.list() == []


def test_vllms_worker_loads_an_update_into_both_models(server, host, monkeypatch):
    from vllm.model_executor.model_loader import utils

    from caid.rl.checkpoint_engine import WorkerExtension

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.got = {}

        def load_weights(self, some):
            self.got.update((key, tensor.clone()) for key, tensor in some)

    class Worker(WorkerExtension):
        device, model_config = types.SimpleNamespace(index=0), "config"
        model_runner = types.SimpleNamespace(model=Model(), drafter=types.SimpleNamespace(model=Model()))

    worker, processed = Worker(), []
    monkeypatch.setattr(utils, "process_weights_after_loading", lambda *these: processed.append(these))
    addresses, answers = server([model(0)])
    worker.update_weights_from_ipc(addresses.get(timeout=60))
    models = worker.model_runner.model, worker.model_runner.drafter.model
    assert answers.get(timeout=60) is None and all(same(some.got, model(0)) for some in models)
    assert processed == [(some, "config", worker.device) for some in models]


# --- SGLang, by the request that it unpickles -------------------------------------------------


def test_sglang_loads_a_version_and_an_update(client, server, receiver, daemon, monkeypatch):
    import base64
    import pickle

    from caid.rl import sglang

    for key, value in daemon.env.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(caid._session._default, "default_client", lambda: client)
    got = {}
    engine = torch.nn.Module()
    engine.load_weights = lambda some: got.update((key, tensor.clone()) for key, tensor in some)
    loading = types.ModuleType("sglang.srt.model_loader.loader")
    loading.device_loading_context = lambda *_: contextlib.nullcontext()
    for name in "sglang", "sglang.srt", "sglang.srt.model_loader":
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, loading.__name__, loading)

    def post(what):
        body = sglang.request(what, tp_size=2)
        assert body["load_format"] == "caid.rl.sglang.load"
        for data in body["serialized_named_tensors"]:
            sglang.load(engine, pickle.loads(base64.b64decode(data)))

    addresses, answers = server([model(0), model(1)])
    receiver.update_weights_from_ipc(addresses.get(timeout=60))
    post("actor@1")
    assert same(got, model(0))
    assert answers.get(timeout=60) is None
    with pytest.raises(caid.StaleError):
        post("actor@2")
    got.clear()
    body = sglang.request(addresses.get(timeout=60))
    sglang.load(engine, pickle.loads(base64.b64decode(body["serialized_named_tensors"][0])))
    assert answers.get(timeout=60) is None and same(got, model(1))
    with pytest.raises(ValueError, match="request"):
        sglang.load(engine, [("actor", torch.zeros(3))])
