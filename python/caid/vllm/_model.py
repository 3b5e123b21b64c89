# SPDX-License-Identifier: Apache-2.0
"""A walk over the tensors of vLLM's model, an ``nn.Module``: what a set has of them, and how they come out of one.

A tensor is known by its name in the module. One that has several names, as with tied weights, is in the set once.
Classes of parameters, and what vLLM hangs on them (``weight_loader``), stay those of the module at hand.
"""

from __future__ import annotations

import torch
from torch import nn

from .._interfaces import _torch_types
from ._manifest import BUFFER, FLAGS, PARAMETER, TRANSIENT, Manifest, Tensor, UnfitError, _some

BUFFERS = BUFFER, TRANSIENT
SMALL = 4096  # bytes of a buffer that each process has for itself: vLLM fills some in place, scales of attention


def named(model: nn.Module) -> tuple[dict[str, tuple[str, torch.Tensor]], dict[str, str]]:
    """All tensors of a model, ``{name: (kind, tensor)}``, and the further names of those that have several."""
    tensors, aliases, first = {}, {}, {}
    for path, module in model.named_modules(remove_duplicate=False):
        there = [(PARAMETER, leaf, tensor) for leaf, tensor in module._parameters.items()]
        for leaf, tensor in module._buffers.items():
            there.append((TRANSIENT if leaf in module._non_persistent_buffers_set else BUFFER, leaf, tensor))
        for kind, leaf, tensor in there:
            name = f"{path}.{leaf}" if path else leaf
            if tensor is None:
                continue
            if first.setdefault(id(tensor), name) != name:
                aliases[name] = first[id(tensor)]
            else:
                tensors[name] = kind, tensor
    return tensors, aliases


def described(model: nn.Module, facts: dict) -> Manifest:
    """The Manifest of a model as it is. UnfitError: a tensor that cannot be in a set."""
    elements = _torch_types.elements(torch)
    tensors, aliases = named(model)
    on_device = any(tensor.device.type != "cpu" for _, tensor in tensors.values())
    told = {}
    for name, (kind, tensor) in tensors.items():
        element = elements.get(tensor.dtype)
        if element is None or tensor.layout != torch.strided or tensor.is_meta:
            raise UnfitError(f"{name} is {tensor.layout} {tensor.dtype} on {tensor.device}")
        if getattr(tensor, "_vllm_is_uva_offloaded", False):
            raise UnfitError(f"{name} is offloaded to the host: give vLLM no cpu_offload_gb")
        on_host = on_device and tensor.device.type == "cpu"
        told[name] = Tensor(kind, element.type_name, tuple(tensor.shape), on_host)
    absent = [
        f"{path}.{leaf}" if path else leaf
        for path, module in model.named_modules(remove_duplicate=False)
        for some in (module._parameters, module._buffers)
        for leaf, tensor in some.items()
        if tensor is None
    ]
    have = {flag: bool(getattr(model, flag)) for flag in FLAGS if hasattr(model, flag)}
    return Manifest(facts, told, aliases, tuple(dict.fromkeys(absent)), have)


# --- out of a set ---------------------------------------------------------------------------


def take(model: nn.Module, manifest: Manifest, tensors: dict[str, torch.Tensor]) -> None:
    """Puts the tensors of a set into a model that was made on device "meta"."""
    modules = dict(model.named_modules(remove_duplicate=False))
    put: dict = {}
    for name, told in manifest.tensors.items():
        put[name] = _put(modules, name, told.kind, _placed(told, tensors.get(name), tensors))
    for alias, name in manifest.aliases.items():
        _put(modules, alias, manifest.tensors[name].kind, put[name])
    for flag, value in manifest.flags.items():
        setattr(model, flag, value)


def _placed(told, tensor, tensors):
    """The tensor that a module gets: that of the set, a copy of a small buffer, or one without bytes."""
    if tensor is None:
        dtype = next(d for d, element in _torch_types.elements(torch).items() if element.type_name == told.typestr)
        device = next((some.device for some in tensors.values()), "cpu")
        return torch.empty(told.shape, dtype=dtype, device="cpu" if told.on_host else device)
    if told.on_host:
        return tensor.to("cpu", copy=True)
    return tensor.clone() if told.kind != PARAMETER and tensor.nbytes <= SMALL else tensor


