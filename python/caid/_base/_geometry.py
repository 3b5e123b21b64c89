# SPDX-License-Identifier: Apache-2.0
"""Shapes and byte strides, as pure functions; the rules are NumPy's."""

import contextlib
import operator


def size(shape):
    """How many elements."""
    n = 1
    for extent in shape:
        n *= extent
    return n


def c_strides(shape, itemsize):
    """Byte steps in C order, the last dimension fastest. Extents of 0 count as 1."""
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent or 1
    return tuple(reversed(strides))


def f_strides(shape, itemsize):
    """Byte steps in Fortran order, the first dimension fastest."""
    return c_strides(shape[::-1], itemsize)[::-1]


def is_contiguous(shape, strides, contiguous):
    """Whether strides are the contiguous ones; the step of a dimension of one element counts as any."""
    if 0 in shape:
        return True
    return all(n == 1 or s == c for n, s, c in zip(shape, strides, contiguous))


def is_c_contiguous(shape, strides, itemsize):
    return is_contiguous(shape, strides, c_strides(shape, itemsize))


def is_f_contiguous(shape, strides, itemsize):
    return is_contiguous(shape, strides, f_strides(shape, itemsize))


def extent(shape, strides, itemsize):
    """(low, high): the bytes from the first element that all elements lie in, low <= 0."""
    if 0 in shape:
        return 0, 0
    low, high = 0, itemsize
    for n, step in zip(shape, strides):
        reach = (n - 1) * step
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def dims(what, value):
    """A shape, strides or axes: an int, or an iterable of ints, as a tuple of int."""
    if hasattr(value, "__index__"):  # NumPy's arrays have it, too, and only some an index
        with contextlib.suppress(TypeError):
            return (operator.index(value),)
    try:
        return tuple(map(operator.index, value))
    except TypeError:
        raise TypeError(f"{what}: an int or a tuple of int is needed, not {value!r}") from None


# --- views ----------------------------------------------------------------------------------


def index(shape, strides, key):
    """Basic indexing: ints, slices, one Ellipsis, None.

    Returns
    -------
    offset, shape, strides
        Of the view; offset in bytes from the first element.
    """
    offset, new_shape, new_strides = 0, [], []
    axis = 0
    for item in expand(key, len(shape)):
        if item is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        n, step = shape[axis], strides[axis]
        if isinstance(item, slice):
            start, count, by = _slice(item, n)
            offset += start * step
            new_shape.append(count)
            new_strides.append(step * by)
        else:
            offset += _position(item, n, axis) * step
        axis += 1
    return offset, tuple(new_shape), tuple(new_strides)


