# SPDX-License-Identifier: Apache-2.0
"""Four processes serve one copy of a language model of transformers, while a trainer publishes new versions of it: each
process takes the new weights between two requests, and copies nothing.

usage: serve_llm_transformers.py [HIDDEN LAYERS]

Needs PyTorch and transformers; the weights are random. `3072 28` is a model of 5.6 GiB. Without a GPU it all runs on the
software driver and the CPU. It runs on a daemon of its own; where one is installed, leave LocalDaemon out.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import caid
import caid.weights

try:
    import torch
    import transformers
except ImportError as e:
    sys.exit(f"{sys.argv[0]} needs PyTorch and transformers: {e}")

WORKERS, VERSIONS, PROMPT, TOKENS = 4, 4, 16, 24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def build(device: str, hidden: int, layers: int) -> Any:
    heads = max(hidden // 128, 1)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 8 // 3, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(heads // 3, 1), vocab_size=32000, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    with torch.device(DEVICE):
        model.model.rotary_emb = type(model.model.rotary_emb)(config)  # is computed, and in no state_dict
    return model


def answer(model: Any) -> list[int]:
    with torch.inference_mode():
        prompt = torch.arange(1, 1 + PROMPT, device=DEVICE)[None]
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS, do_sample=False,
                                pad_token_id=0, eos_token_id=None)  # fmt: skip
    return list(tokens[0, PROMPT:].tolist())


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def serve(size: list[int]) -> None:
    """A worker: it tells what it answers by each version, and how long it took to have that."""
    model = build("meta", *size)  # shapes without memory: the weights are caid's
    torch.zeros(1, device=DEVICE)
    synchronize()  # the context is there
    start = time.perf_counter()
    weights = caid.weights.open("llm")
    model.load_state_dict(weights.torch(), assign=True)
    parameters = dict(model.named_parameters())
    while True:
        synchronize()
        ms = (time.perf_counter() - start) * 1e3
        print(json.dumps({"step": weights.metadata, "ms": ms, "tokens": answer(model)}), flush=True)
        if weights.metadata == VERSIONS:
            break
        newer = None
        while newer is None:  # a request that comes meanwhile would be answered here
            start = time.perf_counter()
            newer = weights.newer()
        for key, tensor in newer.torch().items():
            parameters[key].data = tensor  # lets go of the old one
        weights.close()
        weights = newer
    weights.close()


def train(model: Any, step: int) -> None:
    """A trainer's step, as far as anybody here can see."""
    torch.manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.05)


def main(size: list[int]) -> int:
    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        os.environ.update(daemon.env)
        model = build(DEVICE, *size)
        expected: dict[int, list[int]] = {}
        with caid.weights.publisher("llm", like=model, client=client) as publisher:
            workers: list[subprocess.Popen[str]] = []
            told: list[list[str]] = []
            for step in range(1, VERSIONS + 1):
                train(model, step)
                expected[step] = answer(model)  # by a copy of its own
                publisher.publish(model.state_dict(), metadata=step)  # waits until all have let go of the last but one
                if not workers:
                    publisher.wait()
                    command = [sys.executable, __file__, "serve", *map(str, size)]
                    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)]
                    told = [[worker.stdout.readline()] for worker in workers if worker.stdout]  # once it serves
            for lines, worker in zip(told, workers):
                lines += worker.communicate()[0].splitlines()
            used = client.memory_info().used / publisher.nbytes
        failed: int = sum(worker.returncode != 0 for worker in workers)
    wrong: int = 0
    for lines in told:
        answers = [json.loads(line) for line in lines]
        ready, *swaps = (f"{one['ms']:.1f}" for one in answers)
        print(f"a worker was ready in {ready} ms, and had a new version in {', '.join(swaps)} ms")
        wrong += sum(one["tokens"] != expected[one["step"]] for one in answers)
    print(f"{publisher.nbytes / 2**20:.0f} MiB a version, memory of {used:.1f}; {wrong} answers are not those of a copy")
    return failed + wrong


if __name__ == "__main__":
    if "serve" in sys.argv:
        serve([*map(int, sys.argv[2:])])
    else:
        sys.exit(main([*map(int, sys.argv[1:])] or [256, 2]))
