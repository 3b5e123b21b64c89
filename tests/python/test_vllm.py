# SPDX-License-Identifier: Apache-2.0
"""Load format "caid" of vLLM, with stand-ins for vLLM and PyTorch (standins/): who loads, who maps, and what each has
then, whatever becomes of the others. Real vLLM: ./dev engines."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy
import pytest
from conftest import Child
from restarts import Restarts
from uids import taking

import caid
import caid.weights

STANDINS = str(pathlib.Path(__file__).parent / "standins")

ENGINE = """
import hashlib, importlib.util, json, logging, types
import caid.vllm

caid.vllm.register()
caid.vllm.register()
assert not {"vllm", "torch", "numpy", "caid.weights"} & {*sys.modules}  # nor has a daemon been asked
assert importlib.util.find_spec("vllm.model_executor.model_loader")  # as who only looks whether it is there
said = []
logging.getLogger("vllm.caid").addHandler(types.SimpleNamespace(level=0, handle=lambda r: said.append(r.getMessage())))
logging.getLogger("vllm.caid").setLevel("INFO")

import torch
from vllm.model_executor import model_loader

folder, options, changes = sys.argv[1], *map(json.loads, sys.argv[2:])
config = types.SimpleNamespace(
    model=folder, hf_config={"architectures": ["Model"]}, dtype=torch.float32, quantization=None, revision=None, odd=False, rows=64,
    compute_hash=lambda: "0",
)
settings = types.SimpleNamespace(
    model_config=config, speculative_config=None, compute_hash=lambda: "0",
    compilation_config=types.SimpleNamespace(static_forward_context={}, static_all_moe_layers=[]),
    parallel_config=types.SimpleNamespace(enable_expert_parallel=False, enable_eplb=False),
    device_config=types.SimpleNamespace(device="cpu"),
)
vars(config).update(changes)
loader = model_loader._LOAD_FORMAT_TO_MODEL_LOADER["caid"](model_loader.LoadConfig("caid", options))
model = loader.load_model(settings, config)

def tell():
    from caid.vllm import _model
    tensors, aliases = _model.named(model)
    model.attention.scale.fill_(2)
    told = {
        "how": said[-1], "said": len(said), "aliases": aliases, "own": [k for k, t in tensors.items() if t[1]._memory.flags.writeable],
        "values": {k: hashlib.sha256(t[1]._memory.tobytes()).hexdigest() for k, t in tensors.items()},
        "kinds": {k: kind for k, (kind, _) in tensors.items()}, "linear": getattr(model.layer, "cpu_linear", None),
        "tied": model.head.weight is model.embed.weight, "loader": model.head.weight.weight_loader, "sinks": model.attention.sinks,
    }
    step(json.dumps(told))
