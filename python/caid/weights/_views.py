# SPDX-License-Identifier: Apache-2.0
"""Other libraries' arrays over a version: views of what each makes of a block by DLPack. What they have no type
for, what lies askew and what has no bytes is taken array by array, by DLPack, which raises the reason if there
is one."""

from __future__ import annotations

import contextlib
import gc

from .._base import _typestr
from .._interfaces import _torch_types
from .._memory import _array
from .._memory._layout import Layout
from ._plan import cut_of


@contextlib.contextmanager
def uncollected():
    """A block that makes many objects, none of them garbage: the collector, which would go through all of the
    process's objects several times meanwhile, looks after it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def torch(version, table, device=None):
    """Tensors of PyTorch by key, on the device that is asked for."""
    import torch

    def take(array):  # PyTorch has no read-only tensors, and 2.8 asks for a version of DLPack that has none either
        tensor = torch.from_dlpack(_array.writable(array))
        return tensor if device is None else tensor.to(device)

    plan = _plan_of(version, table, "torch", _torch_types.dtypes(torch).get)
    blocks = [take(block) for block in version.blocks()]
    views = [
        blocks[block][: blocks[block].numel() // dtype.itemsize * dtype.itemsize].view(dtype).as_strided
        for block, dtype in plan.types
    ]
    # Each is a tensor of its own. Were all views of one for autograd, too, what that keeps of each were void as soon as
    # another one is written in place.
    below = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", None)
    made: list = [None] * len(plan.views)
    with below() if below else contextlib.nullcontext():
        for at, shape, steps, start, places in plan.runs:
            for place, tensor in zip(places, views[at](shape, steps, start).unbind()):
                made[place] = tensor if below else tensor.data
    for at in plan.copied:
        made[at] = made[at].contiguous()
    return _by_key(version, table, plan, made, take)


def cupy(version, table):
    """Arrays of CuPy by key."""
    import cupy

    plan = _plan_of(version, table, "cupy", _numpys)
    blocks = [cupy.from_dlpack(block).data for block in version.blocks()]
    made = []
    for at, shape, steps, start in plan.views:
        block, dtype = plan.types[at]
        strides = tuple(step * dtype.itemsize for step in steps)
        made.append(cupy.ndarray(shape, dtype, blocks[block] + start * dtype.itemsize, strides))
    for at in plan.copied:
        made[at] = cupy.ascontiguousarray(made[at])
    return _by_key(version, table, plan, made, cupy.from_dlpack)


def jax(version, table):
    """Arrays of JAX by key: an import for each, since JAX has no views, but no lease."""
    import jax

    def take(array):  # JAX asks for a version of DLPack without read-only memory, and writes to no array
        return jax.dlpack.from_dlpack(_array.writable(array))

    plan = _plan_of(version, table, "jax", lambda element: element)
    blocks = version.blocks()
    made = []
    for at, slot in enumerate(table.slots):
        block = blocks[slot.block]
        layout = Layout(block.ptr + version.offset(slot), slot.shape, slot.strides, slot.element, False)
        array = _array.make(block._memory.share(), layout, root=False)
        made.append(take(_copied(array) if at in table.copied else array))
    return _by_key(version, table, plan, made, take)


def _copied(array):
    """A copy in C order, in caid's memory on the same device, which lives as long as it is used."""
    memory = array._memory
    where = max(memory.mapped_device, 0)
    with memory.client.empty(array.shape, array._layout.element, device=where) as copy:
        copy.copy_from(array)
        return copy.view()


def elements_of(array) -> tuple:
    """A key that is equal for entries of a set that are one array."""
    memory, layout = array._memory, array._layout
    return memory.block, memory.offset, layout.shape, layout.strides, layout.element


def _numpys(element):
    return None if element.name else _typestr.numpy().dtype(element.typestr)


class _Plan:
    """What a framework makes of a table: the same for all versions that have the table."""

    def __init__(self):
        self.types = []  # (block, dtype), of which there are views
        self.views = []  # (place in types, shape, strides in elements, offset in elements)
        self.places = []  # of each slot, in what is made; None: it is taken as an array
        self.copied = []  # places in views
        self.runs = []  # the views, as _runs() has them


def _plan_of(version, table, framework, dtype_of):
    plan = table.plans.get((framework, version.lows))
    if plan is not None:
        return plan
    plan, known = _Plan(), {}
    for place, slot in enumerate(table.slots):
        dtype, size, start = dtype_of(slot.element), slot.element.itemsize, version.offset(slot)
        askew = start % size or any(step % size for n, step in zip(slot.shape, slot.strides) if n > 1)
        if dtype is None or (askew and framework != "jax"):
            plan.places.append(None)
            continue
        at = known.setdefault((slot.block, dtype), len(known))
        if place in table.copied:
            plan.copied.append(len(plan.views))
        plan.places.append(len(plan.views))
        plan.views.append((at, slot.shape, tuple(step // size for step in slot.strides), start // size))
    plan.types = list(known)
    plan.runs = list(_runs(plan.views))
    table.plans[framework, version.lows] = plan
    return plan


def _runs(views):
    """Views that are alike and as far from one another, as one: (place in types, shape, strides, offset, their places in
    views). So PyTorch makes the thousands of a mixture of experts in few calls."""
    alike: dict = {}
    for place, (at, shape, steps, start) in enumerate(views):
        alike.setdefault((at, shape, steps), []).append((start, place))
    for (at, shape, steps), some in alike.items():
        some.sort()
        first = 0
        while first < len(some):
            start = some[first][0]
            distance = some[min(first + 1, len(some) - 1)][0] - start
            end = first + 1
            while end < len(some) and some[end][0] == start + (end - first) * distance:
                end += 1
            yield at, (end - first, *shape), (distance, *steps), start, [place for _, place in some[first:end]]
            first = end


def _by_key(version, table, plan, made, take):
    """By key, in byte order. An array under two keys is one tensor, as a module with tied weights has it."""
    tensors = {key: made[plan.places[at]] for key, at in table.keys.items() if plan.places[at] is not None}
    if len(tensors) == len(table.keys) and not table.others:
        return tensors
    taken: dict = {}
    missing = [key for key in table.keys if key not in tensors] + table.others
    for key, array in version.open(missing).items():
        with _cut(key, array, table.shard) as part:
            at = elements_of(part) if part.nbytes else key
            if at not in taken:
                taken[at] = take(part)
            tensors[key] = taken[at]
    return {key: tensors[key] for key in sorted(tensors, key=str.encode)}


def _cut(key, array, shard):
    """The part of an array that a shard has. Takes the array over."""
    axis, some = cut_of(key, array.shape, shard) or (None, None)
    if axis is None:
        return array
    with array:
        part = array[(slice(None),) * axis + (some,)]
        if axis == 0:
            return part
        with part:
            return _copied(part)
