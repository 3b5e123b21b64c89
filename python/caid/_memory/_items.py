# SPDX-License-Identifier: Apache-2.0
"""Elements as values of Python, and by Numba's names. The base of Elements."""

from __future__ import annotations

import numbers
import operator
from typing import TYPE_CHECKING, Any, Iterator

from .._handoff import _any_stream
from . import _values

if TYPE_CHECKING:
    from ._array import Array

_OPERATORS = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_REFUSED = "a caid.Array is not computed with or compared: cupy.asarray(a), torch.from_dlpack(a) or a.copy_to_host() is"


class Items:
    """The part of :class:`caid.Array` that gives elements as values."""

    __slots__ = ()

    shape: Any
    ndim: Any
    size: Any
    copy_to_host: Any
    is_c_contiguous: Any
    _bind: Any

    if TYPE_CHECKING:

        def __getitem__(self, key: Any) -> Array: ...

    def item(self, *index: Any) -> Any:
        """An element as a value of Python, as NumPy gives it: of the index that is given, as ints, as a
        tuple of them, or as one int that counts the elements in C order; without, the only one. It is
        copied to the host after all work on it that caid knows of, each time; tolist() copies them all
        at once. Needs NumPy.

        Raises
        ------
        ValueError
            No index, and not one element; an index of other dimensions.
        IndexError
            There is no such element.
        """
        if not index:
            if self.size != 1:
                raise ValueError(f"item() without an index: the array has {self.size} elements, not 1")
            return self.copy_to_host().item()
        if len(index) == 1:
            index = index[0] if isinstance(index[0], tuple) else self._place(index[0])
        if len(index) != self.ndim:
            raise ValueError(f"item(): {len(index)} indices of an array of {self.ndim} dimensions")
        return self[tuple(map(operator.index, index))].copy_to_host().item()

    def _place(self, number):
        """The index of an element by its number in C order."""
        number, index = operator.index(number), []
        if not -self.size <= number < self.size:
            raise IndexError(f"index {number} of an array of {self.size} elements")
        number %= self.size
        for extent in reversed(self.shape):
            number, i = divmod(number, extent)
            index.append(i)
        return tuple(reversed(index))

    def tolist(self) -> Any:
        """The elements as values of Python, in nested lists; of no dimensions the value. Needs NumPy."""
        return self.copy_to_host().tolist()

    def _number(self):
        if self.size != 1:
            raise TypeError(f"an array of {self.size} elements is no number: a[i].item(), a.tolist()")
        return self.item()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    # --- by Numba's names -------------------------------------------------------------------

    def getitem(self, key: Any, stream: Any = 0) -> Array:
        """``a[key]``, a view, with a stream to bind() it to."""
        view = self[key]
        return view if _any_stream.is_default(stream) else view._bind(stream)

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """``a[key] = value``; with a stream, as for copy_to_host(), the copy is enqueued there."""
        with self[key] as view:
            _values.assign(view, value, stream)

    def split(self, section: int, stream: Any = 0) -> Iterator[Array]:
        """Views of `section` elements each, the last of what is left; bound to a stream, as getitem()'s.
        ValueError: the array has not one dimension without gaps, or no section has an element."""
        section = operator.index(section)
        if self.ndim != 1 or not self.is_c_contiguous() or section < 1:
            raise ValueError(f"split({section}): an array of one dimension without gaps, and 1 or more elements")
        starts = range(0, self.size, section)
        return (self.getitem(slice(start, start + section), stream) for start in starts)


def _refusing(name):
    def refuse(_self, other, *_modulo):
        # Whatever else may know how: CuPy's and PyTorch's arrays do.
        if isinstance(other, (numbers.Number, Items, list, tuple)):
            raise TypeError(_REFUSED)
        return NotImplemented

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def _refusing_alone(name):
    def refuse(_self):
        raise TypeError(_REFUSED)

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


_binary = [f"__{side}{name}__" for name in _OPERATORS.split() for side in ("", "r")]
for _name in (*_binary, "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Items, _name, _refusing(_name))
for _name in ("__neg__", "__pos__", "__abs__", "__invert__"):
    setattr(Items, _name, _refusing_alone(_name))
