# SPDX-License-Identifier: Apache-2.0
"""What tests of real engines share: small models, a daemon, and engines in processes. `./dev engines` runs them."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

os.environ.setdefault("CAID_CUDA_DRIVER", "soft")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_CPU_KVCACHE_SPACE="1", CUDA_HOME="")

import caid  # noqa: E402

HERE = pathlib.Path(__file__).parent


class Engine:
    """An engine. `log` is what it has said."""

    def __init__(self, env, log, options):
        self.log = log
        many = options.get("tensor_parallel_size", 1) > 1
        env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **({"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if many else {}), **env}
        self._is_alone = not many and env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        read, write = os.pipe()
        with open(log, "w") as said:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "engine.py", json.dumps(options), str(write)], stdin=subprocess.PIPE, stdout=said,
                stderr=subprocess.STDOUT, pass_fds=[write], env={**os.environ, **env, "PYTHONPATH": path}, text=True,
            )
        os.close(write)
        self._answers = os.fdopen(read)

    def answer(self):
        line = self._answers.readline()
        assert line, f"the engine has ended: {self.log.read_text()[-3000:]}"
        return json.loads(line)

    def send(self, call, *arguments):
        self.process.stdin.write(json.dumps([call, *arguments]) + "\n")
        self.process.stdin.flush()

    def __call__(self, call, *arguments):
        self.send(call, *arguments)
        answer = self.answer()
        if isinstance(answer, dict):
            raise RuntimeError(answer["error"])
        return answer

    def said(self):
        """What caid has said in it, without what stands before."""
        lines = self.log.read_text().splitlines()
        return [line.partition("] caid: ")[2] for line in lines if "] caid: " in line]

    def end(self):
        """Processes that it has made end with it where it is asked to end."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if self._is_alone else 60)
        self.kill()
        self._answers.close()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of Llamas of 2 M parameters: "one" and "two" differ in their values, "tied" in its ties, "half" in its type."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    made = {}
    for name, seed, tied, dtype in (
        ("one", 1, False, torch.float32), ("two", 2, False, torch.float32), ("tied", 1, True, torch.float32),
        ("half", 1, False, torch.bfloat16),
    ):
        torch.manual_seed(seed)
        config = LlamaConfig(
            hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=1000, max_position_embeddings=256, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
            initializer_range=0.2,
        )
        made[name] = tmp_path_factory.mktemp(name) / "llama"
        LlamaForCausalLM(config).to(dtype).save_pretrained(made[name])
    return made


@pytest.fixture
def daemon():
    with caid.LocalDaemon() as d:
        yield d


@pytest.fixture
def client(daemon):
    with daemon.connect() as c:
        yield c


@pytest.fixture
def start(daemon, tmp_path):
    """start(model, **options): an engine that is about to be ready; its first answer() is "ready"."""
    engines = []

    def begin(model, env=None, **options):
        log = tmp_path / f"engine{len(engines)}.log"
        options = {"model": str(model), "dtype": "bfloat16" if "half" in str(model) else "float32", **options}
        engines.append(Engine({**daemon.env, **(env or {})}, log, options))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.end()


@pytest.fixture
def engine(start):
    """engine(model, **options): one that is ready, and loads by caid."""

    def begin(model, **options):
        made = start(model, **{"load_format": "caid", **options})
        assert made.answer() == "ready"
        return made

    return begin


@pytest.fixture(scope="session")
def own(models, tmp_path_factory):
    """own(model, **options): the tokens of an engine that loads by vLLM's own loader."""
    known = {}

    def tokens(name, **options):
        key = name, tuple(options.items())
        if key not in known:
            dtype = "bfloat16" if name == "half" else "float32"
            made = Engine({}, tmp_path_factory.mktemp("own") / "log", {"model": str(models[name]), "dtype": dtype, **options})
            assert made.answer() == "ready"
            known[key] = made("tokens")
            made.end()
        return known[key]

    return tokens


class Server:
    """vLLM's HTTP server, on loopback."""

    def __init__(self, env, log, model, *options):
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log, env = log, {**os.environ, "VLLM_SERVER_DEV_MODE": "1", **env}
        with open(log, "w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--enable-scale-out",
                 "--enforce-eager", "--skip-tokenizer-init", "--max-model-len", "128", "--dtype", "float32", "--host", "127.0.0.1",
                 "--port", str(self.port), "--load-format", "caid", *options],
                env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )

    def ask(self, path, body=None, method="POST"):
        import urllib.request

        url, data = f"http://127.0.0.1:{self.port}{path}", None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def wait(self):
        import time

        while True:
            try:
                return self.ask("/health", method="GET")
            except OSError:
                assert self.process.poll() is None, self.log.read_text()[-3000:]
                time.sleep(0.2)

    def tokens(self, prompt=(1, 5, 6, 7), n=24):
        how = {"max_tokens": n, "temperature": 0, "ignore_eos": True}
        return self.ask("/inference/v1/generate", {"token_ids": list(prompt), "sampling_params": how})["choices"][0]["token_ids"]

    def end(self):
        import signal

        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
