# SPDX-License-Identifier: Apache-2.0
"""Table: where the arrays of a version lie in their blocks, as the daemon lists them. Versions of an equal
`layout` have equal tables, so that one is used for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

from .._base import _geometry, _typestr
from .._base._errors import corrupt
from ._plan import Shard, cut_of


class Slot(NamedTuple):
    """One array, by however many keys."""

    block: int  # its place in Table.blocks
    offset: int  # in the block
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # bytes
    element: _typestr.Element


class Block(NamedTuple):
    """What the arrays take of a block."""

    key: str  # of the array by which it is opened
    typestr: str  # of that one, as its creator wrote it
    slot: Slot
    number: int  # the daemon's, of the block, in the version that was listed
    low: int
    high: int


class Table:
    """Keys, in byte order, and the slots that they name."""

    def __init__(self, entries, hidden):
        self.keys: dict[str, int] = {}  # the places of their slots
        self.slots: list[Slot] = []
        self.others: list[str] = []  # keys of arrays that are taken one by one
        self.blocks: list[Block] = []
        self.shard: Shard | None = None  # that it is the table of
        self.copied: set[int] = set()  # places of slots that are taken as copies, since they lie in pieces
        self.plans: dict[Any, Any] = {}  # what _views.py makes of it
        self._shards: dict[Any, Table] = {}
        self.n = len(entries)
        known: dict[Any, int] = {}
        found: dict[int, list] = {}
        for key, entry in entries.items():
            if key == hidden:
                continue
            slot = _slot(key, entry, found)
            if slot is None:
                self.others.append(key)
                continue
            at = known.setdefault(slot, len(self.slots))
            if at == len(self.slots):
                self.slots.append(slot)
            self.keys[key] = at
        self.blocks = [Block(*block) for block in found.values()]

    def differs_from(self, other):
        """Whether arrays of one could not be at the addresses of the other's."""
        if other is self:
            return False
        there = [block[:3] + block[4:] for block in self.blocks]  # but for their numbers
        return (self.keys, self.slots, self.others, there) != (
            other.keys, other.slots, other.others, [block[:3] + block[4:] for block in other.blocks]
        )

    def sharded(self, shard):
        """The Table of a part: slots that lie within this one's."""
        if shard is None or shard in self._shards:
            return self if shard is None else self._shards[shard]
        made = Table({}, None)
        known: dict[Any, int] = {}
        for key, at in self.keys.items():
            slot = self.slots[at]
            axis, some = cut_of(key, slot.shape, shard) or (None, None)
            if axis is not None:
                shape = (*slot.shape[:axis], some.stop - some.start, *slot.shape[axis + 1 :])
                offset = slot.offset + some.start * slot.strides[axis]
                slot = slot._replace(offset=offset, shape=shape)
            made.keys[key] = known.setdefault((slot, axis == 1), len(known))
            if made.keys[key] == len(made.slots):
                made.slots.append(slot)
            if axis == 1:
                made.copied.add(made.keys[key])
        made.others, made.blocks, made.n = self.others, self.blocks, self.n
        made.shard = shard
        self._shards[shard] = made
        return made


_elements: dict[str, Any] = {}  # by type name; None: of records, which have a descr


def _element(name):
    try:
        return _elements[name]
    except KeyError:
        element = _typestr.named(name) or _typestr._parse(name)
        if element is not None and element.name is None and element.typestr[1] == "V":
            element = None
        if len(_elements) < 256:
            _elements[name] = element
        return element


def _slot(key, entry, found):
    """The slot of an entry, whose bytes are noted in `found`; None where it is to be taken as an array."""
    element, shape = _element(entry.typestr), entry.shape
    if element is None or not entry.block:  # it has no bytes, or the daemon is older and does not tell
        return None
    size, itemsize = element.itemsize, element.itemsize
    for extent in shape:
        size *= extent
    strides = entry.strides or _geometry.c_strides(shape, itemsize)
    if size != entry.nbytes or (shape and min(shape) < 0) or len(strides) != len(shape):
        raise corrupt(f"array {key!r}: {shape} of {entry.typestr} is not {entry.nbytes} bytes")
    if entry.strides:
        if min(strides) < 0:
            raise corrupt(f"array {key!r}: strides {strides}")
        size = itemsize + sum((extent - 1) * step for extent, step in zip(shape, strides))
    low, high = entry.offset, entry.offset + size
    block = found.get(entry.block)
    if block is None:
        slot = Slot(len(found), low, shape, strides, element)
        found[entry.block] = [key, entry.typestr, slot, entry.block, low, high]
        return slot
    if low < block[4]:
        block[4] = low
    if high > block[5]:
        block[5] = high
    return Slot(block[2].block, low, shape, strides, element)
