# SPDX-License-Identifier: Apache-2.0
"""Element types against NumPy's."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import caid
from caid._base import _typestr as t

scalars = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes()
    | hnp.unsigned_integer_dtypes()
    | hnp.floating_dtypes()
    | hnp.complex_number_dtypes()
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
    | hnp.byte_string_dtypes(min_len=1)
    | hnp.unicode_string_dtypes(min_len=1)
)


@given(scalars)
def test_scalar_dtypes_round_trip(dtype):
    element, shape = t.of_dtype(dtype)
    assert element == (dtype.str, dtype.itemsize, None, None)
    assert shape == ()
    assert t.to_numpy(element) == dtype


@given(scalars)
def test_typestrs_need_no_numpy_and_mean_the_same(dtype):
    assert t._parse(dtype.str) == t._of_numpy(dtype)[0]
    assert t._parse(dtype.str[1:]) == t._of_numpy(np.dtype(dtype.str[1:]))[0]


@given(hnp.nested_dtypes(subtype_strategy=scalars))
def test_any_dtype_round_trips(dtype):
    element, shape = t.of_dtype(dtype)
    base = dtype.base
    while base.subdtype:
        base = base.base
    assert element.typestr == base.str
    assert shape == np.empty((), dtype).shape
    found = t.to_numpy(element)
    assert found.itemsize == base.itemsize
    if base.names is not None:
        assert found.descr == base.descr
        assert t.descr_list(element.descr) == base.descr
        assert t.element_of(*element[:3]) == element


@pytest.mark.parametrize("dtype", [float, "float32", "i", "d", np.int16, "datetime64[ns]", bool])
def test_what_numpy_dtype_takes(dtype):
    assert t.of_dtype(dtype)[0].typestr == np.dtype(dtype).str


def test_aligned_structs_keep_their_padding():
    dtype = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2", (2, 3))], align=True)
    assert t.to_numpy(t.of_dtype(dtype)[0]) == np.dtype(dtype, align=False)


@pytest.mark.parametrize(
    "dtype, what",
    [
        (object, "Python objects"),
        ("O", "Python objects"),
        ([("a", "O")], "Python objects"),
        ("foo", "foo"),
        (5, "5"),
        (np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2]}), "overlap"),
    ],
)
def test_what_is_no_type(dtype, what):
    with pytest.raises(caid.InvalidError, match=what):
        t.of_dtype(dtype)


@pytest.mark.parametrize(
    "typestr", [None, 5, "", "<", "f", "<f", "|O8", "<t8", "<f4 ", "<f4\n", b"<f4"]
)
def test_what_is_no_typestr_of_the_interface(typestr):
    with pytest.raises(caid.InvalidError, match="not one of the array interface"):
        t.of_typestr(typestr)


NO_FIELD_LISTS = [
    "", "[", "5", "{}", "[]", "[5]", '["ab"]', '[["a"]]', '[["a","<f4",1,2]]', "[" * 100000,
    '[["a",null]]', '[["a",{}]]', '[[5,"<f4"]]', '[[["a"],"<f4"]]', '[[["a",5],"<f4"]]',
    '[["a","<f4",-1]]', '[["a","<f4",true]]', '[["a","<f4",[2.0]]]', '[["a","<f4",[[2]]]]',
    '[["a","<f4"],["a","<f4"]]', '[[["b","a"],"<f4"],["b","<f4"]]', '[["a",[]]]',
    '[["a","|O"]]', '[["a","|O8"]]', '[["a",[["b","O"]]]]', '[["a","f4,f4"]]', '[["a","(2,)f4"]]',
    '[["a","<f3"]]', '[["a","|V0"],["b","<i8"]]', '[["a","<t8"]]', '[["a",' * 40 + '"|V8"' + "]]" * 40,
    '[["a","<f8",[%s]]]' % ",".join("1" * 40), '[["a","<f8",[0,2147483648]]]', '[["","<f8"]]',
    '[["","|V4"],["","<f4"]]', '[[["","a"],"<f8"]]', '[["","|V4",[2]]]', '[["a","<M8[xyz]"]]',
    '[["a","<M8[0s]"]]', '[{"a":1,"<f8":2}]', '[["","|V8"],["a","|S0"]]',
]  # fmt: skip


@pytest.mark.parametrize("descr", NO_FIELD_LISTS, ids=range(len(NO_FIELD_LISTS)))
def test_a_descr_that_somebody_made_up(descr):
    with pytest.raises(caid.InvalidError, match="not a field list"):
        t.element_of("|V8", 8, descr)


@pytest.mark.parametrize(
    "typestr, descr",
    [
        ("|V8", [("x", "<f4")]),
        ("|V32", [("x", "<f8", [1 << 20])]),
        ("|V8", [("x", "<f8", [0])]),
        ("|V8", [("x", [("y", "<f4", [2, 2])])]),
        ("<f8", [("x", "<f8")]),
    ],
)
def test_a_descr_of_another_type(typestr, descr):
    with pytest.raises(caid.InvalidError, match="bytes, not"):
        t.element_of(typestr, t.of_typestr(typestr).itemsize, json.dumps(descr))
    if typestr != "<f8":  # NumPy's rule: of others a descr is not looked at
        with pytest.raises(caid.InvalidError, match="bytes, not"):
            t.of_typestr(typestr, descr)


NAMES = st.sampled_from([*"abcdefghijklmnopqrstuvwxyz", "", ["t", "u"], ["", "x"], ["t"], 5, None])
KINDS = st.sampled_from(["<f4", "<f8", "|u1", "<U2", "|V4", "<M8[ns]"] * 3 + ["|S0", "|O", "f4,f4", None])
EXTENTS = st.sampled_from([1, 2, 3, [], [2], [2, 3], [1, 1, 4], 0, [3, 0], -1, True, [1 << 31], [[2]]])


def field_lists(kinds):
    fields = st.tuples(NAMES, kinds) | st.tuples(NAMES, kinds, EXTENTS)
    return st.lists(fields.map(list), min_size=1, max_size=3)


DESCRS = field_lists(st.recursive(KINDS, field_lists, max_leaves=4))


@settings(max_examples=int(os.environ.get("CAID_TEST_RECORDS", "3000")) // 10)
@given(st.one_of(*[DESCRS.map(json.dumps)] * 4, st.text(alphabet='[]",x<f48|V ', max_size=20)))
def test_any_descr_is_refused_or_as_numpy_has_it(descr):
    try:
        try:
            element = t.element_of("|V4", 4, descr)
        except caid.InvalidError as e:
            size = re.search(r": (\d{1,9}) bytes, not", str(e))
            if not size or int(size[1]) == 0:
                return
            element = t.element_of(f"|V{size[1]}", int(size[1]), descr)
    except caid.InvalidError as e:
        raise AssertionError(f"{descr}: not even of the size that it has") from e
    event("taken")
    dtype = t.to_numpy(element)
    assert dtype.itemsize == element.itemsize and not dtype.hasobject


@pytest.mark.parametrize("dtype", [[("a", "S0"), ("b", "i4")], [("a", "i4"), ("b", "V0")]])
def test_a_field_of_no_bytes_is_refused_before_it_is_created(dtype):
    """NumPy makes arrays of one byte more of them."""
    with pytest.raises(caid.InvalidError, match="not a field list"):
        t.of_dtype(np.dtype(dtype))


def test_same_type():
    plain = t.of_typestr("|V8")
    fields = t.of_typestr("|V8", [("a", "<f4"), ("b", "<f4")])
    others = t.of_typestr("|V8", [("a", "<f4"), ("c", "<f4")])
    assert t.same(plain, fields)
    assert t.same(fields, fields)
    assert not t.same(fields, others)
    assert not t.same(t.of_typestr("<f4"), t.of_typestr(">f4"))
    assert t.of_typestr("<f4", [("", "<f4")]) == t.of_typestr("<f4")
    assert t.of_typestr("|V8", [("", "|V8")]) == plain


def test_numpy_is_optional():
    """The package imports, and a typestr works, where NumPy cannot be imported."""
    code = """
import sys
sys.modules["numpy"] = None
import caid
from caid._base import _typestr
assert _typestr.of_dtype("<f4") == (("<f4", 4, None, None), ())
try:
    _typestr.of_dtype("float32")
except caid.InvalidError as e:
    print(e)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "dtype 'float32': without NumPy a typestr is needed, as '<f4'\n"


def test_import_leaves_numpy_alone():
    code = "import sys, caid; print('numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
