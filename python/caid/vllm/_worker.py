# SPDX-License-Identifier: Apache-2.0
"""Live updates in a worker of vLLM's: how its model takes another version, and what collective_rpc() can ask for."""

from __future__ import annotations

import caid

from .. import weights
from . import _loader, _manifest, _model
from ._manifest import UnfitError


def adopt(model, shared, other=None) -> None:
    """The current version of a set becomes the model's, without a copy. UnfitError, and nothing has changed: it does not
    fit. `other`: where graphs have the model's addresses, a client to look at the version by; these stay then."""
    old = model.caid
    if other is None:
        opened = shared.find()
        if opened is None:
            raise UnfitError(f"{shared.name} has been taken away")
        with _loader._closed_on_error(opened):
            _model.swap(model, *shared.read(opened))
        shared.owns_buffers, shared.in_graphs = old.owns_buffers, old.in_graphs
        if shared.owns_buffers:
            _model.own(model, _model.BUFFERS)
        before, old.weights = old.weights, None  # of which no backend has to take care
        shared.weights, model.caid = opened, shared
        before.close()
        return
    if old is not shared:
        raise UnfitError(f"graphs were captured over {old.name}, whose place {shared.name} cannot take: use --enforce-eager")
    opened = shared.find(other)
    if opened is None:
        raise UnfitError(f"{shared.name} has been taken away")
    with opened:
        manifest, _ = shared.read(opened)
        _model.check(model, manifest)
    shared.weights.advance()
    tensors = shared.weights.torch()
    for name, (_, tensor) in _model.named(model)[0].items():
        if name in tensors and tensor.data_ptr() != tensors[name].data_ptr():
            tensor.data.copy_(tensors[name])  # small buffers, and what is on the host


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

    def caid_newer(self, name: str, pool: str | None = None) -> int | None:
        """Takes the current version of a model that a trainer publishes in the engine's own names and shapes; with
        several workers, of NAME.RANK. Returns which that is; None: the model has it."""
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        if getattr(model, "caid", None) is None:
            raise UnfitError("live updates are for engines that share their weights: --load-format caid")
        if self.parallel_config.world_size > 1:  # type: ignore[attr-defined]
            name = f"{name}.{self.rank}"  # type: ignore[attr-defined]
        plain = self._caid_plain
        if plain is None or (plain.name, plain.pool) != (name, pool):
            plain = self._caid_plain = _Plain(caid.connect(), name, pool, model)
        config = self.model_config  # type: ignore[attr-defined]
        in_place = device() is not None and not config.enforce_eager
        with caid.connect() as other:
            current = weights.open(name, pool=pool, client=other).version
            if model.caid is plain and plain.weights.version == current:
                return None
            if model.caid is not plain and not in_place:
                _model.own(model, _model.BUFFERS)  # else they would keep the memory of the version before
            adopt(model, plain, other if in_place else None)
        return plain.weights.version
