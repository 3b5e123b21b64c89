# SPDX-License-Identifier: Apache-2.0
"""caid.vllm on a GPU, in processes that stand for engines: a stand-in for vLLM with real PyTorch. What is loaded lies in
caid's memory, publishing copies nothing, and who maps it takes no memory. A trainer's versions take over the addresses
that graphs have, and an engine that sleeps has them again when it wakes."""

import json
import os
import pathlib

import numpy
from conftest import needs, run, start

STANDINS = pathlib.Path(__file__).parents[1] / "python" / "standins" / "vllm"
ROWS, MIB = 1 << 20, 1 << 20  # 128 MiB

VLLM = """
import importlib.util, json, logging, sys, types

def module(name, path):
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[path.rpartition("/")[0]])
    sys.modules[name] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

import torch
import caid.vllm
module("vllm", sys.argv[1] + "/__init__.py")  # the stand-in for PyTorch, which lies beside it, is not wanted
"""
LOAD = VLLM + """
caid.vllm.register()
from vllm.model_executor import model_loader

said = []
logging.getLogger("vllm.caid").addHandler(types.SimpleNamespace(level=0, handle=lambda r: said.append(r.getMessage())))
logging.getLogger("vllm.caid").setLevel("INFO")
folder, rows = sys.argv[2], int(sys.argv[3])
config = types.SimpleNamespace(
    model=folder, hf_config={"architectures": ["Model"]}, dtype=torch.float32, quantization=None, revision=None, odd=False,
    rows=rows, enforce_eager=False, compute_hash=lambda: "0",
)
settings = types.SimpleNamespace(
    model_config=config, speculative_config=None, compute_hash=lambda: "0",
    compilation_config=types.SimpleNamespace(static_forward_context={}, static_all_moe_layers=[]),
    parallel_config=types.SimpleNamespace(enable_expert_parallel=False, enable_eplb=False),
    device_config=types.SimpleNamespace(device="cuda"),
)
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
free = lambda: torch.cuda.mem_get_info()[0]
loader = model_loader._LOAD_FORMAT_TO_MODEL_LOADER["caid"](model_loader.LoadConfig("caid", {}))
external, before = loader.get_external_weight_memory(settings), free()
model = loader.load_model(settings, config)
torch.cuda.synchronize()
took = before - free()
"""
ENGINE = LOAD + """
import numpy
values = torch.from_numpy(numpy.fromfile(folder + "/model.bin", "f4").reshape(-1, 32)).cuda()
same = [torch.equal(*pair) for pair in (
    (model.embed.weight, values[:-96]), (model.layer.weight, values[-96:-64]), (model.attention.rope.cos_sin, values[-64:]),
)]
told = {
    "how": said[-1], "said": len(said), "took": took, "external": external, "same": same, "device": str(model.embed.weight.device),
    "tied": model.head.weight is model.embed.weight, "scale": float(model.attention.scale),
}
print(json.dumps(told), flush=True)
sys.stdin.readline()
print(float(model.embed.weight.sum(dtype=torch.float64)) == float(values[:-96].sum(dtype=torch.float64)), flush=True)
"""


def test_what_one_has_loaded_is_mapped_by_another_and_copied_by_nobody(daemon, tmp_path):
    needs("torch")
    folder = tmp_path / "model"
    folder.mkdir()
    numpy.random.default_rng(1).random((ROWS + 96, 32), "f4").tofile(folder / "model.bin")
    nbytes = os.path.getsize(folder / "model.bin")
    engines, told = [], []
    for _ in range(2):
        engines.append(start(daemon.env, ENGINE, [str(STANDINS), str(folder), str(ROWS)], stdin=-1))
        while not (line := engines[-1].stdout.readline()).startswith("{"):
            assert line, engines[-1].communicate()[1]
        told.append(json.loads(line))
        assert told[-1]["same"] == [True] * 3 and told[-1]["tied"] and told[-1]["scale"] == 1
        assert told[-1]["device"].startswith("cuda") and told[-1]["said"] == 1
    first, second = told
    assert first["how"].startswith("caid: published model.") and second["how"].startswith("caid: mapped model.")
    print(f"bytes of the model: {nbytes}; taken by who loads: {first['took']}, by who maps: {second['took']}")
    assert nbytes <= first["took"] < nbytes + 64 * MIB and first["external"] == 0
    assert second["took"] < 32 * MIB and nbytes <= second["external"] < nbytes + MIB
    engines[0].kill()
    engines[0].communicate()
    out, err = engines[1].communicate("\n", timeout=100)
    assert out == "True\n", err
    with daemon.connect() as c:
        for entry in c.list():
            if entry.name.endswith("/"):
                c.unlink(entry.name)