"""


class Engine(Child):
    def __init__(self, daemon, folder, options=None, changes=None, then="tell()", them=None, **env):
        env = {**(daemon.env if daemon else {}), "PYTHONPATH": f"{STANDINS}:{os.environ['PYTHONPATH']}", **env}
        super().__init__(ENGINE + then, env, folder, json.dumps(options or {}), json.dumps(changes or {}), **(them or {}))

    def told(self):
        """What it says when it has the model, and whether it has read the files before."""
        lines = [self.process.stdout.readline()]
        while lines[-1] == "loads\n":
            lines.append(self.process.stdout.readline())
        assert lines[-1], self.finish()
        return {**json.loads(lines[-1]), "loads": len(lines) - 1}


@pytest.fixture
def model(tmp_path):
    """model(seed): the folder of a model."""

    def make(seed, name="m"):
        folder = tmp_path / str(seed) / name
        folder.mkdir(parents=True)
        numpy.random.default_rng(seed).random((160, 32), "f4").tofile(folder / "model.bin")
        return folder

    return make


@pytest.fixture
def engine(daemon, client):
    """engine(folder, options): starts one. What they have published is taken away with the test."""
    engines = []

    def start(folder, options=None, **more):
        engines.append(Engine(more.pop("at", daemon), folder, options, **more))
        return engines[-1]

    yield start
    for e in engines:
        e.kill()
    for name in sets(client):
        client.unlink(name)


def sets(client):
    return [entry.name for entry in client.list() if entry.name.endswith("/")]


def of_files(folder):
    """What the tensors of a model are, by name, when vLLM has processed them."""
    values = numpy.fromfile(folder / "model.bin", "f4").reshape(-1, 32)
    whole = {"embed.weight": values[:64], "layer.weight": values[64:96], "attention.rope.cos_sin": values[96:160]}
    whole["attention.scale"] = numpy.full(1, 2, "f4")
    return {name: hashlib.sha256(x.tobytes()).hexdigest() for name, x in whole.items()}


def check_right(told, folder):
    values = of_files(folder)
    if told["linear"] == "packed":  # an engine that shares nothing
        del values["layer.weight"]
    assert told["values"] == values
    assert told["aliases"] == {"head.weight": "embed.weight"} and told["tied"] and told["sinks"] is None
    assert told["kinds"]["attention.rope.cos_sin"] == "transient" and told["kinds"]["attention.scale"] == "buffer"
    assert told["loader"] == "of this process"


def test_one_loads_and_the_others_map(client, engine, model):
    folder = model(1)
    for i in range(3):
        told = engine(folder).told()
        check_right(told, folder)
        assert told["loads"] == (i == 0) and told["said"] == 1
        assert told["how"].startswith("caid: published m." if i == 0 else "caid: mapped m.")
        assert told["own"] == ["attention.scale"]  # the others' memory is read-only, also for who has loaded
        assert told["linear"] == "torch.nn.functional.linear"
    (name,) = sets(client)
    with caid.weights.open(name, client=client) as w:
        assert {*w} == {*of_files(folder), "caid.vllm"}
        assert len({entry.block for entry in w._set.entries().values()}) == 1


def test_of_many_at_once_one_loads(client, engine, model):
    folder = model(1)
    engines = [engine(folder) for _ in range(4)]
    told = [e.told() for e in engines]
    assert sum(t["loads"] for t in told) == 1
    for t in told:
        check_right(t, folder)
    assert len(sets(client)) == 1 and not client.exists(f"{sets(client)[0][:-1]}.turn")


def test_two_fine_tunes_under_one_name_are_two_sets(client, engine, model):
    folders = [model(1), model(2)]
    for i in range(4):
        told = engine(folders[i % 2], {"name": "llama"}).told()
        check_right(told, folders[i % 2])
        assert told["loads"] == (i < 2)
    assert len(sets(client)) == 2


def test_a_file_that_is_written_anew_is_another_model(client, engine, model):
    folder = model(1)
    check_right(engine(folder).told(), folder)
    values = numpy.fromfile(folder / "model.bin", "f4")
    (values + 1).tofile(folder / "model.bin")
    told = engine(folder).told()
    check_right(told, folder)
    assert told["loads"] and len(sets(client)) == 2


@pytest.mark.parametrize("changes", [{"dtype": "float16"}, {"quantization": "fp8"}, {"revision": "v2"}, {"hf_config": {"rope": 2}}])
def test_what_changes_bytes_changes_the_key(client, engine, model, changes):
    folder = model(1)
    assert engine(folder).told()["loads"] and engine(folder, changes=changes).told()["loads"]
    assert len(sets(client)) == 2


def stopped(engine, folder, *more):
    """An engine that stops in the midst of loading from the files."""
    (folder / "stop").touch()
    winner = engine(folder, *more)
    winner.expect("loads")
    return winner


def test_when_the_one_that_loads_is_killed_the_next_loads(client, engine, model):
    folder = model(1)
    winner = stopped(engine, folder)
    others = [engine(folder) for _ in range(2)]
    winner.kill()
    (folder / "stop").unlink()
    told = [e.told() for e in others]
    assert sorted(t["loads"] for t in told) == [0, 1]
    for t in told:
        check_right(t, folder)


def test_when_the_one_that_published_is_killed_the_others_stay(client, engine, model):
    folder = model(1)
    first, second = engine(folder), None
    first.told()
    second = engine(folder, then="step('maps')\ntell()")
    second.expect("maps")
    first.kill()
    client.unlink(sets(client)[0])
    second.go()
    check_right(second.told(), folder)


def test_a_winner_that_has_stopped_is_waited_for_so_long(client, engine, model):
    folder = model(1)
    winner = stopped(engine, folder)
    winner.process.send_signal(signal.SIGSTOP)
    (folder / "stop").unlink()
    told = engine(folder, {"timeout": 0.3}).told()
    check_right(told, folder)
    assert told["loads"] and told["said"] == 1 and f"{winner.pid} loads it" in told["how"]
    winner.process.send_signal(signal.SIGCONT)
    check_right(winner.told(), folder)


def test_without_room_or_leave_an_engine_has_its_own_model(engine, model):
    folder = model(1)
    with caid.LocalDaemon(config="[limits]\npinned_bytes = 16K\n") as small:
        for pool, why in (None, "keeps the model to itself"), ("nothing", "from its files"):
            told = engine(folder, {"pool": pool}, at=small).told()
            check_right(told, folder)
            assert told["loads"] == 1 and why in told["how"] and told["said"] == 1 and (pool or "") in told["how"]
        with small.connect() as c:
            assert not c.list()


def test_who_may_only_read_a_pool_maps_and_does_not_publish(model):
    them = taking(12345, 12345)
    options = {"pool": "weights"}
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place.chmod(0o755)
        folder = shutil.copytree(model(1), place / "m")
        daemon = stack.enter_context(contextlib.closing(Restarts(place, '[pool "weights"]\nowner = 0\nmode = 0644\n')))
        for who, how in (them, "loads the model from its files"), (None, "published"), (them, "mapped"):
            engine = Engine(daemon, folder, options, them=who)
            stack.callback(engine.kill)
            told = engine.told()
            check_right(told, folder)
            assert how in told["how"] and told["said"] == 1


def test_without_a_daemon_an_engine_loads_for_itself(engine, model, tmp_path):
    folder = model(1)
    told = engine(folder, at=None, CAID_SOCKET=str(tmp_path / "nobody")).told()
    assert told["loads"] and "loads the model from its files" in told["how"]
    lost = engine(folder, {"fallback": False}, at=None, CAID_SOCKET=str(tmp_path / "nobody"))
    status, errors = lost.finish()
    assert status == 1 and "NoDaemonError" in errors


def test_weights_that_others_cannot_use_are_not_published(client, engine, model):
    folder = model(1)
    told = engine(folder, changes={"odd": True}).told()
    check_right(told, folder)
    assert told["loads"] == 1 and "OddMethod takes no weights" in told["how"] and not sets(client)


def test_what_another_program_has_published_is_checked(client, engine, model):
    folder = model(1)
    engine(folder).told()
    (name,) = sets(client)
    with client.open_set(name, "rw") as right:
        text = right["caid.vllm"].copy_to_host().tobytes()
        arrays = {key: array for key, array in right.open().items() if key != "caid.vllm"}
        for other, why in (
            (b"cos\nsystem\n(S'touch %s'\ntR." % bytes(folder / "pickled"), "no JSON"),
            (text.replace(b"[64,32]", b"[64,33]"), "in the set <f4 (64, 32)"),
            (text.replace(b'"layer.weight"', b'"lay.er.weight"'), "the set lacks"),
            (text.replace(b'"tp":[0,1]', b'"tp":[0,2]'), "of another model or engine: ranks"),
            (text.replace(b'"embed.weight":', b'"embed.wrong":').replace(b'"head.weight":"embed.weight"', b""), "lacks"),
            (text.replace(b'"tensors":{', b'"tensors":{"no.such":["parameter","<f4",[0],false],'), "no module 'no'"),
            (None, "no manifest"),
        ):
            more = {} if other is None else {"caid.vllm": numpy.frombuffer(other, "u1")}
            client.publish_many(name, {**arrays, **more})
            told = engine(folder).told()
            check_right(told, folder)
            assert told["loads"] == 1 and told["said"] == 1
            assert why in told["how"]
    assert not (folder / "pickled").exists()


def test_an_update_of_vllms_own_in_place_gets_tensors_of_its_own(client, engine, model):
    folder = model(1)
    first = engine(folder, then="""
