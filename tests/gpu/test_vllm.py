# SPDX-License-Identifier: Apache-2.0
"""Load format "caid" on a GPU, in processes that stand for engines: a stand-in for vLLM with real PyTorch. What is loaded
lies in caid's memory, publishing copies nothing, and who maps it takes no memory."""

import json
import os
import pathlib

import numpy
from conftest import needs, start

STANDINS = pathlib.Path(__file__).parents[1] / "python" / "standins" / "vllm"
ROWS, MIB = 1 << 20, 1 << 20  # 128 MiB

ENGINE = """
import importlib.util, json, logging, sys, types

def module(name, path):
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[path.rpartition("/")[0]])
    sys.modules[name] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

import torch
import caid.vllm
module("vllm", sys.argv[1] + "/__init__.py")  # the stand-in for PyTorch, which lies beside it, is not wanted
caid.vllm.register()
from vllm.model_executor import model_loader

said = []
logging.getLogger("vllm.caid").addHandler(types.SimpleNamespace(level=0, handle=lambda r: said.append(r.getMessage())))
logging.getLogger("vllm.caid").setLevel("INFO")
folder, rows = sys.argv[2], int(sys.argv[3])
config = types.SimpleNamespace(
    model=folder, hf_config={"architectures": ["Model"]}, dtype=torch.float32, quantization=None, revision=None, odd=False,
    rows=rows, compute_hash=lambda: "0",
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
