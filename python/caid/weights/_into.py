# SPDX-License-Identifier: Apache-2.0
"""Copies a version into memory that others own."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from .._interfaces import _torch_types
from .._memory import _cai
from . import _version


def copy(weights, target):
    """Weights.copy_into()."""
    there = target if isinstance(target, Mapping) else target.state_dict()
    torch = sys.modules.get("torch")
    tensors = {key: x for key, x in there.items() if torch is not None and isinstance(x, torch.Tensor)}
    entries = {key: entry for key, entry in weights._set._entries().items() if key != weights._hidden}
    wrong = [f"{key!r} is not in the target" for key in entries if key not in there]
    wrong += [f"{key!r} is not in {weights.name}" for key in there if key not in entries]
    for key in entries.keys() & there.keys():
        wrong += _differences(entries[key], key, there[key], torch if key in tensors else None)
    if wrong:
        raise ValueError(f"copy_into: nothing is written: {'; '.join(sorted(wrong))}")
    if tensors:
        own = weights.torch()
        with torch.no_grad():
            torch._foreach_copy_(list(tensors.values()), [own[key] for key in tensors])
    for key in there.keys() - tensors.keys():
        with weights[key] as array:
            array.copy_to(there[key])


def _differences(entry, key, x, torch):
    """What is wrong with a target; nothing if all is right."""
    if torch is not None:
        element, shape, ptr = _torch_types.elements(torch).get(x.dtype), tuple(x.shape), x.data_ptr()
    else:
        with _cai.side(x, target=True) as side:
            element, shape, ptr = side.element, side.shape, side.data
        if shape is None:  # of raw bytes, which have neither; the copy looks at how many there are
            return
    told = element.type_name if element is not None else str(x.dtype)
    if (told, shape) != (entry.typestr, entry.shape):
        yield f"{key!r} is {told} {shape}, not {entry.typestr} {entry.shape}"
    if not ptr and entry.nbytes:
        yield f"{key!r} has no memory"
    for version in list(_version._live):
        if any(start <= ptr < start + n for start, n in version.stretches()) and entry.nbytes:
            yield f"{key!r} lies in the memory of a version, which others read"
            break
