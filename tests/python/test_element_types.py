# SPDX-License-Identifier: Apache-2.0
"""Types that the array interface has no word for, against ml_dtypes, which ./dev fetches."""

import sys

import numpy as np
import pytest
from arenas import Foreign
from conftest import import_foreign

import caid
from caid._base import _typestr

NAMES = list(_typestr.NAMED)
MISSING = {"complex32", "int1", "uint1", *_typestr.PACKED}  # in ml_dtypes before 0.6


@pytest.fixture(params=[name for name in NAMES if name not in MISSING])
def dtype(request):
    return np.dtype(getattr(import_foreign("ml_dtypes"), request.param))


def every_value(dtype):
    """Every pattern of a byte, also such as are no value of a type of fewer bits."""
    return np.arange(256, dtype="u1").repeat(dtype.itemsize).view(dtype)


def test_the_type_travels(client, daemon, dtype):
    values = every_value(dtype).reshape(2, -1)
    with client.create("typed", values.shape, dtype) as a, caid.connect(daemon.address) as other:
        a.copy_from_host(values)
        (entry,) = [entry for entry in client.list() if entry.name == "typed"]
        assert entry.typestr == dtype.name
        with other.open("typed") as b:
            assert b.dtype == a.dtype == dtype and b.itemsize == dtype.itemsize
            assert b.copy_to_host().dtype == dtype
            assert b.copy_to_host().tobytes() == values.tobytes()
            assert b.T[1:].dtype == dtype
        client.unlink("typed")


def test_to_the_array_interface_it_is_raw_memory(client, dtype):
    typestr = f"<V{dtype.itemsize}"
    with client.empty(3, dtype) as a:
        assert a.typestr == a.__cuda_array_interface__["typestr"] == typestr
        assert f"typestr={dtype.name!r}" in repr(a)
        with client.as_array(Foreign(a, (3,), typestr)) as raw:  # taken for what it is copied to
            assert raw.dtype == np.dtype(typestr)
            raw.copy_from_host(every_value(dtype)[:3])
            raw.copy_to(a)
    mapped = caid.mapped_array(3, dtype, client=client)
    assert mapped.dtype == dtype and mapped.__cuda_array_interface__["typestr"] == typestr


def test_types_of_one_size_are_not_mixed_up(client):
    with client.empty(3, "float8_e5m2") as a, client.empty(3, "float8_e4m3fn") as b:
        with pytest.raises(TypeError, match="float8_e4m3fn to float8_e5m2"):
            a.copy_from(b)


@pytest.mark.parametrize("name", NAMES)
def test_names_need_no_ml_dtypes(client, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    itemsize = {"bfloat16": 2, "complex32": 4, "float6_e2m3fn_x4": 3, "float6_e3m2fn_x4": 3}.get(name, 1)
    with client.empty(3, name) as a:
        assert a.dtype == a.copy_to_host().dtype == np.dtype(f"V{itemsize}")
        with client.empty_like(a) as b:
            assert name in repr(b)


def test_torchs_types_are_known_by_their_names(client):
    class Dtype:
        __module__ = "torch"

        def __init__(self, name):
            self.name = name

        def __str__(self):
            return f"torch.{self.name}"

    for name, expected in ("bfloat16", "bfloat16"), ("float32", "<f4"), ("bool", "|b1"):
        with client.empty(3, Dtype(name)) as a:
            assert f"typestr={expected!r}" in repr(a)
    with pytest.raises(caid.InvalidError):
        client.empty(3, Dtype("qint8"))


def test_what_is_none(client):
    for name in "bfloat", "bfloat161", "int3", "float8", "Int4":
        with pytest.raises(caid.InvalidError):
            client.empty(3, name)
    record = np.dtype([("x", import_foreign("ml_dtypes").bfloat16)])
    with pytest.raises(caid.InvalidError, match="no word for"):
        client.empty(3, record)
    with client.empty(3, "|V2") as a:
        with pytest.raises(caid.InvalidError):  # a name is no typestr
            client.as_array(Foreign(a, (3,), "bfloat16"))


def test_strides_and_parts_are_of_whole_elements(client):
    with client.empty((2, 3), "bfloat16", order="F") as a:
        assert a.strides == (2, 4)
    with pytest.raises(caid.InvalidError, match="no multiple of 2"):
        client.empty((2, 3), "bfloat16", strides=(7, 2))


def test_a_part_of_an_arena_has_its_type(client, dtype):
    with client.arena() as arena:
        memory = arena.allocate(16)
        arena.publish("part", memory, shape=3, dtype=dtype)
        with client.open("part") as a:
            assert a.dtype == dtype
        client.unlink("part")