from caid.vllm import _model
before = {name: t[1].data_ptr() for name, t in _model.named(model)[0].items()}
model.caid.in_graphs = True  # as on a GPU without --enforce-eager
try:
    loader.get_all_weights(config, model)
except _model.UnfitError as e:
    assert "--enforce-eager" in str(e)
assert before == {name: t[1].data_ptr() for name, t in _model.named(model)[0].items()}
model.caid.in_graphs = False
list(model.load_weights(loader.get_all_weights(config, model)) or ())
assert model.caid.weights is None
own = model.embed.weight.data_ptr()
next(loader.get_all_weights(config, model))
assert own == model.embed.weight.data_ptr()  # it is not copied once more
tell()
""")
    told = first.told()
    assert told["loads"] == 3 and {*told["own"]} == {*told["values"]}
    assert not client.show(sets(client)[0]).holders
    other = engine(folder).told()
    check_right(other, folder)
    assert not other["loads"]


SWAP = """
from caid.vllm import _manifest, _model
shared = model.caid
before = model.layer.weight
manifest, tensors = shared.read(shared.find())
step("mapped")
manifest, tensors = shared.read(shared.find())
values, placed = lambda: {k: t[1]._memory.tobytes() for k, t in _model.named(model)[0].items()}, _model._placed
was = values()
def fails(told, *of):
    if told.kind == "transient":
        raise MemoryError
    return placed(told, *of)
_model._placed = fails
try:
    _model.swap(model, manifest, tensors)
