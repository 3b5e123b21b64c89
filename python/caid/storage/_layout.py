# SPDX-License-Identifier: Apache-2.0
"""Where the points of a storage lie: parameters, presets, layouts and padded strides, as pure functions."""

from __future__ import annotations

import bisect
import contextlib
import math
import operator
from typing import Any, Callable, NamedTuple, Sequence

import numpy

from .._base import _geometry
from .._base._errors import invalid

AXES = "IJK"


# --- presets --------------------------------------------------------------------------------


def _backend(axes, device=None, *, points=1, data_falls=False):
    """A preset: strides fall from the dimensions of data ("0", "1", ..., or in reverse with `data_falls`) to
    these axes, whatever their order in the shape. The alignment is that of so many points."""

    def layout(dims):
        data = sorted(set(dims) - set(AXES), key=int, reverse=data_falls)
        order = data + [axis for axis in axes if axis in dims]
        return tuple(map(order.index, dims))

    return {**_preset(layout, 1, device), "points": points}


def _preset(layout, alignment_size, device):
    return {"layout": layout, "alignment_size": alignment_size, "device": device}


# The presets that `defaults` names: default parameters, and the layout as a function of the dims.
_presets: dict[str, dict[str, Any]] = {
    "C": {"layout": lambda dims: range(len(dims))},
    "F": {"layout": lambda dims: range(len(dims))[::-1]},
    # GT4Py's backends of the time of GDP-3
    "gtx86": _backend("IJK"),
    "gtmc": _backend("JKI", points=8, data_falls=True),
    "gtcuda": _backend("KJI", "gpu", points=32, data_falls=True),
    # and of 1.1.12: gt4py/storage/cartesian/layout_registry.py
    **dict.fromkeys(("debug", "numpy", "gt:cpu_kfirst", "dace:cpu_kfirst"), _backend("IJK")),
    **dict.fromkeys(("gt:cpu_ifirst", "dace:cpu_KJI"), _backend("KJI")),
    "gt:gpu": _backend("KJI", "gpu", points=32),
    "dace:cpu": _backend("KIJ"),
    "dace:gpu": _backend("KJI", "gpu"),
    "dace:gpu_IJK": _backend("IJK", "gpu"),
}


def register_defaults(
    name: str, layout: Callable[[Sequence[str]], Sequence[int]], *, alignment_size: int = 1,
    device: str | None = None,
) -> None:
    """Registers a preset for ``defaults=name``, or replaces one.

    `layout` is called with the dims of a storage, such as ("I", "J", "0"), and gives its layout;
    `alignment_size` is bytes, `device` None or "gpu".
    """
    _presets[name] = _preset(layout, _alignment(alignment_size), device)


def preset(name: str | None, dtype: Any) -> dict[str, Any]:
    if name is None:
        return {}
    if name not in _presets:
        raise invalid(f"defaults {name!r}: not one of {', '.join(_presets)}")
    found = _presets[name]
    points = found.get("points", 1)
    return found if points == 1 else {**found, "alignment_size": points * numpy.dtype(dtype).itemsize}


# --- parameters -----------------------------------------------------------------------------


class Parameters(NamedTuple):
    """The parameters of a storage that is to be made, with their defaults."""

    shape: tuple
    dtype: numpy.dtype
    layout: tuple | None = None
    alignment_size: int = 1
    aligned_index: tuple | None = None
    halo: tuple | None = None
    device: str | None = None
    managed: str | None = "gt4py"
    client: Any = None
    pool: str | None = None
    name: str | None = None


