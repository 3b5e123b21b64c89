# SPDX-License-Identifier: Apache-2.0
"""SGLang: ``--custom-weight-loader caid.rl.sglang.load``. Then ``POST /update_weights_from_tensor`` with what
:func:`request` makes brings a version of caid's, or an update of checkpoint-engine's, into the model. The request has
names alone; SGLang's own ``update_weights_from_ipc`` calls what its sender says.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from .. import weights
from ._versions import on_this_device

LOADER = "caid.rl.sglang.load"
_IPC = " ipc://"

__all__ = ["load", "named", "request"]


def named(what: str | Mapping[str, str]) -> list[tuple[str, torch.Tensor]]:
    """The `named_tensors` for ``Engine.update_weights_from_tensor(named_tensors, load_format=LOADER)``.

    Parameters
    ----------
    what : str or mapping
        A version, "actor@7" (the name alone: what is current when an engine comes to it); or the addresses by GPU that
        checkpoint-engine's ParameterServer gives to its ``req_func`` (:func:`caid.rl.checkpoint_engine.private_sockets`).
    """
    names = [what] if isinstance(what, str) else [f"{uuid} {address}" for uuid, address in what.items()]
    return [(name, torch.empty(0)) for name in names]


def request(what: str | Mapping[str, str], tp_size: int = 1) -> dict[str, Any]:
    """The body of ``POST /update_weights_from_tensor``. `what` as for :func:`named`; `tp_size` is the engine's."""
    data = base64.b64encode(bytes(ForkingPickler.dumps(named(what)))).decode()
    return {"serialized_named_tensors": [data] * tp_size, "load_format": LOADER, "flush_cache": True}


def load(model: Any, named_tensors: list[tuple[str, torch.Tensor]]) -> None:
    """The loader, as SGLang calls it. When it returns, the model has its own copy of the weights.

    Raises
    ------
    StaleError
        Another version than the request's is current; nothing has been loaded.
    caid.Error, ValueError
        There is no such version; the request is not one of request()'s. For an update of checkpoint-engine's also
        what :func:`caid.rl.checkpoint_engine.update_weights_from_ipc` raises.
    """
    names = [name for name, _ in named_tensors]
    if any(tensor.numel() for _, tensor in named_tensors) or not names:
        raise ValueError(f"{LOADER} takes the request that caid.rl.sglang.request() makes")
    if _IPC in names[0]:
        return _load_from_ipc(model, dict(name.split(" ", 1) for name in names))
    if len(names) != 1:
        raise ValueError(f"{len(names)} names; a request has one version")
    with weights.open(names[0]) as w:
        model.load_weights(on_this_device(w).items())
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # before the version is overwritten
    return None


def _load_from_ipc(model, handles):
    import zmq

    from . import _wire
    from .checkpoint_engine import TIMEOUT_S

    device = torch.cuda.current_device()
    handle = _wire.handle_for(handles, _wire.uuid_of(device))
    _wire.receive(zmq.Context.instance(), handle, device, model.load_weights, lambda: _finish(model), TIMEOUT_S)


def _finish(model):
    """What SGLang does with weights that have been loaded."""
    from sglang.srt.model_loader.loader import device_loading_context

    for _, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            with device_loading_context(module, torch.device("cuda", torch.cuda.current_device())):
                method.process_weights_after_loading(module)
    if hasattr(model, "post_load_weights"):
        model.post_load_weights()
