# SPDX-License-Identifier: Apache-2.0
"""A module's tensors, which lie in caid's memory, as a version of a model."""

from __future__ import annotations

import contextlib

import torch

from .. import torch as caid_torch
from .._memory import _array
from .._session import _default


def publish(tensors, prefix, metadata):
    client = None
    with contextlib.ExitStack() as stack:
        arrays, first = {}, {}
        for key, tensor in tensors.items():
            arena = caid_torch._arena_with(tensor)
            client = arena._client
            torch.cuda.current_stream(tensor.device).synchronize()
            at = (tensor.data_ptr() or key, tensor.shape, tensor.stride(), tensor.dtype)
            if at not in first:
                first[at] = stack.enter_context(_array_of(arena, tensor))
            arrays[key] = first[at]
        client = client or _default.default_client()
        return client.publish_many(prefix, arrays, metadata={"metadata": metadata})


def _array_of(arena, tensor):
    """The tensor as an array of its own, without a name, which keeps it."""
    shown = caid_torch._Shown(tensor)
    if not tensor.numel():
        return arena._client.empty(
            tuple(tensor.shape), shown._caid_element, pool=arena.pool, device=arena.device
        )
    return _array.of_lease(arena._own(shown))
