# SPDX-License-Identifier: Apache-2.0
"""Live updates of real vLLM: a trainer's versions by weight transfer, and by collective_rpc()."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from conftest import Server

import caid
import caid.vllm

LIVE = {"weight_transfer_config": {"backend": "caid"}, "worker_extension_cls": "caid.vllm.Worker", "enable_prefix_caching": True, "block_size": 32}
VERSIONS = int(os.environ.get("CAID_LIVE_VERSIONS", "100"))


class Engines:
    """The trainer's client: vLLM's four calls, to engines in turn."""

    def __init__(self, *engines):
        self._engines = engines

    def _all(self, call, *arguments):
        for engine in self._engines:
            engine(call, *arguments)

    def init_weight_transfer_engine(self, info):
        self._all("init_weight_transfer_engine", {"init_info": info})

    def start_weight_update(self):
        self._all("start_weight_update")

    def update_weights(self, info):
        self._all("update_weights", {"update_info": info})

    def finish_weight_update(self, weight_version=None):
        self._all("finish_weight_update", weight_version)


@pytest.fixture
def trainer(daemon, monkeypatch):
    """trainer(client, module): vLLM's trainer side, by its registry."""
    for key, value in daemon.env.items():
        monkeypatch.setenv(key, value)
    caid.vllm.register()
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    from caid.vllm import CaidTrainerInitInfo

    made = []

    def begin(client, module, **options):
        info = CaidTrainerInitInfo(rank=0, **options)
        made.append(WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(module)))
        return made[-1]

    yield begin
    for each in made:
        each.shutdown()


def module(models, name):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(models[name], dtype=torch.float32)


def test_one_engine_converts_a_trainers_version_and_the_other_maps_it(client, engine, models, own, trainer):
    engines = [engine(models["one"], **LIVE) for _ in range(2)]
    assert [e("tokens") for e in engines] == [own("one")] * 2
    policy = module(models, "one")
    sender = trainer(Engines(*engines), policy)
    for name in ("two", "one", "two"):
        policy.load_state_dict(module(models, name).state_dict())
        sender.send_weights()
        assert [e("tokens") for e in engines] == [own(name)] * 2  # also of prompts that were cached
    converted = [sum(line.startswith("converted") for line in e.said()) for e in engines]
    assert converted == [3, 0]
    policy.lm_head.weight.data = policy.lm_head.weight.data[:, :1].clone()
    with pytest.raises(Exception, match="not"):
        sender.send_weights()
    assert [e("tokens") for e in engines] == [own("two")] * 2
    other = engine(models["one"])  # who has nothing to do with the trainer has what the files have
    assert other("tokens") == own("one")


def test_a_version_that_one_rank_cannot_have_is_no_ranks(client, engine, models, own, trainer):
    """Nor is the next one refused by an engine that another one, or a rank, has kept from the end of an update."""
    alone, both = engine(models["one"], **LIVE), engine(models["one"], tensor_parallel_size=2, **LIVE)
    sender = trainer(Engines(alone, both), module(models, "two"))

    def tokens():
        return alone("tokens"), both("tokens")

    before, after = ((own(name), own(name, tensor_parallel_size=2)) for name in ("one", "two"))
    names = [entry.name for entry in client.list() if entry.name.startswith("llama.") and not entry.of_set]
    in_the_way = [client.create(f"{name[:-1]}.live/x", 1, "|u1") for name in names]
    assert len(in_the_way) == 3
    for array in in_the_way:
        with pytest.raises(RuntimeError, match="fit|failed"):
            sender.send_weights()
        assert tokens() == before
        client.unlink(array.name)
        array.close()
    sender.send_weights()
    assert tokens() == after


def test_what_a_trainer_publishes_in_the_engines_form_is_mapped(client, engine, models, own):
    options = {"worker_extension_cls": "caid.vllm.Worker", "enable_prefix_caching": True, "block_size": 32}
    engines = [engine(models["one"], **options) for _ in range(2)]
    engine(models["two"])
    assert [e("tokens") for e in engines] == [own("one")] * 2
    both = forms(client)
    with caid.weights.publisher("policy", like=both[0], client=client) as p:
        seen = set()
        for i in (0, 1, 0, 1):
            p.publish(both[i])
            version = p.wait()
            assert [e("caid_newer", "policy") for e in engines] == [[version]] * 2
            assert [e("caid_newer", "policy") for e in engines] == [[None]] * 2
            (tokens,) = {str(e("tokens")) for e in engines}
            seen.add(tokens)
        assert seen == {str(own("one")), str(own("two"))}


