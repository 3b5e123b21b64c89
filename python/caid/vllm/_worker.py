# SPDX-License-Identifier: Apache-2.0
"""Live updates in a worker of vLLM's: how its model takes another version, and what collective_rpc() can ask for."""

from __future__ import annotations

import caid

from .. import weights
from .._base._errors import NotFoundError
from . import _loader, _manifest, _model
from ._manifest import UnfitError


class Next:
    """A version that a model can take: it has been looked at, and is there until it is taken or closed. So the ranks of
    an engine take it when all can."""

    def __init__(self, model, shared, other=None):
        """The current version of a set. UnfitError: the model cannot take it. `other`: where graphs have the model's
        addresses, which stay, a client to look at the version by."""
        self._model, self._shared = model, shared
        self._manifest: _manifest.Manifest
        self._tensors: dict | None = None
        self._opened = shared.find() if other is None else _found(shared)
        if self._opened is None:
            raise UnfitError(f"{shared.name} has been taken away")
        with _loader._closed_on_error(self._opened):
            if other is None:
                self._manifest, self._tensors = shared.read(self._opened)
            else:
                self._manifest = self._looked_at(other)
            _model.check(model, self._manifest)

    def _looked_at(self, client):
        shared, old = self._shared, self._model.caid
        if not self._opened.layout or self._opened.layout != old.weights._layout():
            raise UnfitError(
                f"graphs were captured over {old.name}, whose place {shared.name} cannot take: use --enforce-eager"
            )
        with weights.open(f"{shared.name}@{self._opened.generation}", pool=shared.pool, client=client) as looked_at:
            manifest, _ = shared.read(looked_at)
        return manifest

    def close(self) -> None:
        """Idempotent."""
        opened, self._opened, self._tensors = self._opened, None, None
        if opened is not None:
            opened.close()

    def take(self) -> int:
        """The version becomes the model's, without a copy. Returns which it is."""
        model, shared, old = self._model, self._shared, self._model.caid
        opened, before, tensors = self._opened, old.weights, self._tensors
        self._opened = self._tensors = None
        if tensors is None:
            before._advance_to(opened)
            opened, before = before, None
        else:
            if old is not shared:  # buffers that the version lacks would keep the memory of the one before
                _model.own(model, _model.BUFFERS)
            _model.swap(model, self._manifest, tensors)
        old.weights = None  # of which no backend has to take care
        shared.owns_buffers, shared.in_graphs = old.owns_buffers, old.in_graphs
        shared.weights, model.caid = opened, shared
        if before is not None:
            before.close()
        if tensors is not None and shared.owns_buffers:
            _model.own(model, _model.BUFFERS)
        if tensors is None:
            tensors = opened.torch()
            for name, (_, tensor) in _model.named(model)[0].items():
                if name in tensors and tensor.data_ptr() != tensors[name].data_ptr():
                    tensor.data.copy_(tensors[name])  # small buffers, and what is on the host
        return opened.version


def _found(shared):
    try:
        return shared.client.open_set(f"{shared.name}/", pool=shared.pool)
    except NotFoundError:
        return None


def device() -> str | None:
    """The UUID of PyTorch's current device; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


class _Plain(_loader.Shared):
    """A set that a trainer publishes in the names and shapes that the model has here, without a manifest."""

    def __init__(self, client, name, pool, model):
        super().__init__(client, name, pool, {})
        self._model = model

    def read(self, opened):
        manifest = _model.described(self._model, {})
        entries = opened._set._entries()
        missing = [n for n, t in manifest.tensors.items() if t.kind == _manifest.PARAMETER and n not in entries and 0 not in t.shape]
        unknown = [name for name in opened if name not in manifest.tensors]
        wrong = [n for n, e in entries.items() if n in manifest.tensors and manifest.tensors[n][1:3] != (e.typestr, e.shape)]
        if missing or unknown or wrong:
            raise UnfitError(f"{self.name} does not fit this model: {_manifest._some(missing + unknown + wrong)}")
        return manifest, opened.torch()


class Worker:
    """``worker_extension_cls="caid.vllm.Worker"``: what ``collective_rpc()`` can ask each worker for."""

    _caid_plain: _Plain | None = None
    _caid_next: list[Next] | None = None  # between caid_ready() and caid_newer(): what is to be taken, if anything is

    def caid_ready(self, name: str, pool: str | None = None) -> None:
        """The first half of caid_newer(), for which the engine asks all workers before: no worker takes a version
        where another one cannot."""
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        if getattr(model, "caid", None) is None:
            raise UnfitError("live updates are for engines that share their weights: --load-format caid")
        if self.parallel_config.world_size > 1:  # type: ignore[attr-defined]
            name = f"{name}.{self.rank}"  # type: ignore[attr-defined]
        plain = self._caid_plain
        if plain is None or (plain.name, plain.pool) != (name, pool):
            plain = self._caid_plain = _Plain(caid.connect(), name, pool, model)
        in_place = device() is not None and not self.model_config.enforce_eager  # type: ignore[attr-defined]
        for left in self._caid_next or ():
            left.close()
        self._caid_next = []
        with caid.connect() as other:
            current = weights.open(name, pool=pool, client=other).version
            has = plain.weights if model.caid is plain else None
            if has is None or has.version != current:
                self._caid_next = [Next(model, plain, other if in_place else None)]

    def caid_newer(self, name: str, pool: str | None = None) -> int | None:
        """Takes the current version of a model that a trainer publishes in the engine's own names and shapes; with
        several workers, of NAME.RANK. Returns which that is; None: the model has it."""
        if self._caid_next is None:
            self.caid_ready(name, pool)
        ready, self._caid_next = self._caid_next, None
        if not ready:
            return None
        return ready[0].take()