COMPUTE = """
import hashlib
def compute(t):
    return t["embed.weight"].sum(0) + t["layer.weight"] * t["attention.rope.cos_sin"][:32]
def digest(x):
    return hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest()
"""
TRAINER = VLLM + COMPUTE + """
from caid.vllm import _transfer

class Source:
    def metadata(self):
        return [types.SimpleNamespace(name=n, shape=t.shape, dtype=t.dtype) for n, t in tensors.items()]

    def __iter__(self):
        return iter(tensors.items())

class Engines:
    def update_weights(self, info):
        print(json.dumps(info), flush=True)
        assert sys.stdin.readline() == "taken\\n", "refused"

    init_weight_transfer_engine = start_weight_update = finish_weight_update = lambda self, *info, **more: None

shapes = {"embed.weight": (int(sys.argv[2]), 32), "layer.weight": (int(sys.argv[3]), 32), "attention.rope.cos_sin": (64, 32)}
tensors = {name: torch.empty(shape, device="cuda") for name, shape in shapes.items()}
info = _transfer.CaidTrainerInitInfo(rank=0)
trainer = _transfer.CaidTrainerWeightTransferEngine.trainer_init(info, client=Engines(), source=Source())
for seed in sys.stdin:
    torch.manual_seed(int(seed))
    for tensor in tensors.values():
        tensor.random_(0, 8)  # whole numbers, so that sums are exact in any order
    trainer.send_weights()
    print(digest(compute(tensors)), flush=True)
trainer.shutdown()
"""
LIVE = LOAD + COMPUTE + """
import ctypes
from caid.vllm import _manifest, _model, _sleep, _transfer
settings.load_config = loader.load_config
transfer = _transfer.CaidWeightTransferEngine(None, settings, torch.device("cuda"), model)
transfer.init_transfer_engine(_transfer.CaidInitInfo("policy"))
tensors = {name: tensor for name, (_, tensor) in _model.named(model)[0].items()}
where = {name: tensor.data_ptr() for name, tensor in tensors.items()}
stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
with torch.cuda.stream(stream):
    compute(tensors)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    out = compute(tensors)
backend, driver = _sleep.CaidBackend(), ctypes.CDLL("libcuda.so.1")

def mapped():
    handle = ctypes.c_uint64()
    if driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(where["embed.weight"])):
        return False
    driver.cuMemRelease(handle)
    return True

def tell(error=None):
    graph.replay()
    torch.cuda.synchronize()
    kept = where == {name: tensor.data_ptr() for name, (_, tensor) in _model.named(model)[0].items()}
    print(json.dumps({"out": digest(out), "kept": kept, "error": error, "said": said, "free": free()}), flush=True)

tell()
for line in sys.stdin:
    call = json.loads(line)
    if isinstance(call, dict):
        try:
            transfer.receive_weights(_transfer.CaidUpdateInfo(**call))
            transfer.finish_weight_update()
            tell()
        except _manifest.UnfitError as e:
            tell(str(e))
    elif call == "sleep":
        was = mapped()
        backend.suspend(2)
        backend.resume(["kv_cache"])
        print(json.dumps({"mapped": [was, mapped()], "free": free()}), flush=True)
    else:
        backend.resume()
        tell()
"""