def forms(client):
    """What engines have of "one" and "two", by name."""
    made = []
    for entry in client.list():
        if entry.name.endswith("/") and entry.name.startswith("llama."):
            with caid.weights.open(entry.name[:-1], client=client) as w:
                made.append({key: tensor.clone() for key, tensor in w.torch().items() if key != "caid.vllm"})
    return made


KILLED = """
import os, sys, caid
with caid.weights.publisher("policy", like=eval(sys.argv[1]), client=caid.connect()) as p, p.version() as new:
    next(iter(new.values()))[:] = 1
    os.kill(os.getpid(), 9)
"""


def kill_a_trainer(daemon, named):
    """One that has written a part of a version."""
    like = {key: (tuple(tensor.shape), str(tensor.dtype)[6:]) for key, tensor in named.items()}
    killed = subprocess.run([sys.executable, "-c", KILLED, repr(like)], env={**os.environ, **daemon.env})
    assert killed.returncode == -9


@pytest.mark.parametrize("mode", ["wait", "keep", "abort"])
def test_many_versions_under_three_clients(client, daemon, engine, models, tmp_path, mode):
    """With "wait" each answer is of one version; with "keep" it may begin with one and end with the next; with "abort" it
    may be cut. Trainers are killed half-way and at the end."""
    torch.set_num_threads(1)  # several would wait for one another while the server has the cores
    engine(models["two"])
    server = Server(daemon.env, tmp_path / "server", models["one"], "--worker-extension-cls", "caid.vllm.Worker")
    try:
        server.wait()
        both = forms(client)

        def take():
            server.ask(f"/pause?mode={mode}")
            server.ask("/collective_rpc", {"method": "caid_newer", "args": ["policy"]})
            server.ask("/resume")

        def send(publisher, i):
            publisher.publish(both[i])
            publisher.wait()
            take()

        def trainer():
            return caid.weights.publisher("policy", like=both[0], client=client)

        whole, answers, failures, done = [], [], [], threading.Event()
        with trainer() as publisher:
            for i in (0, 1):
                send(publisher, i)
                whole.append(server.tokens())
        assert whole[0][0] != whole[1][0]

        def ask():
            while not done.is_set():
                try:
                    answers.append(server.tokens())
                except Exception as e:
                    failures.append(repr(e))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        n = 0
        try:
            for part in (1, 2):
                with trainer() as publisher:
                    while not failures and (n < VERSIONS * part / 2 or len(answers) < 10 * part):
                        send(publisher, 0)
                        send(publisher, 1)
                        n += 2
                kill_a_trainer(daemon, both[0])
                take()
        finally:
            done.set()
            for thread in threads:
                thread.join()
        of_one = sum(answer in whole for answer in answers)
        print(f"{mode}: {n} versions, {len(answers)} answers, {of_one} of one version")
        assert not failures
        for answer in answers:
            like = next(tokens for tokens in whole if tokens[: len(answer[:1])] == answer[:1])
            assert mode == "abort" or len(answer) == len(like)
            assert mode == "keep" or answer == like[: len(answer)]
        assert server.tokens() == whole[1]
    finally:
        server.end()


def test_a_trainer_updates_a_server(client, daemon, models, own, tmp_path, trainer):
    server = Server(daemon.env, tmp_path / "server", models["one"], "--weight-transfer-config", '{"backend": "caid"}')
    try:
        server.wait()
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

        sender = trainer(HTTPVLLMWeightSyncClient(f"http://127.0.0.1:{server.port}"), module(models, "two"))
        assert server.tokens() == own("one")[0]
        server.ask("/pause?mode=wait")
        sender.send_weights()
        server.ask("/resume")
        assert server.tokens() == own("two")[0]
        with caid.weights.open("policy", client=client) as current:
            assert server.ask("/weight_info", method="GET")["weight_version"] == str(current.version)
    finally:
        server.end()


def test_a_trainer_is_killed(client, daemon, engine, models, own, trainer):
    """While it writes a version. The engine serves on, and the next trainer goes on."""
    serving = engine(models["one"], **LIVE)
    kill_a_trainer(daemon, dict(module(models, "one").named_parameters()))
    assert serving("tokens") == own("one")
    trainer(Engines(serving), module(models, "two")).send_weights()
    assert serving("tokens") == own("two")
