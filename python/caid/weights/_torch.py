# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch's, which lie in caid's memory, as a version of a model."""

from __future__ import annotations

import contextlib

import torch

from .. import torch as caid_torch
from .._base import _metadata
from .._base._errors import NotFoundError, UnknownMethodError
from .._handoff import _any_stream
from .._memory import _array
from .._session import _default


def publish(tensors, prefix, metadata):
    encoded = _metadata.encode({"metadata": metadata})
    some = next((tensor for tensor in tensors.values() if tensor.numel()), None)
    try:
        made = some is not None and _set_of(tensors, caid_torch._arena_with(some), some.data_ptr())
    except (NotFoundError, UnknownMethodError):
        made = None  # they are of several devices, or not all caid's; the daemon is older
    if not made:
        return _publish_each(tensors, prefix, metadata)
    with contextlib.closing(made):
        stream = _any_stream.handle(torch.cuda.current_stream(some.device))
        return made.publish(prefix, encoded, stream, False, None, 0)


def _set_of(tensors, arena, ptr):
    """The Lease of a set of tensors in one arena's memory. An address in that is given."""
    start, *_ = arena._find(ptr)  # where those of no bytes may be, whatever their type
    members = []
    for key, tensor in tensors.items():
        caid_torch._check_dense(tensor)
        element, shape = caid_torch._element(tensor), tuple(tensor.shape)
        strides = None
        if not tensor.is_contiguous():
            strides = tuple(step * element.itemsize for step in tensor.stride())
        at = start if 0 in shape else tensor.data_ptr()
        members.append((key, at, element.type_name, element.descr, shape, strides))
    return arena._set_of(tuple(members), [tensor.detach() for tensor in tensors.values()])


def _publish_each(tensors, prefix, metadata):
    """The same by an array for each tensor."""
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