FREE = """
import sys, time, torch
with caid.connect() as c:
    c.empty(1 << 20, "u1").close()  # for which the daemon has what it needs of the driver
for _ in range(600):
    if (free := torch.cuda.mem_get_info()[0]) >= int(sys.argv[1]) - (64 << 20):
        break
    time.sleep(0.1)
else:
    raise AssertionError(f"{free} of {sys.argv[1]} bytes are free")
print(free)
"""


class Process:
    def __init__(self, script, *arguments, env):
        self.process = start(env, script, [str(STANDINS), *map(str, arguments)], stdin=-1)

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self):
        line = self.process.stdout.readline()
        while line == "loads\n":
            line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line[:-1]

    def call(self, what):
        self.send(json.dumps(what))
        return json.loads(self.line())

    def end(self, error=None):
        """Of its own accord."""
        errors = self.process.communicate(timeout=100)[1]
        assert (error in errors) if error else self.process.returncode == 0, errors


def live_versions(daemon):
    with daemon.connect() as c:
        return {entry.name: entry.generation for entry in c.list() if ".live" in entry.name and not entry.of_set}


def test_versions_take_over_the_addresses_that_graphs_have_and_sleep_keeps_them(daemon, tmp_path):
    needs("torch")
    numpy.random.default_rng(2).integers(0, 8, (ROWS + 96, 32)).astype("f4").tofile(tmp_path / "model.bin")
    before = int(run(daemon.env, FREE, ["0"]))
    engines, told = [], []
    for _ in range(2):
        engines.append(Process(LIVE, tmp_path, ROWS, env=daemon.env))
        told.append(json.loads(engines[-1].line()))
    seen = [told[0]["out"]]
    assert told[1]["out"] == seen[0]
    trainer, free = Process(TRAINER, ROWS, 32, env=daemon.env), []
    for seed in range(6):
        if seed == 3:  # who starts now has what the files have, and the others' version stays the current one
            current = live_versions(daemon)
            engines.append(Process(LIVE, tmp_path, ROWS, env=daemon.env))
            assert json.loads(engines[-1].line())["out"] == seen[0]
            assert live_versions(daemon) == current
        trainer.send(str(seed))
        info = json.loads(trainer.line())
        told = [e.call(info) for e in engines]
        trainer.send("taken")
        seen.append(trainer.line())
        assert [(t["out"], t["kept"], t["error"]) for t in told] == [(seen[-1], True, None)] * len(engines)
        free.append(told[1]["free"])
    assert len({*seen}) == 7
    assert [sum("converted" in line for line in t["said"]) for t in told] == [6, 0, 0]
    print(f"free after each version: {free}")
    for i in 2, 5:
        assert abs(free[i] - free[i - 1]) < 64 * MIB  # a version that nobody has is given back
    trainer.end()
    small = Process(TRAINER, ROWS, 8, env=daemon.env)
    small.send("9")
    unfit = json.loads(small.line())
    for engine in engines:
        told = engine.call(unfit)
        assert (told["out"], told["kept"]) == (seen[-1], True) and "does not fit" in told["error"]
    small.send("refused")
    small.end("AssertionError: refused")
    for _ in range(2):
        asleep = engines[0].call("sleep")
        assert asleep["mapped"] == [True, False]
        told = engines[1].call("wake")  # who has never slept
        assert told["out"] == seen[-1]
        told = engines[0].call("wake")
        assert (told["out"], told["kept"]) == (seen[-1], True)
    print(f"free: {asleep['free']} while it sleeps, {told['free']} when it has woken")
    engines[0].call("sleep")
    with daemon.connect() as c:
        for entry in c.list():
            if entry.name.endswith("/"):
                c.unlink(entry.name)
    told = engines[0].call("wake")
    assert (told["out"], told["kept"]) == (seen[-1], True)
    for engine in engines:
        engine.end()
    print(run(daemon.env, FREE, [str(before)]))
