# SPDX-License-Identifier: Apache-2.0
"""Where the points of a storage lie: presets, layouts and padded strides, as pure functions."""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, NamedTuple, Sequence

from .. import _geometry
from .._errors import invalid

AXES = "IJK"


class Preset(NamedTuple):
    """What `defaults` names: parameters where none are given, or ``...`` for none."""

    layout: Callable[[Sequence[str]], tuple]  # of dims
    alignment_size: Any = ...
    device: Any = ...


def _c_layout(dims):
    return tuple(range(len(dims)))


def _f_layout(dims):
    return tuple(reversed(range(len(dims))))


def _by_meaning(axes, *, data_falls):
    """The layout in which strides fall from the dimensions of data ("0", "1", ..., or the other way
    round) to these axes, wherever each of them stands."""

    def layout(dims):
        data = sorted(set(dims) - set(AXES), key=int, reverse=data_falls)
        order = data + [axis for axis in axes if axis in dims]
        return tuple(map(order.index, dims))

    return layout


_k_first = _by_meaning("IJK", data_falls=False)
_i_first = _by_meaning("JKI", data_falls=True)
_gpu = _by_meaning("KJI", data_falls=True)

# GT4Py's backends, of the time of GDP-3 and of 1.1 (gt4py/storage/cartesian/layout.py).
_presets = {
    "C": Preset(_c_layout),
    "F": Preset(_f_layout),
    "numpy": Preset(_c_layout, 1, None),
    "gtx86": Preset(_k_first, 1, None),
    "gtmc": Preset(_i_first, 8, None),
    "gtcuda": Preset(_gpu, 32, "gpu"),
    "gt:cpu_kfirst": Preset(_k_first, 1, None),
    "gt:cpu_ifirst": Preset(_i_first, 8, None),
    "gt:gpu": Preset(_gpu, 32, "gpu"),
    "dace:cpu": Preset(_k_first, 1, None),
    "dace:gpu": Preset(_gpu, 32, "gpu"),
}


def register_defaults(
    name: str,
    layout: Callable[[Sequence[str]], Sequence[int]],
    *,
    alignment_size: int = 1,
    device: str | None = None,
) -> None:
    """Makes a preset known that ``defaults=name`` takes, or puts one in the place of another.

    Parameters
    ----------
    name : str
    layout : callable
        Called with the dims of a storage, such as ("I", "J", "0"); gives its layout.
    alignment_size : int
        Bytes.
    device : {None, "gpu"}
    """
    _presets[name] = Preset(layout, alignment(alignment_size), device)


def preset(name: str) -> Preset:
    try:
        return _presets[name]
    except KeyError:
        raise invalid(f"defaults {name!r}: none of {', '.join(_presets)}") from None


# --- parameters -----------------------------------------------------------------------------


def extents(shape: Any) -> tuple[int, ...]:
    shape = _geometry.dims("shape", shape)
    if any(n < 0 for n in shape):
        raise invalid(f"shape {shape}: negative")
    return shape


def alignment(value: Any) -> int:
    value = operator.index(value)
    if value < 1:
        raise invalid(f"alignment_size {value}: 1 or more")
    return value


def dims(value: Sequence[str] | None, ndim: int) -> tuple[str, ...]:
    """As a tuple; without any I, J, K, then "0", "1", and so on."""
    if value is None:
        return (*AXES[:ndim], *map(str, range(ndim - len(AXES))))
    value = tuple(value)
    known = all(dim in tuple(AXES) or (isinstance(dim, str) and dim.isdecimal()) for dim in value)
    if len(value) != ndim or len(set(value)) != ndim or not known:
        raise invalid(f"dims {value}: {ndim} different ones of 'I', 'J', 'K', '0', '1', ...")
    return value


def layout(value: Sequence[int], ndim: int) -> tuple[int, ...]:
    value = _geometry.dims("layout", value)
    if sorted(value) != list(range(ndim)):
        raise invalid(f"layout {value}: no permutation of 0 to {ndim - 1}")
    return value


