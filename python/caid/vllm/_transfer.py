# SPDX-License-Identifier: Apache-2.0
"""Weight transfer backend "caid" of vLLM: a trainer publishes versions in the names of its checkpoint, by
caid.weights.publisher(). One engine converts a version to what vLLM computes with, and publishes that; the others map it.

An engine changes nothing before each of its ranks has the whole of a version: one that does not fit, or a trainer that
dies, leaves it as it was.
"""

from __future__ import annotations

import gc
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

import caid

from .. import weights
from ..weights._turn import turn
from . import _loader, _worker
from ._manifest import UnfitError

logger = init_logger("vllm.caid")

_TIMEOUT_S = 300.0  # for which an engine waits for the one that converts, and a trainer for another one, or for engines


@dataclass
class CaidInitInfo(WeightTransferInitInfo):
    name: str  # of the trainer's versions
    pool: str | None = None


@dataclass
class CaidUpdateInfo(WeightTransferUpdateInfo):
    version: int
    run: str  # tells versions of a trainer from those of one that has been started anew


@dataclass
class CaidTrainerInitInfo(TrainerInitInfo):
    """What a trainer says: the name that its versions have, in which pool, and how many of them there are."""

    backend: ClassVar[str] = "caid"
    name: str = "policy"
    pool: str | None = None
    versions: int = 2


class CaidWeightTransferEngine(WeightTransferEngine[CaidInitInfo, CaidUpdateInfo]):
    """In a worker of an engine."""

    init_info_cls = CaidInitInfo
    update_info_cls = CaidUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config, vllm_config, device, model):
        super().__init__(config, vllm_config, device, model)
        shared = getattr(model, "caid", None)
        if shared is None:
            raise UnfitError('weight transfer by "caid" is for engines that share their weights: --load-format caid')
        self._client = caid.connect()  # by which versions are looked at
        self._facts = shared.facts
        self._live = _loader.Shared(shared.client, f"{shared.name}.live", shared.pool, shared.facts)
        self._in_place = device.type == "cuda" and not self.model_config.enforce_eager
        self._next: _worker.Next | None = None  # that finish_weight_update() takes
        if self._in_place:
            self._begin(model)

    def _begin(self, model):
        """Graphs will be captured over the addresses, which versions of one block can take over. So that is what the
        model gets, under a name for the moment: other engines have the trainer's version, perhaps."""
        self._expect("none")
        live = self._live
        first = _loader.Shared(live.client, f"{live.name}.{uuid.uuid4().hex[:8]}", live.pool, live.facts)
        first.publish(model, in_one_block=True, ttl=_TIMEOUT_S)
        _worker.Next(model, first).take()
        live.client.unlink(f"{first.name}/", pool=live.pool)

    def init_transfer_engine(self, init_info):
        self._info = init_info

    def start_weight_update(self):
        following, self._next = self._next, None
        if following is not None:  # of an update that another engine, or rank, has kept from its end
            following.close()

    def receive_weights(self, update_info):
        self.start_weight_update()
        live = self._live
        with turn(live.client, live.name, pool=live.pool, timeout=_TIMEOUT_S):
            self._expect(f"{update_info.run}@{update_info.version:020}")
            if not self._is_there():
                self._convert(f"{self._info.name}@{update_info.version}")
            self._next = _worker.Next(self.model, live, self._client if self._in_place else None)

    def finish_weight_update(self):
        following, self._next = self._next, None
        if following is not None:
            following.take()

    def shutdown(self):
        self.start_weight_update()
        self._client.close()

    def _expect(self, update):
        # Of one length, as the manifest is: versions that are laid out alike take each other's place.
        self._live.facts = {**self._facts, "update": f"{update:64}"}

    def _is_there(self):
        opened = self._live.find(self._client)
        if opened is None:
            return False
        with opened:
            return not self._live.differences(opened)

    def _convert(self, version):
        loader = _loader.CaidModelLoader(self.vllm_config.load_config)
        with weights.open(version, pool=self._info.pool, client=self._client) as opened:
            loader.convert(self._live, self.vllm_config, self.model_config, opened.torch())
        if torch.cuda.is_available():  # the model that it made is no more
            gc.collect()
            torch.cuda.empty_cache()
        logger.info("caid: converted %s", version)


class CaidTrainerWeightTransferEngine(TrainerWeightTransferEngine[CaidTrainerInitInfo]):
    """In a trainer."""

    init_info_cls = CaidTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info: CaidTrainerInitInfo, *, client: Any, source: Any = None):
        """As vLLM's: by every rank. The first of them makes the versions' memory."""
        if source is None:
            raise ValueError('weight transfer by "caid" needs a WeightSource')
        self = cls(client=client, source=source, is_sender=init_info.is_sender)
        self._publisher = None
        if self.is_sender:
            like = {each.name: torch.empty(each.shape, dtype=each.dtype, device="meta") for each in source.metadata()}
            self._run = uuid.uuid4().hex
            self._publisher = weights.publisher(
                init_info.name, like, versions=init_info.versions, pool=init_info.pool, device=_worker.device(),
                timeout=_TIMEOUT_S, client=caid.connect(),
            )
            client.init_weight_transfer_engine({"name": init_info.name, "pool": init_info.pool})
        return self

    def send_weights(self) -> None:
        """Publishes what the source has, and has the engines take it. Where the source or an engine fails, that is
        raised, and engines serve the version that they have."""
        if self._publisher is None:
            for _ in self.source:  # making a tensor whole is a matter of all ranks
                pass
            return
        with self._publisher.version(timeout=_TIMEOUT_S) as new, torch.no_grad():
            missing = {*new}
            for name, tensor in self.source:
                if new[name].shape != tensor.shape:
                    raise UnfitError(f"{name}: {tuple(tensor.shape)}, not {tuple(new[name].shape)}")
                new[name].copy_(tensor, non_blocking=tensor.device.type != "cpu")
                missing.discard(name)
            if missing:
                raise UnfitError(f"the source has not given {', '.join(sorted(missing)[:8])}")
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()
        version = self._publisher.wait()
        self.client.start_weight_update()
        self.client.update_weights({"version": version, "run": self._run})
        self.client.finish_weight_update(weight_version=str(version))

    def shutdown(self) -> None:
        """Gives the versions' memory back, but for the current one's."""
        if self._publisher is not None:
            self._publisher.close()
