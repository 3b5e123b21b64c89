# SPDX-License-Identifier: Apache-2.0
"""Twelve models in the memory of four. Three workers answer requests, each for one of the models, some of which are asked
for more often. A model that is not there makes room for itself, and is loaded again.

usage: many_models.py [REQUESTS [MIB [REQUESTS.json]]]

MIB is the size of a model, an even number. The file gets a line for each request.
"""

import json
import multiprocessing
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import time
from typing import NamedTuple

import caid
import caid.weights

MODELS, ROOM, WORKERS, TENSORS = 12, 4, 3, 8


class Answer(NamedTuple):
    model: int
    at: float  # seconds
    took: float  # seconds until the model was open
    was_there: bool


def name_of(model: int) -> str:
    return f"model-{model:02}"


def write(folder: pathlib.Path, model: int, mib: int) -> pathlib.Path:
    """A safetensors file of which each element is the model's number."""
    nbytes = (mib << 20) // TENSORS
    header = {f"layer.{i}": {"dtype": "U8", "shape": [nbytes], "data_offsets": [i * nbytes, (i + 1) * nbytes]} for i in range(TENSORS)}
    text = json.dumps(header).encode()
    path = folder / f"{name_of(model)}.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes([model]) * (nbytes * TENSORS))
    return path


def ask(client: caid.Client, model: int, begun: float) -> Answer:
    """Opens the model, uses it, and lets go of it."""
    was_there = client.exists(f"{name_of(model)}/")
    start = time.monotonic()
    with caid.weights.open(name_of(model), client=client) as weights:
        took = time.monotonic() - start
        some = weights[f"layer.{model % TENSORS}"].copy_to_host()
        if not (some == model).all():
            raise SystemExit(f"{weights!r} has the bytes of another model")
    return Answer(model, start - begun, took, was_there)


def work(address: str, seed: int, requests: int, begun: float) -> list[Answer]:
    choose = random.Random(seed)
    often = [1 / (model + 1) for model in range(MODELS)]
    with caid.connect(address) as client:
        return [ask(client, model, begun) for model in choose.choices(range(MODELS), often, k=requests)]


def say(answers: list[Answer]) -> None:
    print("model     requests  was there  loaded")
    for model in range(MODELS):
        there = [answer.was_there for answer in answers if answer.model == model]
        print(f"{name_of(model)}  {len(there):8} {sum(there):10} {len(there) - sum(there):7}")
    for was_there, what in (True, "was there: opened in"), (False, "was not: loaded, or waited for, in"):
        times = [answer.took * 1000 for answer in answers if answer.was_there == was_there]
        if times:
            print(f"{len(times)} of {len(answers)} times it {what} {statistics.median(times):.1f} ms, at most {max(times):.1f} ms")


def main(requests: int = 300, mib: int = 16, *, path: str = "") -> None:
    config = f"[user-pools]\nquota = {ROOM * mib}M\n"
    with tempfile.TemporaryDirectory() as folder, caid.LocalDaemon(config=config) as daemon:
        with daemon.connect() as client:
            for model in range(MODELS):
                file = write(pathlib.Path(folder), model, mib)
                caid.weights.load(file, name_of(model), keep="droppable", client=client)
        with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
            shares = [(daemon.address, seed, requests // WORKERS, time.monotonic()) for seed in range(WORKERS)]
            answers = [answer for each in pool.starmap(work, shares, 1) for answer in each]
    print(f"{MODELS} models of {mib} MiB in the memory of {ROOM}: {len(answers)} requests to {WORKERS} workers")
    say(answers)
    if path:
        pathlib.Path(path).write_text("".join(json.dumps(a._asdict()) + "\n" for a in sorted(answers, key=lambda a: a.at)), "utf-8")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), path="".join(sys.argv[3:4]))