def halo(value: Sequence[Any] | None, shape: tuple) -> tuple[tuple[int, int], ...]:
    """Pairs, of ints and pairs; without any (0, 0)."""
    if value is None:
        return ((0, 0),) * len(shape)
    try:
        pairs = tuple(_pair(each) for each in value)
    except (TypeError, ValueError):
        pairs = ()
    if len(pairs) != len(shape) or any(
        min(pair) < 0 or sum(pair) > n for pair, n in zip(pairs, shape)
    ):
        raise invalid(f"halo {value} for shape {shape}: one for each dimension, inside of it")
    return pairs


def _pair(value):
    if hasattr(value, "__index__"):
        return (operator.index(value),) * 2
    start, end = map(operator.index, value)
    return start, end


def aligned_index(value: Sequence[int] | None, halo: tuple, shape: tuple) -> tuple[int, ...]:
    """As a tuple; without any the first point inside of the halo."""
    if value is None:
        return tuple(start for start, _ in halo)
    value = _geometry.dims("aligned_index", value)
    if len(value) != len(shape) or any(not 0 <= i <= n for i, n in zip(value, shape)):
        raise invalid(f"aligned_index {value} for shape {shape}: a point of it")
    return value


# --- strides --------------------------------------------------------------------------------


def layout_of(shape: tuple, strides: tuple) -> tuple[int, ...]:
    """The layout that strides have; a dimension that is not stepped along counts as the largest."""
    steps = [abs(step) if n > 1 else math.inf for n, step in zip(shape, strides)]
    falling = sorted(range(len(steps)), key=lambda axis: -steps[axis])
    return tuple(map(falling.index, range(len(steps))))


def has_layout(shape: tuple, strides: tuple, layout: tuple) -> bool:
    """Whether strides fall as the layout says, wherever a dimension is stepped along."""
    falling = sorted(range(len(shape)), key=layout.__getitem__)
    steps = [abs(strides[axis]) for axis in falling if shape[axis] > 1]
    return 0 in shape or steps == sorted(steps, reverse=True)


def padded_strides(shape: tuple, itemsize: int, layout: tuple, alignment: int) -> tuple[tuple, int]:
    """(strides, bytes of it all), each row in the dimension of the smallest stride as long as keeps the
    next one aligned."""
    strides, step = [0] * len(shape), itemsize
    for nth, axis in enumerate(sorted(range(len(shape)), key=layout.__getitem__, reverse=True)):
        strides[axis] = step
        step *= shape[axis] or 1
        if nth == 0:
            unit = math.lcm(alignment, itemsize)
            step = -(-step // unit) * unit
    return tuple(strides), step


def lead(address: int, index: tuple, strides: tuple, alignment: int) -> int:
    """How many bytes after an address the first point lies, so that the one of that index is aligned."""
    return -(address + sum(i * step for i, step in zip(index, strides))) % alignment


# --- indexing -------------------------------------------------------------------------------


def halo_of_view(halo: tuple, shape: tuple, key: tuple) -> tuple[tuple[int, int], ...]:
    """What basic indexing leaves of a halo; `key` names every dimension."""
    pairs, axis = [], 0
    for each in key:
        if each is None:
            pairs.append((0, 0))
            continue
        if isinstance(each, slice):
            pairs.append(_halo_of_slice(halo[axis], shape[axis], each))
        axis += 1
    return tuple(pairs)


def _halo_of_slice(pair, extent, key):
    taken = range(extent)[key]
    rising = taken if taken.step > 0 else taken[::-1]

    def below(limit):
        return len(range(rising.start, min(rising.stop, limit), rising.step))

    start, end = below(pair[0]), len(rising) - below(extent - pair[1])
    return (start, end) if taken.step > 0 else (end, start)
