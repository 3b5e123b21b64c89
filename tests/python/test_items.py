# SPDX-License-Identifier: Apache-2.0
"""Elements of an array as values of Python, what is not computed, and Numba's names."""

import operator

import pytest

import caid

np = pytest.importorskip("numpy")


@pytest.fixture
def a(client):
    with client.empty((2, 3), "<i4") as a:
        a.copy_from_host(np.arange(6, dtype="<i4").reshape(2, 3))
        yield a


def test_values(a):
    host = a.copy_to_host()
    assert a.tolist() == host.tolist() and a[0, 1].tolist() == 1
    for index in ((4,), (-1,), (1, 2), ((0, -1),)):
        assert a.item(*index) == host.item(*index)
        assert type(a.item(*index)) is int
    assert a[1, 1:2].item() == 4 and a.T.item(1) == 3
    assert (float(a[1, 2]), int(a[1, 2]), complex(a[1, 2:])) == (5.0, 5, 5 + 0j)
    assert len(a) == 2 and [row.tolist() for row in a] == host.tolist()


def test_what_is_no_value(a):
    for index in (6, -7, (0, 3), (2, 0)):
        with pytest.raises(IndexError):
            a.item(index)
    for index in ((), ((0,),), (0, 0, 0)):
        with pytest.raises(ValueError, match="item"):
            a.item(*index)
    for convert in (float, int, complex):
        with pytest.raises(TypeError, match=r"6 elements.*tolist\(\)"):
            convert(a)
    with pytest.raises(TypeError, match=r"item\(\)"):
        bool(a)
    a.close()
    with pytest.raises(caid.ClosedError):
        a.tolist()


@pytest.mark.parametrize("other", [2, 1.5, [1, 2, 3], "itself"])
def test_arithmetic_says_what_computes(a, other):
    other = a if other == "itself" else other
    for name in "add sub mul matmul truediv floordiv mod pow lt le gt ge and_ or_ xor lshift rshift".split():
        for left, right in ((a, other), (other, a)):
            with pytest.raises(TypeError, match=r"cupy.asarray\(a\).*copy_to_host"):
                getattr(operator, name)(left, right)


def test_operators_of_one(a):
    for name in ("neg", "pos", "abs", "invert"):
        with pytest.raises(TypeError, match="copy_to_host"):
            getattr(operator, name)(a)


def test_a_library_that_computes_is_asked(a):
    class Theirs:
        def __radd__(self, other):
            return "theirs", other

        __gt__ = __radd__

    assert a + Theirs() == ("theirs", a) and (a < Theirs()) == ("theirs", a)


def test_numbas_names(client, a, streams):
    stream, _ = streams
    a.setitem((0, slice(None)), 7)
    a.setitem(1, [8, 9, 10])
    assert a.tolist() == [[7, 7, 7], [8, 9, 10]]
    assert a.getitem((1, slice(1, None))).tolist() == [9, 10]
    stream.hold_up()
    a.setitem((0, 0), 1, stream=stream.number)  # after what is there
    bound = a.getitem(0, stream=stream.number)
    assert bound.__cuda_array_interface__["stream"] == stream.number
    stream.gate.set()
    assert bound.tolist() == [1, 7, 7]
    bound.close()
    flat = a.ravel()
    assert [part.tolist() for part in flat.split(4)] == [[1, 7, 7, 8], [9, 10]]
    for array, section in ((a, 1), (flat[::2], 1), (flat, 0)):
        with pytest.raises(ValueError, match="split"):
            array.split(section)