def _put(modules, name, kind, tensor):
    path, _, leaf = name.rpartition(".")
    module = modules.get(path)
    if module is None:
        raise UnfitError(f"this process's model has no module {path!r}, of which {name} is to be a tensor")
    old = module._parameters.pop(leaf, None)
    module._buffers.pop(leaf, None)
    if kind != PARAMETER:
        module.register_buffer(leaf, tensor, persistent=kind == BUFFER)
        return tensor
    if not isinstance(tensor, nn.Parameter):
        tensor = nn.Parameter(tensor, requires_grad=False)
        if old is not None:  # weight_loader, output_dim, ...: for a later load
            tensor.__class__ = old.__class__
            tensor.__dict__.update(old.__dict__)
    module.register_parameter(leaf, tensor)
    return tensor


def settle(model: nn.Module, manifest: Manifest) -> None:
    """After vLLM has processed the tensors that take() put: what the publisher's model has no more, this one has no
    more either. UnfitError: something has no memory, or is no longer what the set has."""
    known = {*manifest.tensors, *manifest.aliases}
    for path, module in model.named_modules(remove_duplicate=False):
        for some in (module._parameters, module._buffers):
            for leaf, tensor in [*some.items()]:
                name = f"{path}.{leaf}" if path else leaf
                if name in known or tensor is None or not tensor.is_meta:
                    continue
                del some[leaf]
                if name in manifest.absent:
                    some[leaf] = None
    missing = [name for name, (_, tensor) in named(model)[0].items() if tensor.is_meta]
    hidden = [
        f"{path}.{leaf}"
        for path, module in model.named_modules()
        for leaf, value in vars(module).items()
        if isinstance(value, torch.Tensor) and value.is_meta and value.numel()
    ]
    if missing or hidden:
        raise UnfitError(f"{_some(missing + hidden)}: vLLM computes it from the files, and the set lacks it")


def swap(model: nn.Module, manifest: Manifest, tensors: dict[str, torch.Tensor]) -> None:
    """Between two steps: the tensors of another version in the place of those that the model has, which keep their
    objects. UnfitError, before anything is changed: they do not fit. Small buffers and aliases follow."""
    check(model, manifest)
    have = named(model)[0]
    placed = {name: _placed(told, tensors[name], tensors) for name, told in manifest.tensors.items() if name in tensors}
    for name, tensor in placed.items():
        have[name][1].data = tensor


def check(model: nn.Module, manifest: Manifest) -> None:
    """UnfitError: a version has other tensors than the model."""
    have, elements = named(model)[0], _torch_types.elements(torch)
    misfits = [f"{name}: the model has none" for name in manifest.tensors.keys() - have.keys()]
    misfits += [f"{name}: the version has none" for name in have.keys() - manifest.tensors.keys()]
    for name in have.keys() & manifest.tensors.keys():
        (_, old), told = have[name], manifest.tensors[name]
        here = elements[old.dtype].type_name, tuple(old.shape)
        if here != (told.typestr, told.shape):
            misfits.append(f"{name}: {here[0]} {here[1]}, and {told.typestr} {told.shape} in the version")
    if misfits:
        raise UnfitError(f"the version does not fit this model: {_some(misfits)}")


def own(model: nn.Module, kinds: tuple[str, ...] = (PARAMETER, BUFFER, TRANSIENT)) -> None:
    """Gives a model copies of its tensors, for an update in place: what it has is other engines', too. With all of
    them, it lets go of the version. UnfitError: graphs would go on with what it had."""
    shared = model.caid
    if shared.weights is None:  # they are its own
        return
    if PARAMETER in kinds and shared.in_graphs:
        raise UnfitError("graphs were captured over shared weights, which this update would write to: use --enforce-eager")
    for kind, tensor in named(model)[0].values():
        if kind in kinds:
            tensor.data = tensor.data.clone()
    if PARAMETER in kinds:
        shared.weights.close()
        shared.weights = None