def expand(key, ndim):
    """The key as a list with one item for each axis, and None for each new one."""
    key = list(key) if isinstance(key, tuple) else [key]
    n_axes = sum(item is not None and item is not Ellipsis for item in key)
    if n_axes > ndim:
        raise IndexError(f"too many indices: {n_axes} for {ndim} dimensions")
    dots = [i for i, item in enumerate(key) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    rest = [slice(None)] * (ndim - n_axes)
    if dots:
        key[dots[0] : dots[0] + 1] = rest
        return key
    return key + rest


def _slice(item, n):
    start, stop, by = item.indices(n)
    count = len(range(start, stop, by))
    return (start, count, by) if count else (0, 0, 1)


def _position(item, n, axis):
    if type(item).__name__ in ("bool", "bool_"):  # NumPy's, too, which index() takes for 0 and 1
        raise IndexError("masks are not taken: only ints, slices, Ellipsis and None")
    try:
        i = operator.index(item)
    except TypeError:
        raise IndexError(
            f"only ints, slices, Ellipsis and None are indices, not {type(item).__name__}"
        ) from None
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of bounds for axis {axis} with size {n}")
    return i % n


def transpose(shape, strides, axes):
    """The dimensions in the order of axes, or reversed where there are none."""
    ndim = len(shape)
    if not axes:
        return shape[::-1], strides[::-1]
    axes = tuple(axis + ndim if axis < 0 else axis for axis in axes)
    if sorted(axes) != list(range(ndim)):
        raise ValueError(f"axes {axes} are not a permutation of the {ndim} dimensions")
    return tuple(shape[i] for i in axes), tuple(strides[i] for i in axes)


def squeeze(shape, strides, axis):
    """The dimensions without those of extent 1, or without the given axes, whose extents have to be 1."""
    ndim = len(shape)
    if axis is None:
        gone = [i for i in range(ndim) if shape[i] == 1]
    else:
        gone = [_axis(i, ndim) for i in dims("axis", axis)]
    if len(set(gone)) < len(gone):
        raise ValueError(f"axis {axis}: an axis is given twice")
    if any(shape[i] != 1 for i in gone):
        raise ValueError(f"axis {axis}: an extent of shape {shape} is not 1")
    kept = [i for i in range(ndim) if i not in gone]
    return tuple(shape[i] for i in kept), tuple(strides[i] for i in kept)


def swapped(a, b, ndim):
    """All axes in order, but with two of them swapped."""
    axes = list(range(ndim))
    a, b = _axis(a, ndim), _axis(b, ndim)
    axes[a], axes[b] = b, a
    return axes


def _axis(axis, ndim):
    i = operator.index(axis)
    if not -ndim <= i < ndim:
        raise ValueError(f"axis {i} is out of bounds for {ndim} dimensions")
    return i % ndim


def retype(shape, strides, old, new):
    """(shape, strides) of the same bytes as elements of `new` bytes in place of `old`."""
    if new == old:
        return shape, strides
    if not shape:
        raise ValueError(f"an array of no dimensions keeps its itemsize: {old} bytes, not {new}")
    n, step = shape[-1], strides[-1]
    if n != 1 and step != old and 0 not in shape:
        raise ValueError(f"itemsize {new} in place of {old}: the last axis is not contiguous")
    if n * old % new or (new < old and old % new):
        raise ValueError(f"itemsize {new}: no divisor of {old if new < old else n * old} bytes")
    return (*shape[:-1], n * old // new), (*strides[:-1], new)


def fill_in(new_shape, n):
    """A shape for n elements with its one -1, if any, replaced."""
    known = size(extent for extent in new_shape if extent != -1)
    n_unknown = new_shape.count(-1)
    if n_unknown > 1 or any(extent < -1 for extent in new_shape):
        raise ValueError(f"shape {new_shape}: extents may not be negative, except for one -1")
    if n_unknown == 1 and known and n % known == 0:
        new_shape = tuple(n // known if extent == -1 else extent for extent in new_shape)
        known = n
    if known != n or -1 in new_shape:
        raise ValueError(f"cannot reshape {n} elements into shape {new_shape}")
    return new_shape


def reshape(shape, strides, itemsize, new_shape, order="C"):
    """The strides by which the same elements, in that order, have another shape; None where no strides do,
    and only a copy would."""
    if order == "F":
        strides = reshape(shape[::-1], strides[::-1], itemsize, new_shape[::-1])
        return strides and strides[::-1]
    if order != "C":
        raise ValueError(f"order {order!r}: 'C', 'F' or 'A'")
    if new_shape == shape:
        return strides
    if is_c_contiguous(shape, strides, itemsize):
        return c_strides(new_shape, itemsize)
    old = [(n, s) for n, s in zip(shape, strides) if n != 1]
    groups = _pair(old, new_shape)
    return None if groups is None else _steps(groups, len(new_shape))


def _pair(old, new_shape):
    """Cuts old and new dimensions into groups of as many elements, each as short as possible:
    [(old part, new part)]; None if an old part is not evenly spaced."""
    groups, i, j = [], 0, 0
    while i < len(old):
        i0, j0 = i, j
        n_old, n_new = old[i][0], new_shape[j]
        i, j = i + 1, j + 1
        while n_old != n_new:
            if n_old < n_new:
                n_old *= old[i][0]
                i += 1
            else:
                n_new *= new_shape[j]
                j += 1
        part = old[i0:i]
        if any(a[1] != b[0] * b[1] for a, b in zip(part, part[1:])):
            return None
        groups.append((part, new_shape[j0:j]))
    return groups


def _steps(groups, ndim):
    strides = []
    for old, new in groups:
        strides += c_strides(new, old[-1][1])
    # What is left are extents of 1, whose step is never taken: NumPy repeats the last.
    return tuple(strides + strides[-1:] * (ndim - len(strides)))
