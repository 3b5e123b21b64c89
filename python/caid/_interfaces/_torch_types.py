# SPDX-License-Identifier: Apache-2.0
"""Types of elements that PyTorch has. Imports no PyTorch."""

from __future__ import annotations

import functools

from .._base import _typestr

_KINDS = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "uint64": "<u8",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}


@functools.lru_cache(maxsize=1)
def elements(torch):
    """The elements that caid has, by dtype."""
    return {dtype: element for element, dtype in dtypes(torch).items()}


@functools.lru_cache(maxsize=1)
def dtypes(torch):
    """The dtypes that this PyTorch has, by element."""
    names = (name for name in (*_KINDS, *_typestr.NAMED) if hasattr(torch, name))
    return {_typestr.named(name) or _typestr.of_typestr(_KINDS[name]): getattr(torch, name) for name in names}
