# SPDX-License-Identifier: Apache-2.0
"""Element types: typestrs of the array interface, and NumPy's dtypes where NumPy is there.

A typestr (``"<f4"``, ``"|V12"``) needs no NumPy. A structured type has besides a field list, the
``descr`` of the array interface, which the daemon keeps as JSON.
"""

import functools
import json
import re
import sys
from typing import NamedTuple, Optional

from ._errors import invalid

_NATIVE = "<" if sys.byteorder == "little" else ">"
_TYPESTR = re.compile(r"([<>|=]?)([biufcmMSUV])([0-9]{1,10})(\[\w+\])?")


class Element(NamedTuple):
    """The type of an array's elements."""

    typestr: str
    itemsize: int  # bytes
    descr: Optional[str] = None  # JSON field list of a structured type


@functools.lru_cache(maxsize=256)
def element_of(typestr, itemsize, descr):
    """The element of an array that the daemon tells of; arrays of a type share it."""
    return Element(typestr, itemsize, descr)


def numpy():
    """NumPy, imported when first needed."""
    import numpy

    return numpy


@functools.lru_cache(maxsize=256)
def _parse(text):
    """The element of a typestr, with or without its byte order; None for other text."""
    match = _TYPESTR.fullmatch(text)
    if not match:
        return None
    order, kind, count, unit = match.groups(default="")
    itemsize = int(count) * (4 if kind == "U" else 1)
    if kind in "SV" or itemsize == 1:
        order = "|"
    elif order in "=|":
        order = _NATIVE
    return Element(f"{order}{kind}{int(count)}{unit}", itemsize)


def of_typestr(typestr, descr=None):
    """The element that a dict of the array interface tells of.

    Raises
    ------
    InvalidError
        No typestr of the array interface, or one of Python objects or bits.
    """
    element = _parse(typestr) if isinstance(typestr, str) else None
    if element is None:
        raise invalid(f"typestr {typestr!r}: not one of the array interface")
    if descr and element.typestr[1] == "V" and not _is_plain(descr):
        element = element._replace(descr=_to_json(descr))
    return element


def _is_plain(descr):
    """Whether a descr says no more than the typestr: one nameless field."""
    return len(descr) == 1 and len(descr[0]) == 2 and not descr[0][0]


def of_dtype(dtype):
    """The element of a typestr, a dtype, an element, or of anything that ``numpy.dtype`` takes.

    Returns
    -------
    element : Element
    shape : tuple of int
        Extents that the type itself has, as of ``numpy.dtype("(2,3)f4")``: they come after the
        array's own, as in NumPy.

    Raises
    ------
    InvalidError
        Not a type, or one of Python objects.
    """
    if isinstance(dtype, Element):
        return dtype, ()
    if isinstance(dtype, str):
        element = _parse(dtype)
        if element:
            return element, ()
        if dtype[:1] in ("<", ">", "|"):
            return Element(dtype, 1), ()  # the daemon's to refuse, with its reason
    return _of_numpy(dtype)


def _of_numpy(dtype):
    try:
        dtype = numpy().dtype(dtype)
    except ImportError:
        raise invalid(f"dtype {dtype!r}: without NumPy a typestr is needed, as '<f4'") from None
    except (TypeError, ValueError) as e:
        raise invalid(f"dtype {dtype!r}: {e}") from None
    if dtype.hasobject:
        raise invalid(f"dtype {dtype}: Python objects cannot be shared")
    if dtype.subdtype:
        base, shape = dtype.subdtype
        element, inner = _of_numpy(base)
        return element, tuple(shape) + inner
    if dtype.names is None:
        return Element(dtype.str, dtype.itemsize), ()
    try:
        descr = _to_json(dtype.descr)
    except ValueError as e:  # overlapping fields, or fields out of order
        raise invalid(f"dtype {dtype}: {e}") from None
    return Element(dtype.str, dtype.itemsize, descr), ()


def to_numpy(element):
    """The :class:`numpy.dtype` of an element."""
    np = numpy()
    if element.descr is None:
        return np.dtype(element.typestr)
    dtype = np.lib.format.descr_to_dtype(descr_list(element.descr))
    if dtype.itemsize != element.itemsize:
        raise invalid(f"descr {element.descr}: {dtype.itemsize} bytes, not {element.itemsize}")
    return dtype


def same(a, b):
    """Whether two elements are of one type. Some producers give no descr of their structured
    types; then the size decides."""
    if a.typestr != b.typestr:
        return False
    return a.descr is None or b.descr is None or descr_list(a.descr) == descr_list(b.descr)


# --- descr: a list of (name or (title, name), typestr or list[, shape]) ---------------------


def _to_json(descr):
    return json.dumps(descr, separators=(",", ":"))


def descr_list(text):
    """The list of tuples of a descr that is kept as JSON.

    Raises
    ------
    InvalidError
        Whoever created the array gave something else for its descr.
    """
    try:
        return [_field(field) for field in json.loads(text)]
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        raise invalid(f"descr {text!r}: not a field list of the array interface") from None


def _field(field):
    name, kind, *shape = field
    if isinstance(name, list):
        name = tuple(name)
    if not isinstance(kind, str):
        kind = [_field(f) for f in kind]
    if shape:
        (extents,) = shape
        return (name, kind, tuple(extents) if isinstance(extents, list) else extents)
    return (name, kind)