except (MemoryError, _manifest.UnfitError):
    assert was == values()  # not some of the tensors
_model._placed = placed
try:
    _model.swap(model, manifest, tensors)
except _manifest.UnfitError as e:
    said.append(str(e))
assert model.layer.weight is before
tell()
"""


@pytest.mark.parametrize("shape", [(32, 32), (4, 4)])
def test_a_version_that_fits_takes_the_place_of_another(client, engine, model, shape):
    folder = model(1)
    worker = engine(folder, then=SWAP)
    assert worker.process.stdout.readline() == "loads\n"
    worker.expect("mapped")
    (name,) = sets(client)
    with client.open_set(name, "rw") as right:
        arrays = dict(right.open().items())
        text = arrays["caid.vllm"].copy_to_host().tobytes()
        new = numpy.full(shape, 7, "f4")
        text = text.replace(b'"layer.weight":["parameter","<f4",[32,32]', b'"layer.weight":["parameter","<f4",%s' % json.dumps(shape, separators=(",", ":")).encode())
        client.publish_many(name, {**arrays, "layer.weight": new, "caid.vllm": numpy.frombuffer(text, "u1")})
    worker.go()
    told = worker.told()
    if shape == (32, 32):
            assert told["values"].pop("layer.weight") == hashlib.sha256(new.tobytes()).hexdigest()
    else:
        assert "layer.weight: <f4 (32, 32), and <f4 (4, 4) in the version" in told["how"]
        check_right(told, folder)


OTHER = """
import vllm, vllm.model_executor.model_loader.default_loader as loaders
vllm.__version__ = sys.argv[1]
if len(sys.argv) > 2:
    delattr(loaders.DefaultModelLoader, sys.argv[2])
import logging, caid.vllm
logging.basicConfig()
caid.vllm.register()
from vllm.model_executor import model_loader
model_loader._LOAD_FORMAT_TO_MODEL_LOADER["caid"](model_loader.LoadConfig("caid"))
"""


@pytest.mark.parametrize(
    "version, lacking, said",
    [
        ("0.32.1+cpu", (), ""), ("0.33.0", (), "is made for vLLM 0.32, and may not fit 0.33.0"),
        ("0.33.0", ("_prepare_weights",), "ImportError: caid.vllm is made for vLLM 0.32, and does not fit 0.33.0: "),
    ],
)
def test_another_vllm_is_told(daemon, version, lacking, said):
    other = Child(OTHER, {"PYTHONPATH": f"{STANDINS}:{os.environ['PYTHONPATH']}"}, version, *lacking)
    status, errors = other.finish()
    assert status == len(lacking) and (said in errors if said else not errors)


def test_the_entry_point_never_raises_and_is_told_everywhere(tmp_path):
    package = tmp_path / "vllm" / "model_executor"
    (package / "model_loader").mkdir(parents=True)
    for folder in package.parent, package, package / "model_loader":
        (folder / "__init__.py").write_text("")  # of a vLLM that has not these names
    code = "import caid.vllm; caid.vllm.register(); import vllm.model_executor.model_loader as m; caid.vllm.register(); print(m)"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
    tree = pathlib.Path(__file__).parents[2]
    told = '[vllm.general_plugins]\ncaid = caid.vllm:register\n'
    assert (tree / "python/entry_points.txt").read_text() == told
    assert '[project.entry-points."vllm.general_plugins"]\ncaid = "caid.vllm:register"\n' in (tree / "pyproject.toml").read_text()


UPDATE = """
step = lambda line: print(line, flush=True)
tell()
from caid.vllm import _manifest, _transfer
settings.load_config = model_loader.LoadConfig("caid", options)
transfer = _transfer.CaidWeightTransferEngine(None, settings, torch.device("cpu"), model)
transfer.init_transfer_engine(_transfer.CaidInitInfo("policy"))
for line in sys.stdin:
    version, run = line.split()
    try:
        was = model.layer.weight.data_ptr()
        transfer.start_weight_update()
        transfer.receive_weights(_transfer.CaidUpdateInfo(int(version), run))
        assert model.layer.weight.data_ptr() == was  # other ranks, perhaps, cannot have it
        transfer.finish_weight_update()
        assert model.layer.weight.data_ptr() != was
    except (_manifest.UnfitError, caid.StaleError) as e:
        said.append(str(e))
    tell()
