# SPDX-License-Identifier: Apache-2.0
"""Element types: typestrs of the array interface, and NumPy's dtypes where NumPy is there.

A typestr (``"<f4"``, ``"|V12"``) needs no NumPy. Types that the array interface has no word for have a
name (``"bfloat16"``), the one of ml_dtypes; to the array interface they are raw memory. A structured type has besides a field list, the
``descr`` of the array interface, which the daemon keeps as JSON, unread: whoever creates an array writes
what he likes. It is checked here, where it is read, by the same rule with NumPy and without: what NumPy
would make of it has the array's itemsize, and no Python objects at any depth.
"""

import functools
import re
import sys
from typing import NamedTuple, Optional

from . import _geometry
from ._errors import invalid

_NATIVE = "<" if sys.byteorder == "little" else ">"
# The types that arrays can have: as in proto/geometry.c.
_TYPESTR = re.compile(
    "([<>|=]?)(?:(b)(1)|([iu])([1248])|(f)(2|4|8|16)|(c)(8|16|32)|([SUV])([1-9][0-9]{0,9})"
    r"|([mM])(8)(\[(?:[1-9][0-9]{0,8})?(?:[YMWDhms]|[munpfa]s)\])?)"
)
_SIZE_MAX = 0x7FFFFFFF  # bytes of an element, and the largest extent within one
_DIMS_MAX = 32  # extents within an element, and field lists within field lists


# Types that have no typestr of their own, as in proto/geometry.c: DLPack's (code, bits). What has fewer
# bits than 8 takes a byte, but for what is packed.
NAMED = {
    "bfloat16": (4, 16),
    "complex32": (5, 32),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (17, 4),
    "int4": (0, 4),
    "uint4": (1, 4),
    "int2": (0, 2),
    "uint2": (1, 2),
    "int1": (0, 1),
    "uint1": (1, 1),
    "float4_e2m1fn_x2": (17, 4),
    "float6_e2m3fn_x4": (15, 6),
    "float6_e3m2fn_x4": (16, 6),
}
# How many are packed in an element (DLPack's lanes), the first one in the lowest bits.
PACKED = {"float4_e2m1fn_x2": 2, "float6_e2m3fn_x4": 4, "float6_e3m2fn_x4": 4}


class Element(NamedTuple):
    """The type of an array's elements."""

    typestr: str
    itemsize: int  # bytes
    descr: Optional[str] = None  # JSON field list of a structured type
    name: Optional[str] = None  # of a type that has no typestr of its own

    @property
    def type_name(self):
        """What the daemon knows it by."""
        return self.name or self.typestr


@functools.lru_cache(maxsize=256)
def element_of(typestr, itemsize, descr):
    """The element of an array that the daemon tells of; arrays of a type share it. Raises InvalidError
    where the descr is not one of it."""
    return named(typestr) or _checked(Element(typestr, itemsize, descr))


def is_type(typestr, itemsize, descr):
    """Whether it is what element_of() takes, of a type that arrays can have."""
    if type(itemsize) is not int:  # 4.0 would be taken for 4 by its cache
        return False
    try:
        element = element_of(typestr, itemsize, descr)
    except (TypeError, ValueError):
        return False
    known = element if element.name else _parse(typestr)
    return known is not None and known.itemsize == itemsize


