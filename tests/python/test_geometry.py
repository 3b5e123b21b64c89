# SPDX-License-Identifier: Apache-2.0
"""Views' shapes, strides and offsets, with NumPy as the oracle. No daemon is needed."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from caid._base import _geometry as g

ITEMSIZE = 4
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def strided(shape, draw):
    """A NumPy view of this shape with steps of any sign and order, and where it starts."""
    order = draw(st.permutations(range(len(shape))))
    gaps = draw(st.tuples(*[st.sampled_from([1, 1, 2, -1, -3]) for _ in shape]))
    base = np.zeros([max(n, 1) * abs(by) for n, by in zip(shape, gaps)], "<i4")
    view = base[(*(slice(None, None, by) for by in gaps), ...)]
    view = view[(*(slice(0, n) for n in shape), ...)]
    return view.transpose(order)


def steps(shape, strides):
    """Those that are ever taken: NumPy's releases differ in the others."""
    return [step for n, step in zip(shape, strides) if n > 1]


@st.composite
def arrays(draw):
    return strided(draw(shapes), draw)


@given(arrays(), st.data())
def test_index_is_numpys(a, data):
    key = data.draw(
        hnp.basic_indices(a.shape, allow_ellipsis=True, allow_newaxis=True, max_dims=6)
    )
    keys = key if isinstance(key, tuple) else (key,)
    view = a[keys if Ellipsis in keys else (*keys, ...)]  # with the dots never a scalar
    offset, shape, strides = g.index(a.shape, a.strides, key)
    assert shape == view.shape
    if 0 not in shape:
        assert strides == view.strides
        assert offset == view.ctypes.data - a.ctypes.data


@given(arrays(), st.data(), st.sampled_from("CF"))
def test_reshape_is_numpys(a, data, order):
    shape = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 6, 10, 12]), max_size=5))
    shape = tuple(shape)
    try:
        expected = a.reshape(shape, order=order)
    except ValueError:
        with pytest.raises(ValueError):
            g.fill_in(shape, a.size)
        return
    assert g.fill_in(shape, a.size) == expected.shape
    strides = g.reshape(a.shape, a.strides, ITEMSIZE, expected.shape, order)
    if a.size == 0:
        assert len(strides) == len(expected.shape)
    elif np.shares_memory(a, expected):
        assert steps(expected.shape, strides) == steps(expected.shape, expected.strides)
    else:
        assert strides is None


@given(arrays(), st.sampled_from("CF"))
def test_regrouped_dimensions_need_no_copy_where_numpy_needs_none(a, order):
    assume(a.ndim >= 2)
    shape = (a.shape[0] * a.shape[1], *a.shape[2:])
    expected = a.reshape(shape, order=order)
    strides = g.reshape(a.shape, a.strides, ITEMSIZE, shape, order)
    assert (strides is not None) == (a.size == 0 or np.shares_memory(a, expected))


@given(arrays(), st.data())
def test_transpose_is_numpys(a, data):
    axes = data.draw(
        st.just([]) | st.permutations(range(-a.ndim, 0)) | st.permutations(range(a.ndim))
    )
    expected = a.transpose(axes or None)
    assert g.transpose(a.shape, a.strides, axes) == (expected.shape, expected.strides)


@given(arrays())
def test_contiguity_is_numpys(a):
    assert g.is_c_contiguous(a.shape, a.strides, ITEMSIZE) == a.flags.c_contiguous
    assert g.is_f_contiguous(a.shape, a.strides, ITEMSIZE) == a.flags.f_contiguous


@given(shapes)
def test_orders_are_numpys(shape):
    assume(0 not in shape)  # there, no step is taken
    assert g.c_strides(shape, ITEMSIZE) == np.empty(shape, "<i4").strides
    assert g.f_strides(shape, ITEMSIZE) == np.empty(shape, "<i4", order="F").strides


@given(arrays())
def test_extent_is_numpys(a):
    try:
        from numpy.lib.array_utils import byte_bounds
    except ImportError:
        byte_bounds = np.byte_bounds
    low, high = g.extent(a.shape, a.strides, ITEMSIZE)
    if a.size:
        assert (a.ctypes.data + low, a.ctypes.data + high) == byte_bounds(a)
    else:
        assert (low, high) == (0, 0)


@pytest.mark.parametrize(
    "key, what",
    [
        (5, "index 5 is out of bounds for axis 0 with size 2"),
        (-3, "index -3 is out of bounds"),
        ((0, 0, 0), "too many indices: 3 for 2 dimensions"),
        ((..., ...), "single ellipsis"),
        (True, "masks are not taken"),
        (np.True_, "masks are not taken"),
        (1.0, "not float"),
        ("x", "not str"),
        ([0, 1], "not list"),
        (np.array([True, False]), "not ndarray"),
    ],
)
def test_what_is_no_index(key, what):
    with pytest.raises(IndexError, match=what):
        g.index((2, 3), (12, 4), key)


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (0, 1, 2), (-3, 0)])
def test_what_is_no_permutation(axes):
    with pytest.raises(ValueError, match="permutation"):
        g.transpose((2, 3), (12, 4), axes)


@pytest.mark.parametrize("value", [1.5, (1, 1.5), None, "a", ("1",)])
def test_what_is_no_shape(value):
    with pytest.raises(TypeError, match="shape: an int or a tuple of int"):
        g.dims("shape", value)