def checked(p: Parameters) -> Parameters:
    """The parameters in their final form. Raises InvalidError, and TypeError for a value of another type."""
    shape, dtype = extents(p.shape), numpy.dtype(p.dtype)
    if dtype.hasobject or dtype.subdtype or not dtype.itemsize:
        raise invalid(f"dtype {dtype}: no type of a storage's points")
    layout = _geometry.dims("layout", p.layout)
    if sorted(layout) != list(range(len(shape))):
        raise invalid(f"layout {layout}: no permutation of 0 to {len(shape) - 1}")
    if p.device not in (None, "gpu"):
        raise invalid(f"device {p.device!r}: None or 'gpu'")
    if p.managed not in (None, "gt4py", "cuda"):
        raise invalid(f"managed {p.managed!r}: None, 'gt4py' or 'cuda'")
    alignment_size, halo = _alignment(p.alignment_size), halo_of(p.halo, shape)
    index = _aligned_index(p.aligned_index, halo, shape)
    return Parameters(shape, dtype, layout, alignment_size, index, halo, *p[6:])


def extents(shape: Any) -> tuple[int, ...]:
    shape = _geometry.dims("shape", shape)
    if any(n < 0 for n in shape):
        raise invalid(f"shape {shape}: negative")
    return shape


def _alignment(value):
    value = operator.index(value)
    if value < 1:
        raise invalid(f"alignment_size {value}: 1 or more")
    return value


def dims(value: Sequence[str] | None, ndim: int) -> tuple[str, ...]:
    """The dims as a tuple; by default I, J, K, then "0", "1", and so on."""
    if value is None:
        return (*AXES[:ndim], *map(str, range(ndim - len(AXES))))
    value = tuple(value)
    known = all(dim in tuple(AXES) or (isinstance(dim, str) and dim.isdecimal()) for dim in value)
    if len(value) != ndim or len(set(value)) != ndim or not known:
        raise invalid(f"dims {value}: {ndim} different ones of 'I', 'J', 'K', '0', '1', ...")
    return value


def halo_of(value: int | Sequence[Any] | None, shape: tuple) -> tuple[tuple[int, int], ...]:
    """The halo as pairs, from ints and pairs, or from an int for all dimensions; by default (0, 0)."""
    if value is None:
        return ((0, 0),) * len(shape)
    with contextlib.suppress(TypeError, ValueError):
        pairs = (_pair(value),) * len(shape) if hasattr(value, "__index__") else tuple(map(_pair, value))
        if len(pairs) == len(shape) and all(min(pair) >= 0 and sum(pair) <= n for pair, n in zip(pairs, shape)):
            return pairs
    raise invalid(f"halo {value} for shape {shape}: one int, or one for each dimension, inside of it")


def _pair(value):
    start, end = map(operator.index, (value, value) if hasattr(value, "__index__") else value)
    return start, end


def _aligned_index(value, halo, shape):
    """The index as a tuple; by default that of the first point inside the halo."""
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
    """(strides, bytes of all points). Each row, in the dimension of the smallest stride, is padded so that the
    next one is aligned."""
    strides, step = [0] * len(shape), itemsize
    for nth, axis in enumerate(sorted(range(len(shape)), key=layout.__getitem__, reverse=True)):
        strides[axis] = step
        step *= shape[axis] or 1
        if nth == 0:
            unit = math.lcm(alignment, itemsize)
            step = -(-step // unit) * unit
    return tuple(strides), step


def lead(address: int, index: tuple, strides: tuple, alignment: int) -> int:
    """The bytes between an address and the first point with which the point at `index` is aligned."""
    return -(address + sum(i * step for i, step in zip(index, strides))) % alignment


# --- indexing -------------------------------------------------------------------------------


def halo_of_view(halo: tuple, shape: tuple, key: tuple) -> tuple[tuple[int, int], ...]:
    """The part of a halo that basic indexing leaves; `key` has every dimension."""
    axes = iter(zip(halo, shape))
    left = ((0, 0) if each is None else _halo_along(*next(axes), each) for each in key)
    return tuple(pair for pair in left if pair is not None)


def _halo_along(pair, extent, key):
    if not isinstance(key, slice):
        return None
    taken = range(extent)[key]
    rising = taken if taken.step > 0 else taken[::-1]
    start = bisect.bisect_left(rising, pair[0])
    end = len(rising) - bisect.bisect_left(rising, extent - pair[1])
    return (start, end) if taken.step > 0 else (end, start)
