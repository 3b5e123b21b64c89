# SPDX-License-Identifier: Apache-2.0
"""The checkpoint engine "caid" under verl's own manager and workers, on Ray: the tensors of each update arrive, in each
rollout. The trainer and the rollouts' servers are small ones, without models."""

import os
import types

import pytest
import ray
import torch
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig

import caid


def model(step):
    generator = torch.Generator().manual_seed(step)
    shapes = {"embed": (100, 16), "norm": (16,), "head": (16, 100)}
    return {key: torch.randn(shape, generator=generator).bfloat16() for key, shape in shapes.items()}


def summed(tensors):
    return {key: (tuple(t.shape), str(t.dtype), t.double().sum().item()) for key, t in tensors}


class Trainer(Worker):
    """As verl's, with a model that is another one at each step."""

    def __init__(self, config):
        super().__init__()
        import_external_libs(config.custom_backend_module)
        self.engine = CheckpointEngineRegistry.new(
            config.backend, is_master=self.rank == 0, bucket_size=1 << 20, **config.engine_kwargs["caid"]
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        await self.engine.send_weights(iter(model(global_steps).items()), global_steps=global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.engine, method)(*args, **kwargs)


class Server:
    """What a rollout's server gets."""

    replica_rank, is_leader_rank = 0, True

    async def update_weights(self, weights, global_steps=None, wire_format=None):
        assert wire_format == "named_tensors"
        self.got = summed([pair async for pair in weights])


class Rollout(CheckpointEngineWorker):
    def __init__(self, rollout_config, model_config):
        super().__init__(rollout_config, model_config, Server())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def got(self):
        return self.server_adapter.got


class Replica:
    def __init__(self, workers):
        self.workers = workers

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        async def done(**_):
            pass

        return done


@pytest.fixture
def cluster(daemon, tmp_path):
    env = {**daemon.env, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), os.path.dirname(__file__)])}
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80 << 20, runtime_env={"env_vars": env},
             _temp_dir=str(tmp_path)[:40], log_to_driver=False)  # fmt: skip
    yield
    ray.shutdown()


def group(cls, n, **arguments):
    pool = RayResourcePool(process_on_nodes=[n], use_gpu=False, max_colocate_count=1)
    made = RayClassWithInitArgs(cls=ray.remote(cls), **arguments)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=made, device_name="cpu")


def test_updates_arrive_in_each_rollout(cluster, client):
    config = CheckpointEngineConfig(
        backend="caid", custom_backend_module="caid.rl.verl", engine_kwargs={"caid": {"name": "run/actor", "timeout": 60}}
    )
    trainers = group(Trainer, 2, config=config)
    rollouts = group(Rollout, 2, rollout_config=types.SimpleNamespace(checkpoint_engine=config, name="vllm"), model_config=None)
    manager = CheckpointEngineManager(config=config, actor_wg=trainers, replicas=[Replica(rollouts.workers)])
    for step in (1, 2, 3):
        manager.update_weights(global_steps=step)
        assert rollouts.got() == [summed(model(step).items())] * 2
        with caid.weights.open("run/actor", client=client) as w:
            assert (w.version, w.metadata) == (step, {"global_steps": step})
