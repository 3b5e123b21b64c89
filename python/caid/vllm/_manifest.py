# SPDX-License-Identifier: Apache-2.0
"""Manifest: what vLLM's module has of its tensors that the list of a set does not say.

It is JSON text in an array of the set, under MEMBER. Another process has written it, so nothing in it is believed:
decode() holds it against the list of the set, whose types, shapes and places the reader of the set (caid.weights)
checks against the memory itself. Names of classes and functions are not in it: those come from the reader's own
module.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from .._base._errors import corrupt

MEMBER = "caid.vllm"  # no tensor has this name: a module's own ones have no dot
PARAMETER, BUFFER, TRANSIENT = "parameter", "buffer", "transient"  # transient: state_dict() leaves it out
FLAGS = ("has_own_lm_head", "has_own_embed_tokens")  # attributes that load_weights() of a draft model sets
_FORMAT = 1
_MAX = 64 << 20  # bytes
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


class UnfitError(Exception):
    """Why a model is not shared, or a version of it not taken. The message says what to do, if there is something."""


class Tensor(NamedTuple):
    """One of a module's tensors."""

    kind: str
    typestr: str  # or the name of a type: as Entry.typestr
    shape: tuple[int, ...]
    on_host: bool = False  # in an engine on a GPU, a tensor that lies on the CPU


class Manifest(NamedTuple):
    facts: dict[str, Any]  # as caid.vllm._key has them
    tensors: dict[str, Tensor]
    aliases: dict[str, str]  # further names of tensors
    absent: tuple[str, ...] = ()  # names that the module has, and no tensor
    flags: dict[str, bool] = {}  # of FLAGS, those that loading has set


def encode(manifest: Manifest) -> bytes:
    """The text."""
    told = manifest._asdict()
    told["tensors"] = {name: list(tensor) for name, tensor in manifest.tensors.items()}
    return json.dumps({"format": _FORMAT, **told}, separators=(",", ":")).encode()


def decode(text: bytes, entries: dict[str, Any]) -> Manifest:
    """The Manifest of a set with these entries. CorruptError says what is wrong."""
    told = _parse(text)
    facts, tensors, aliases, absent, flags = (
        _of_type(told, key, kind)
        for key, kind in (("facts", dict), ("tensors", dict), ("aliases", dict), ("absent", list), ("flags", dict))
    )
    made = {_name(name): _tensor(name, fields) for name, fields in tensors.items()}
    for name, tensor in made.items():
        if 0 not in tensor.shape:
            _check_entry(name, tensor, entries.get(name))
    unknown = entries.keys() - made.keys() - {MEMBER}
    if unknown:
        raise corrupt(f"manifest: it lacks {_some(unknown)}, which the set has")
    for alias, name in aliases.items():
        if _name(alias) in made or not isinstance(name, str) or name not in made:
            raise corrupt(f"manifest: {alias!r} as another name of {name!r}")
    for name in absent:
        if _name(name) in made or name in aliases:
            raise corrupt(f"manifest: {name!r} is there, and is not")
    for name, value in flags.items():
        if name not in FLAGS or not isinstance(value, bool):
            raise corrupt(f"manifest: attribute {name!r}")
    return Manifest(facts, made, aliases, tuple(absent), flags)


def _parse(text):
    if len(text) > _MAX:
        raise corrupt(f"manifest: {len(text)} bytes, of {_MAX} at most")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise corrupt(f"manifest: no JSON: {e}") from None
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        raise corrupt(f"manifest: not of format {_FORMAT}")
    return told


def _of_type(told, key, kind):
    if not isinstance(told.get(key), kind):
        raise corrupt(f"manifest: {key!r} is no {kind.__name__}")
    return told[key]


def _name(name):
    if not isinstance(name, str) or not name or name == MEMBER or _CONTROL.search(name):
        raise corrupt(f"manifest: {name!r} is no name of a tensor")
    return name


def _tensor(name, fields):
    if not isinstance(fields, list) or len(fields) != len(Tensor._fields):
        raise corrupt(f"manifest: {name!r}: {fields!r}")
    kind, typestr, shape, on_host = fields
    right = kind in (PARAMETER, BUFFER, TRANSIENT) and isinstance(typestr, str) and isinstance(on_host, bool)
    if not right or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise corrupt(f"manifest: {name!r}: {fields!r}")
    return Tensor(kind, typestr, tuple(shape), on_host)


def _check_entry(name, tensor, entry):
    if entry is None:
        raise corrupt(f"manifest: the set lacks {name!r}")
    if (entry.typestr, entry.shape) != (tensor.typestr, tensor.shape):
        raise corrupt(
            f"manifest: {name!r} is {tensor.typestr} {tensor.shape}, and in the set {entry.typestr} {entry.shape}"
        )


def _some(names, most=8):
    """Names for a message, not all of which fit."""
    names = sorted(map(repr, names))
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")


def differences(manifest: Manifest, facts: dict[str, Any]) -> list[str]:
    """The facts that are not as in a manifest."""
    both = manifest.facts.keys() | facts.keys()
    return sorted(key for key in both if manifest.facts.get(key) != facts.get(key))
