# SPDX-License-Identifier: Apache-2.0
"""Weights on hardware: as tensors of PyTorch, CuPy and JAX, from a module, and under CUDA graphs that
outlive an unmapping."""

import json
import pathlib
import struct

import pytest
from conftest import needs, run

N = 1 << 20


@pytest.fixture
def file(tmp_path):
    """Tensors of three types; every element of `a` is 2, of `b` 3."""
    values = {"a": ("BF16", b"\x00\x40"), "b": ("F32", struct.pack("<f", 3)), "c": ("F8_E4M3", b"\x38")}
    header, body = {}, b""
    for key, (dtype, one) in values.items():
        start = len(body)
        body += one * N
        header[key] = {"dtype": dtype, "shape": [N], "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return str(path)


LOAD = """
    import sys
    import caid.weights
    caid.weights.load(sys.argv[1], "m")
    w = caid.weights.open("m")
"""

TAKEN = {
    "torch": """
    t = w.torch()
    assert t["a"].dtype == torch.bfloat16 and t["a"].sum(dtype=torch.float32) == 2 * t["a"].numel()
    assert t["c"].dtype == torch.float8_e4m3fn and (t["c"].float() == 1).all()
    assert t["b"].data_ptr() == w["b"].ptr
    m = torch.nn.ParameterDict({"b": torch.zeros_like(t["b"])}).requires_grad_(False)
    m.load_state_dict({"b": t["b"]}, assign=True)
    assert m["b"].data_ptr() == w["b"].ptr and (m["b"] == 3).all()
    h = w.torch(device="cpu")
    assert {x.device.type for x in h.values()} == {"cpu"} and (h["b"] == 3).all() and (h["a"] == 2).all()
    assert len({x.untyped_storage().data_ptr() for x in h.values()}) == 1
    """,
    "cupy": """
    n = caid.weights.load(sys.argv[1], "n", only="b")
    t = caid.weights.open("n").cupy()
    assert (t["b"] == 3).all() and t["b"].data.ptr == caid.weights.open("n")["b"].ptr
    """,
    "jax": """
    import jax.numpy
    t = w.jax()
    assert t["a"].dtype == jax.numpy.bfloat16 and (t["a"] == 2).all() and (t["b"] == 3).all()
    """,
}


@pytest.mark.parametrize("library", TAKEN)
def test_weights_are_tensors_of(daemon, file, library):
    needs(library)
    run(daemon.env, f"import {library}\n" + "".join(map(_plain, (LOAD, TAKEN[library]))), [file])


def _plain(script):
    return "\n".join(line.removeprefix("    ") for line in script.split("\n"))


def test_a_modules_parameters_are_published_without_a_copy(daemon, tmp_path):
    needs("torch")
    out = run(daemon.env, """
        import sys, torch, caid.torch, caid.weights
        with torch.cuda.use_mem_pool(caid.torch.MemPool()):
            module = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64))
            module = module.to("cuda")
            module[1].weight = module[0].weight
            module.register_buffer("none", torch.empty(0, 3, device="cuda"))
            module.register_buffer("turned", torch.arange(6, device="cuda").view(2, 3).t())
        caid.weights.from_torch(module, "module", metadata={"step": 7})
        with caid.connect() as other:
            w = caid.weights.open("module", client=other)
            assert w.metadata == {"step": 7} and sorted(w) == sorted(module.state_dict())
            t = w.torch()
            for key, value in module.state_dict().items():
                assert torch.equal(t[key], value)
            assert t["0.weight"] is t["1.weight"]
            with torch.no_grad():
                module[1].bias.fill_(5)
            torch.cuda.synchronize()
            assert (t["1.bias"] == 5).all()
            caid.weights.save(w, sys.argv[1])
            del t
            w.close()
        caid.weights.unload("module")
        print("done")
    """, [str(tmp_path / "module.safetensors")])
    assert out == "done\n"


@pytest.mark.parametrize("old", [False, True])
def test_a_modules_memory_is_kept_as_long_as_its_version(daemon, old):
    needs("torch")
    run(daemon.env, """
        import sys, torch, caid.torch, caid.weights
        pool = caid.torch.MemPool()
        if sys.argv[1] == "True":  # what a daemon from before says
            def refuse(*_):
                raise caid._base._errors.UnknownMethodError(0, "it is older")
            caid.Arena._set_create = refuse
        with torch.cuda.use_mem_pool(pool):
            module = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(50))).to("cuda")
        module.requires_grad_(False)
        for p in module.parameters():
            p.fill_(1)
        caid.weights.from_torch(module, "module")
        arena = caid.torch.arena()
        assert arena.info.published == 100
        del module, p
        with torch.cuda.use_mem_pool(pool):
            other = [torch.zeros(512, 512, device="cuda") for _ in range(200)]
        torch.cuda.synchronize()
        with caid.connect() as client:
            w = caid.weights.open("module", client=client)
            t = w.torch()
            assert len(t) == 100 and all((x == 1).all() for x in t.values())
            del t
            w.close()
        try:
            caid.weights.from_torch(torch.nn.Linear(8, 8).to("cuda"), "module")
        except ValueError as e:
            assert "is not in caid's memory" in str(e)
        else:
            raise AssertionError("it is published")
        caid.weights.unload("module")
        while arena.info.published:
            pass
    """, [str(old)])


def test_a_graph_over_weights_is_valid_after_they_were_unmapped_and_mapped(daemon, file):
    needs("torch")
    run(daemon.env, "import torch" + _plain(LOAD) + _plain("""
    t = w.torch()
    out = torch.zeros_like(t["b"])
    torch.mul(t["b"], 2, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(t["b"], 2, out=out)
    address = w["b"].ptr
    for _ in range(3):
        w.unmap()
        try:
            w["b"].ptr
        except caid.ClosedError:
            pass
        else:
            raise AssertionError("it is mapped")
        w.map()
        assert w["b"].ptr == address
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert (out == 6).all()
    """), [file])


def test_a_reservation_gives_two_processes_one_address(daemon, file):
    script = _plain(LOAD.replace('w = caid.weights.open("m")', "")) + _plain("""
    with caid.connect() as c, c.reserve(1 << 30, int(sys.argv[2])) as r:
        w = caid.weights.open("m", client=c)
        print(r.address, w["b"].ptr)
        assert (w["b"].copy_to_host() == 3).all()
    """)
    first = run(daemon.env, script, [file, "0"]).split()
    assert run(daemon.env, script, [file, first[0]]).split() == first


def test_a_write_to_read_only_weights_ends_the_writer_alone(daemon, file):
    needs("torch")
    run(daemon.env, "import torch" + _plain(LOAD) + _plain("""
    import subprocess
    writer = '''
import torch, caid.weights
t = caid.weights.open("m").torch()
try:
    t["b"].add_(1)
    torch.cuda.synchronize()
except RuntimeError:
    raise SystemExit(7)
'''
    r = subprocess.run([sys.executable, "-c", writer])
    assert r.returncode != 0
    assert (w.torch()["b"] == 3).all()
    """), [file])


PUBLISHES = """
    import torch, caid, caid.weights
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2048, dtype=torch.bfloat16)
            self.tied = torch.nn.Linear(2048, 2048, bias=False)
            self.tied.weight = self.a.weight
    def value_of(client):
        with caid.weights.open("m", client=client) as w:
            tensors = w.torch()
            found = {float(x) for t in tensors.values() for x in (t.min(), t.max())}
            assert tensors["a.weight"].data_ptr() == tensors["tied.weight"].data_ptr()
        (value,) = found
        return value
    def fill(module, value):
        with torch.no_grad():
            for t in module.parameters():
                t.fill_(value)
    with torch.device("meta"):
        like = Module()
    module = Module().to("cuda")
    with caid.connect() as client, caid.connect() as other, caid.weights.publisher("m", like, client=client) as p:
        side = torch.cuda.Stream()
        for value in range(1, 30):
            stream = side if value % 3 == 0 else None
            if value % 5 == 0:      # from the host, page-locked
                host = {key: t.cpu().fill_(value).pin_memory() for key, t in module.state_dict().items()}
                p.publish(host)
                for t in host.values():
                    t.fill_(99)     # they have been read
            elif stream is None:
                torch.cuda._sleep(10_000_000)
                fill(module, value)
                p.publish(module.state_dict())
                fill(module, 99)    # on the same stream: after the copy
            else:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(10_000_000)
                torch.cuda.current_stream().synchronize()
                copies = {key: torch.full_like(t, value) for key, t in module.state_dict().items()}
                torch.cuda.current_stream().synchronize()
                p.publish(copies, stream=side)
                del copies          # whose memory PyTorch gives to these
                others = [torch.full_like(t, 99) for t in module.state_dict().values()]
            version = p.wait()
            assert value_of(other) == value, (value, value_of(other))
        with p.version(stream=side) as w, torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            for t in w.values():
                t.fill_(50)
        assert p.wait() == version + 1 and value_of(other) == 50
        if torch.cuda.device_count() > 1:
            elsewhere = Module().to("cuda:1")
            fill(elsewhere, 51)
            torch.cuda.synchronize(1)
            p.publish(elsewhere.state_dict())
            p.wait()
            assert value_of(other) == 51 and p.device == 0
    print("published")
"""


def test_a_publishers_versions_are_whole(daemon):
    """On PyTorch's current stream, on another, from the host; the sources are written anew, or freed, at once."""
    needs("torch")
    assert run(daemon.env, _plain(PUBLISHES), []).endswith("published\n")


def test_the_example_of_transformers(daemon):
    needs("torch", "transformers")
    example = pathlib.Path(__file__).parents[2] / "examples/serve_llm_transformers.py"
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(example)!r}], check=True)"
    assert "; 0 answers are not" in run(daemon.env, code)
