# SPDX-License-Identifier: Apache-2.0
"""Where elements are, as named tuples.

Their annotations are types, not the strings of ``from __future__ import annotations``: of strings
NamedTuple compiles each, and a process's first ``compile()`` takes as long as ten modules.
"""

from typing import NamedTuple, Optional

from .._base import _geometry, _typestr


class Layout(NamedTuple):
    """Where the elements of an array are."""

    ptr: int  # device address of the first
    shape: tuple
    strides: tuple
    element: _typestr.Element
    readonly: bool

    def spans(self):
        """The bytes from the first to the last that the elements lie in, for _pending; where there are no
        elements, any byte."""
        low, high = _geometry.extent(self.shape, self.strides, self.element.itemsize)
        return ((self.ptr + low, self.ptr + high),) if low < high else ((0, 1 << 64),)


class Described(NamedTuple):
    """The contents of a dict of the CUDA Array Interface."""

    ptr: int
    shape: tuple
    strides: tuple
    element: _typestr.Element
    readonly: bool
    stream: Optional[int]


class Part(NamedTuple):
    """An array that is to be published, which has to lie in the memory of an arena."""

    ptr: int
    shape: tuple
    strides: Optional[tuple]  # None: C order
    element: _typestr.Element
    stream: int
    keep: object  # what owns the memory; None: the arena does