def named(name):
    """The element of a type that the array interface has no word for; None for another name."""
    if name not in NAMED:
        return None
    _, bits = NAMED[name]
    itemsize = max(bits * PACKED.get(name, 1) // 8, 1)
    return Element(f"{_NATIVE}V{itemsize}", itemsize, None, name)


def numpy():
    """NumPy, imported when first needed."""
    try:
        import numpy
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError("this needs NumPy: pip install 'caid[numpy]'", name="numpy") from e
    return numpy


@functools.lru_cache(maxsize=256)
def _parse(text):
    """The element of a typestr, with or without its byte order; None for other text."""
    match = _TYPESTR.fullmatch(text)
    if not match:
        return None
    order, *groups = match.groups(default="")
    kind, count, *unit = filter(None, groups)
    itemsize = int(count) * (4 if kind == "U" else 1)
    if kind in "SV" or itemsize == 1:
        order = "|"
    elif order in "=|":
        order = _NATIVE
    if itemsize > _SIZE_MAX:
        return None
    return Element(f"{order}{kind}{count}{''.join(unit)}", itemsize)


def of_typestr(typestr, descr=None):
    """The element that a dict of the array interface tells of.

    Raises
    ------
    InvalidError
        No typestr of the array interface, or one of Python objects or bits; a descr of another type.
    """
    element = _parse(typestr) if isinstance(typestr, str) else None
    if element is None:
        raise invalid(f"typestr {typestr!r}: not one of the array interface")
    if not descr or element.typestr[1] != "V":
        return element
    try:
        text = _to_json(descr)
    except (TypeError, ValueError, RecursionError):
        raise invalid(f"descr {descr!r}: not a field list of the array interface") from None
    if text == f'[["","{element.typestr}"]]':  # it says no more
        return element
    return element_of(element.typestr, element.itemsize, text)


def of_dtype(dtype):
    """The element of a typestr or name, a dtype, an element, or of anything that ``numpy.dtype`` takes.

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
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).partition(".")[2]  # torch.bfloat16
    if isinstance(dtype, str):
        element = _parse(dtype) or named(dtype)
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
        return _is_user_defined(dtype) and named(dtype.name) or Element(dtype.str, dtype.itemsize), ()
    if _is_user_defined(dtype):
        raise invalid(f"dtype {dtype}: fields of types that the array interface has no word for")
    try:
        descr = _to_json(dtype.descr)
    except ValueError as e:  # overlapping fields, or fields out of order
        raise invalid(f"dtype {dtype}: {e}") from None
    return element_of(dtype.str, dtype.itemsize, descr), ()


def _is_user_defined(dtype):
    """Whether another package than NumPy has made the type, or that of one of its fields."""
    if dtype.names is None:
        return dtype.base.isbuiltin == 2
    return any(_is_user_defined(field.base) for field, *_ in dtype.fields.values())


def to_numpy(element):
    """The :class:`numpy.dtype` of an element. Of a named one ml_dtypes has it; else it is raw memory."""
    np = numpy()
    if element.name is not None:
        try:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, element.name))
        except (ImportError, AttributeError):
            pass
    if element.descr is None:
        return np.dtype(element.typestr)
    return np.lib.format.descr_to_dtype(descr_list(element.descr))


def field(element, names):
    """(element, extents, offset) of a field of a record, or of a list of them. Needs NumPy.

    Raises
    ------
    ValueError, IndexError
        No such field; no record.
    """
    dtype = to_numpy(element)
    if dtype.names is None:
        raise IndexError(f"field {names!r}: the type is {element.type_name}, no record")
    try:
        part = dtype[names]
    except KeyError:
        raise ValueError(f"field {names!r}: the record has {', '.join(dtype.names)}") from None
    return *of_dtype(part), dtype.fields[names][1] if isinstance(names, str) else 0


def same(a, b):
    """Whether two elements are of one type. Some producers give no descr of their structured
    types, and none of named ones; then the size decides."""
    if a.name and b.name:
        return a.name == b.name
    if a.typestr.replace("<V", "|V") != b.typestr.replace("<V", "|V"):
        return False
    return a.descr is None or b.descr is None or descr_list(a.descr) == descr_list(b.descr)


# --- descr: a list of (name or (title, name), typestr or list[, shape]) ---------------------


def _to_json(descr):
    import json

    return json.dumps(descr, separators=(",", ":"))


def _of_json(text):
    import json

    return json.loads(text)


def _checked(element):
    """An element whose descr, if it has one, is one of its type. Raises InvalidError."""
    if element.descr is not None:
        try:
            _, nbytes = _fields(_of_json(element.descr))
        except (ValueError, TypeError, RecursionError):
            raise invalid(
                f"descr {element.descr!r}: not a field list of the array interface"
            ) from None
        if element.typestr[1] != "V" or nbytes != element.itemsize:
            raise invalid(f"descr {element.descr!r}: {nbytes} bytes, not {element.typestr}")
    return element


def descr_list(text):
    """The list of tuples of a descr that is kept as JSON, and has been checked."""
    return _fields(_of_json(text))[0]


def _fields(descr, depth=1):
    """(list of tuples, bytes) of a field list. Raises ValueError or TypeError where it is none."""
    _demand(isinstance(descr, list) and descr and depth <= _DIMS_MAX)
    fields, sizes = zip(*(_field(field, depth) for field in descr))
    names = [text for name, *_ in fields for text in _texts(name) if text]
    _demand(len(set(names)) == len(names))
    return list(fields), sum(sizes)


def _field(field, depth):
    """(tuple, bytes) of a field: [name or [title, name], typestr or list[, shape]]. Without a name it is
    padding."""
    _demand(isinstance(field, list))
    name, kind, *shape = field
    if isinstance(name, list):
        name = _, _ = tuple(name)
    _demand(all(isinstance(text, str) for text in _texts(name)))
    _demand(all(_texts(name)) or (name == "" and not shape and isinstance(kind, str) and "V" in kind))
    if isinstance(kind, list):
        kind, nbytes = _fields(kind, depth + 1)
    else:
        nbytes = getattr(_parse(kind), "itemsize", 0)
        _demand(nbytes)
    if not shape:
        return (name, kind), nbytes
    (extents,) = shape
    extents = tuple(extents) if isinstance(extents, list) else (extents,)
    _demand(len(extents) <= _DIMS_MAX)
    _demand(all(type(extent) is int and 0 <= extent <= _SIZE_MAX for extent in extents))
    return (name, kind, extents), nbytes * _geometry.size(extents)


def _texts(name):
    return name if isinstance(name, tuple) else (name,)


def _demand(is_so):
    if not is_so:
        raise ValueError
