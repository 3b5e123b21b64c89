# SPDX-License-Identifier: Apache-2.0
"""verl (0.9): the checkpoint engine "caid", for trainers and rollouts on one machine::

    actor_rollout_ref.rollout.checkpoint_engine.backend=caid
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=caid.rl.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.caid.name=actor

The trainer's first rank publishes a version with each update, and rollouts map it: one copy is made, whatever the number
of rollouts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache
from verl.workers.rollout.utils import ensure_async_iterator

from .. import weights
from .._base._errors import NotFoundError
from .._session import _default
from ..weights._weights import prefix_of
from ._versions import Versions, on_this_device


@CheckpointEngineRegistry.register("caid")
class CaidCheckpointEngine(CheckpointEngineWithCache):
    """Parameters, of which `engine_kwargs.caid` has those that are not verl's:

    bucket_size, is_master
        verl's. The former is not used: there are no buckets.
    name : str
        The model's name, which the rollouts open: one for each training run of a user.
    pool, versions
        As for :func:`caid.weights.publisher`.
    timeout : float
        Seconds that a rollout waits for the trainer, and the trainer for rollouts that have the version that is to be
        overwritten.
    """

    def __init__(
        self, bucket_size: int, name: str = "actor", pool: str | None = None, versions: int = 2, timeout: float = 600.0,
        is_master: bool = False,
    ):  # fmt: skip
        self._client = _default.default_client()
        self._name, self._pool, self._timeout = name, pool, timeout
        self._versions = Versions(name, pool=pool, versions=versions, timeout=timeout) if is_master else None
        self._after = 0  # the version that was current before the update
        self._received: weights.Weights | None = None

    def prepare(self) -> dict[str, Any]:
        """Which daemon this process has, and which version is current there."""
        try:
            with weights.open(self._name, pool=self._pool) as w:
                version = w.version
        except NotFoundError:
            version = 0
        return {"daemon": self._client.daemon_id, "machine": self._client.machine_id, "version": version}

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]):
        """ValueError: a rollout is on another machine than the trainer's first rank, or has another daemon."""
        first = metadata[0]
        for rank, told in enumerate(metadata[actor_wg_world_size:]):
            if (told["machine"], told["daemon"]) != (first["machine"], first["daemon"]):
                raise ValueError(
                    f'checkpoint engine "caid": rollout worker {rank} has another daemon than the trainer, or is on'
                    " another machine"
                )
        return tuple({"after": [first["version"]] * n} for n in (actor_wg_world_size, rollout_world_size))

    def init_process_group(self, after: int) -> None:
        self._after = after

    def finalize(self) -> None:
        """Gives back the version that was received, when it has been read."""
        received, self._received = self._received, None
        if received is not None:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            received.close()

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Publishes the next version. Ranks but the first take part in gathering its tensors."""
        if self._versions is None:
            async for _ in ensure_async_iterator(weights):
                pass
            return
        with self._versions.version({"global_steps": global_steps}) as put:
            async for key, tensor in ensure_async_iterator(weights):
                put(key, tensor)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The tensors of the update, mapped read-only, until finalize()."""
        with self._client.watch(prefix_of(self._name), pool=self._pool, timeout=self._timeout) as watch:
            async for change in watch:
                if change.generation > self._after:
                    break
        async for pair in self.get_weights():
            yield pair

    async def get_weights(self) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The tensors of the current version, mapped read-only, until finalize()."""
        self.finalize()
        self._received = weights.open(self._name, pool=self._pool)
        for pair in on_this_device(self._received).items():
            yield pair