"""


def test_of_two_engines_one_converts_a_trainers_version(client, engine, model):
    """And what does not fit leaves both as they were."""
    folder, later = model(1), model(2)
    engines = [engine(folder, then=UPDATE) for _ in range(2)]
    for e in engines:
        check_right(e.told(), folder)
    values = numpy.fromfile(later / "model.bin", "f4").reshape(-1, 32)
    right = {"embed.weight": values[:-96], "layer.weight": values[-96:-64], "attention.rope.cos_sin": values[-64:]}

    def told(version, run):
        for e in engines:
            e.process.stdin.write(f"{version} {run}\n")
            e.process.stdin.flush()
            yield e.told()

    with caid.weights.publisher("policy", like=right, client=client) as p:
        p.publish(right)
        version = p.wait()
        for one, is_first in zip(told(version, "a"), (True, False)):
            check_right(one, later)
            assert one["how"].startswith("caid: converted policy@") == is_first
        for one in told(version + 7, "a"):
            check_right(one, later)
            assert "current version" in one["how"]
    wrong = {**right, "layer.weight": values[:8]}
    with caid.weights.publisher("policy", like=wrong, client=client) as p:
        p.publish(wrong)
        for one in told(p.wait(), "b"):
            check_right(one, later)
            assert "does not fit" in one["how"]
    check_right(engine(folder).told(), folder)  # who has nothing to do with the trainer


CACHES = """
import types, caid.vllm
from vllm.v1.engine.core import EngineCore
caid.vllm.register()
for backend, method, result, resets in (
    ("caid", "finish_weight_update", None, 1), ("nccl", "finish_weight_update", None, 0), (None, "finish_weight_update", None, 0),
    ("caid", "update_weights", None, 0), (None, "caid_newer", 7, 1), (None, "caid_newer", None, 0),
):
    core, config = EngineCore(), backend and types.SimpleNamespace(backend=backend)
    core.asked, core.fails = [], None
    core.resets, core.vllm_config = 0, types.SimpleNamespace(weight_transfer_config=config)
    assert core.collective_rpc(method, args=(None, result)) == [None, result]
    assert core.resets == resets, (backend, method, result)
    assert core.asked == ["caid_ready"] * (method == "caid_newer") + [method]
for method in "finish_weight_update", "caid_newer":  # some ranks may have it
    core.asked, core.resets, core.fails = [], 0, method
    core.vllm_config.weight_transfer_config = types.SimpleNamespace(backend="caid")
    try:
        core.collective_rpc(method)
    except RuntimeError:
        assert core.resets == 1
    else:
        raise AssertionError
"""


def test_what_is_kept_of_prompts_is_forgotten_with_a_new_version():
    child = Child(CACHES, {"PYTHONPATH": f"{STANDINS}:{os.environ['PYTHONPATH']}"})
    status, errors = child.finish()
    assert status == 0, errors[-3000:]


SLEEP = """
import caid, numpy
from caid import weights
from caid.vllm import _loader, _sleep
shared = _loader.Shared(caid.connect(), "w", None, {})
with weights.publisher("w", {"x": ((1 << 20,), "f4")}, client=caid.connect()) as p:
    p.publish({"x": numpy.arange(1 << 20, dtype="f4")})
    p.wait()
    shared.weights = shared.find()
    tensor = shared.weights.torch()["x"]
    mapped = lambda: any(int(line.split("-")[0], 16) <= tensor._memory.ctypes.data < int(line.split("-")[1].split()[0], 16)
                         and line.split()[1].startswith("r") for line in open("/proc/self/maps"))
    backend = _sleep.CaidBackend()
    assert mapped()
    backend.suspend(2)
    assert not mapped()
    backend.suspend()
    backend.resume(["kv_cache"])
    assert not mapped()
    backend.resume(["weights"])
    assert mapped() and tensor._memory[-1] == (1 << 20) - 1
    backend.resume()
    backend.suspend()
    shared.weights.close()  # the model has got another version
    backend.resume()
    shared.weights, backend.done = shared.find(), backend.done[:-2]
    tensor = shared.weights.torch()["x"]
    other = _loader.Shared(shared.client, "v", None, {})
    class Fails:
        def unmap(self):
            assert not mapped()
            raise caid.InvalidError(22, "it is open")
    _loader.alive = [shared, other]
    other.weights = Fails()
    try:
        backend.suspend()
    except caid.InvalidError:
        assert mapped() and not backend._unmapped  # the engine goes on
    assert backend.done == (("suspend", 2), ("suspend", 1), ("resume", ["kv_cache"]), ("resume", ["weights"]), ("resume", None))
"""


def test_weights_are_not_mapped_while_an_engine_sleeps(daemon):
    env = {**daemon.env, "PYTHONPATH": f"{STANDINS}:{os.environ['PYTHONPATH']}"}
    child = Child(SLEEP, env)
    status, errors = child.finish()
    assert status == 0, errors[-3000:]
