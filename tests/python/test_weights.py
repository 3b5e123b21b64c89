# SPDX-License-Identifier: Apache-2.0
"""Weights: what safetensors files have is what readers find, whole or a part, as it is or converted; and what is
saved is what was there."""

import contextlib
import fnmatch
import json
import math
import os
import re
import struct
import sys

import models
import numpy
import own_torch
import pytest
from arenas import Foreign, fill
from conftest import import_foreign, wait_until
from hypothesis import assume, given, settings, strategies as st

import caid
from caid import weights
from caid.weights import _plan, _save

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

NUMPY = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}  # fmt: skip
NAMED = {"BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
         "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}  # fmt: skip
PACKED = {"F4": ("float4_e2m1fn_x2", 2, 1), "F6_E2M3": ("float6_e2m3fn_x4", 4, 3), "F6_E3M2": ("float6_e3m2fn_x4", 4, 3)}


def raw(array):
    """Its bytes."""
    return numpy.ascontiguousarray(array.copy_to_host()).tobytes()


def found(opened):
    """As models.write() has them; the type as its NumPy or ml_dtypes name."""
    told = {key: a._layout.element.type_name for key, a in opened.items()}
    words = {typestr: word for word, typestr in {**NUMPY, **NAMED}.items()}
    return {key: (words[told[key]], a.shape, raw(a)) for key, a in opened.items()}


def some_bytes(word, shape, seed):
    n = math.prod(shape) * models.SIZES[word]
    some = numpy.random.default_rng(seed).integers(0, 256, n, "u1")
    return (some & 1 if word == "BOOL" else some).tobytes()


@st.composite
def tensors(draw, word=st.sampled_from(sorted(models.SIZES)), ndim=(0, 4), extents=st.integers(0, 5)):
    word, shape = draw(word), tuple(draw(st.lists(extents, min_size=ndim[0], max_size=ndim[1])))
    return word, shape, some_bytes(word, shape, draw(st.integers(0, 1 << 32)))


NO_CONTROL = st.characters(blacklist_categories=("Cc", "Cs"))
ANY = st.text(NO_CONTROL, min_size=1, max_size=20).filter(lambda key: key != "__metadata__")
KEYS = ANY | st.sampled_from(["a", "b", "a.w", "b.w", "c.w", "c.b"])


# --- all of it ----------------------------------------------------------------------------------


@st.composite
def layouts(draw, all_tensors):
    """File names of the tensors: one file, several that are given one by one, a folder, or an index."""
    how = draw(st.sampled_from(["file", "files", "folder", "index"]))
    names = ["model.safetensors"] if how == "file" else ["a.safetensors", "b.safetensors", "c.safetensors"]
    if how == "index":
        names.append("sub/d")
    return how, {key: draw(st.sampled_from(names)) for key in all_tensors}


def write_layout(folder, how, where, all_tensors, metadata):
    """What load() is to be given."""
    files = {}
    for key, name in where.items():
        files.setdefault(name, {})[key] = all_tensors[key]
    (folder / "sub").mkdir()
    for i, (name, there) in enumerate(files.items()):
        models.write(folder / name, there, metadata if i == 0 else {})
    if how == "index":
        told = {"metadata": {"total_size": 0}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(told), encoding="utf-8")
    paths = [folder / name for name in files]
    return {"file": paths[0], "files": paths}.get(how, folder)


def test_what_the_files_have_is_what_is_found_and_what_is_saved(client, tmp_path, monkeypatch):
    texts = st.dictionaries(KEYS, KEYS, max_size=3)

    @settings(max_examples=60)
    @given(st.data(), st.dictionaries(KEYS, tensors(), min_size=1, max_size=6), texts, st.integers(1, 200),
           st.sampled_from([0, 4096, 100_000]))  # fmt: skip
    def check(data, all_tensors, metadata, chunk, n_more):
        metadata.update(data.draw(st.dictionaries(KEYS, st.sampled_from(sorted(all_tensors)), max_size=2)))
        assume(not any(metadata.get(of) == key != of for key, of in metadata.items()))
        metadata.update({"long": "x" * n_more} if n_more else {})
        how, where = data.draw(layouts(all_tensors))
        folder = tmp_path / os.urandom(8).hex()
        folder.mkdir()
        model = write_layout(folder, how, where, all_tensors, metadata)
        tied = {key: of for key, of in metadata.items() if key not in all_tensors and of in all_tensors and noted(key, of)}
        expected = {**all_tensors, **{key: all_tensors[of] for key, of in tied.items()}}
        monkeypatch.setattr(_plan, "CHUNK", chunk)
        monkeypatch.setattr(_save, "CHUNK", chunk)

        version = weights.load(model, "m", client=client)
        with weights.open(f"m@{version}", client=client) as w:
            assert list(w) == sorted(expected, key=str.encode) and found(w) == expected
            assert w.file_metadata == metadata and len(w) == len(expected) and "__metadata__" not in w
            assert w.nbytes == sum(len(some) for *_, some in expected.values())
            assert len({w[key].ptr for key in (*tied, *tied.values()) if w[key].nbytes}) == len(
                {of for of in tied.values() if w[of].nbytes}
            )
            weights.save(w, folder / "saved.safetensors")
        assert models.read(folder / "saved.safetensors") == (all_tensors, metadata)
        assert weights.load(folder / "saved.safetensors", "m", client=client) == version + 1
        with weights.open("m", client=client) as w:
            assert found(w) == expected
        assert os.listdir(folder).count("saved.safetensors") == 1 and not list(folder.glob(".caid-*"))

    check()


def noted(key, of):
    """As safetensors.torch.save_model() notes parameters that are tied: text may be any."""
    return re.fullmatch(r"(?s).+\.([^.]*)\n.+\.\1", f"{key}\n{of}") is not None


def test_the_library_reads_each_type_that_is_saved(client, tmp_path):
    library = import_foreign("safetensors")
    all_tensors = {word: (word, (2, 3), some_bytes(word, (2, 3), 20)) for word in models.SIZES}
    weights.load(models.write(tmp_path / "m", all_tensors), "m", client=client)
    weights.save("m", tmp_path / "saved", client=client)
    there = dict(library.deserialize((tmp_path / "saved").read_bytes()))
    found = {key: (told["dtype"], tuple(told["shape"]), bytes(told["data"])) for key, told in there.items()}
    assert found == all_tensors


def test_each_type_of_the_library_is_one_of_caids():
    library = import_foreign("safetensors")
    with pytest.raises(library.SafetensorError, match="unknown variant `X`, expected one of") as told:
        header = b'{"a":{"dtype":"X","shape":[],"data_offsets":[0,0]}}'
        library.deserialize(struct.pack("<Q", len(header)) + header)
    words = re.findall("`([^`]+)`", str(told.value))[1:]
    assert words == [*weights._safetensors.TYPES] and {*words} == {*models.SIZES, *PACKED}


@pytest.mark.parametrize("word", PACKED)
def test_what_lies_packed_stays_so(client, tmp_path, word):
    name, lanes, itemsize = PACKED[word]
    some = numpy.arange(12 * itemsize, dtype="u1").tobytes()
    there = {"a.q_proj.weight": (word, (4, 3 * lanes), some), "b": (word, (0, lanes), b"")}
    path = models.write(tmp_path / "m", there)
    weights.load(path, "m", dtype="<f2", shard=(1, 2), client=client)
    with weights.open("m", client=client) as w:
        a = w["a.q_proj.weight"]
        assert (a._layout.element.type_name, a.shape, a.itemsize, raw(a)) == (name, (2, 3), itemsize, some[6 * itemsize :])
    weights.load(path, "m", client=client)
    weights.save("m", tmp_path / "saved", client=client)
    assert models.read(tmp_path / "saved") == (there, {})
    with pytest.raises(caid.InvalidError):
        weights.load(path, "m", dtype=name, client=client, progress=pytest.fail)
    with client.empty((), name) as a:
        client.publish_many("n/", {"a": a})
    with pytest.raises(TypeError, match="dimension"):
        weights.save("n", tmp_path / "not", client=client)


def test_a_file_of_the_library_comes_back_byte_for_byte(client, tmp_path):
    library = import_foreign("safetensors.numpy")
    some = [numpy.ones(n, word) for n, word in enumerate(["f4", "u1", "i4", "c8", "?", "i8", "u4", "f8", "f2", "i1"])]
    there = {f"\u00fc.{i}.w": array for i, array in enumerate(some)}
    (tmp_path / "m").write_bytes(library.save(there, {"a.w": "\u00fc.3.w"}))
    weights.load(tmp_path / "m", "m", client=client)
    weights.save("m", tmp_path / "saved", client=client)
    assert (tmp_path / "saved").read_bytes() == (tmp_path / "m").read_bytes()


def test_an_array_in_another_order_is_saved_as_it_reads(client, tmp_path):
    base = numpy.arange(24, dtype="<i4").reshape(4, 6)
    with client.empty((4, 6), "<i4", order="F") as a, client.empty(3, ">f4") as foreign:
        a.copy_from_host(base)
        client.publish_many("m/", {"a": a}, metadata=["of", "another", "program"])
        client.publish_many("f/", {"a": foreign})
        client.publish_many("n/", {"__metadata__": a}, metadata={"safetensors": {"a": 1}})
    weights.save("m", tmp_path / "m", client=client)
    assert models.read(tmp_path / "m") == ({"a": ("I32", (4, 6), base.tobytes())}, {})
    with weights.open("m", client=client) as w:
        assert (w.metadata, w.file_metadata) == (None, {})
    for name, error in ("f", TypeError), ("n", ValueError):
        with pytest.raises(error):
            weights.save(name, tmp_path / "not", client=client)
    assert os.listdir(tmp_path) == ["m"]


def test_a_matrix_and_its_transpose_are_two_tensors(client, tmp_path, monkeypatch):
    """Of the same bytes, and shape where it is square; the same matrix by two keys is one."""
    values = numpy.arange(9, dtype="<i4").reshape(3, 3)
    with client.arena() as arena, contextlib.ExitStack() as stack:
        x = arena.allocate(values.nbytes)
        fill(client, x, values.reshape(-1))
        for key, strides in ("a.w", None), ("b.w", (4, 12)), ("c.w", None), ("d", None):
            arena.publish(f"of/{key}", Foreign(x, (3, 3), "<i4", strides=strides))
        parts = {key: stack.enter_context(client.open(f"of/{key}")) for key in ("a.w", "b.w", "c.w", "d")}
        client.publish_many("m/", parts)
    weights.save("m", tmp_path / "m", client=client)
    a, b = (("I32", (3, 3), some.tobytes()) for some in (values, values.T))
    assert models.read(tmp_path / "m") == ({"a.w": a, "b.w": b, "d": a}, {"c.w": "a.w"}), "d: load() would not find it"
    monkeypatch.setitem(sys.modules, "torch", own_torch.OWN)
    with weights.open("m", client=client) as w:
        taken = w.torch()
    told = [own_torch.bytes_of(own_torch.OWN, taken[key]) for key in ("a.w", "b.w")]
    assert taken["a.w"] is taken["c.w"] and told == [values.tobytes(), values.T.tobytes()]


# --- a part of it, or converted ------------------------------------------------------------------


def of_numpy(word, shape, some):
    """As a NumPy array; what NumPy has not as raw memory."""
    return numpy.frombuffer(some, NUMPY.get(word, f"V{models.SIZES[word]}")).reshape(shape)


def test_shards_are_together_the_whole(client, tmp_path, monkeypatch):
    extents = st.integers(0, 3)

    @settings(max_examples=60)
    @given(tensors(ndim=(1, 3), extents=extents), tensors(ndim=(2, 4), extents=extents), tensors(),
           st.integers(1, 4), st.integers(1, 100))  # fmt: skip
    def check(row, column, whole, world, chunk):
        monkeypatch.setattr(_plan, "CHUNK", chunk)

        def wider(tensor, axis):
            word, shape, _ = tensor
            shape = (*shape[:axis], shape[axis] * world, *shape[axis + 1 :])
            return word, shape, some_bytes(word, shape, world)

        there = {"x.q_proj.weight": wider(row, 0), "x.o_proj.weight": wider(column, 1), "whole": whole}
        path = models.write(tmp_path / "m.safetensors", there)
        parts = {key: [] for key in there}
        for rank in range(world):
            weights.load(path, "m", shard=(rank, world), client=client)
            with weights.open("m", client=client) as w:
                for key, told in found(w).items():
                    parts[key].append(of_numpy(*told))
        for key, axis in ("x.q_proj.weight", 0), ("x.o_proj.weight", 1):
            assert len({part.shape for part in parts[key]}) == 1
            together = numpy.concatenate(parts[key], axis)
            assert (together.shape, together.tobytes()) == (there[key][1], there[key][2])
        assert {part.tobytes() for part in parts["whole"]} == {whole[2]}

    check()


def test_shards_that_do_not_divide_are_refused(client, tmp_path):
    path = models.write(tmp_path / "m", {"a.q_proj.weight": ("U8", (3, 2), bytes(6))})
    for shard in (0, 2), (2, 2), (-1, 2), (0, 0), (0, 4, [], ["*"]):
        with pytest.raises(caid.InvalidError):
            weights.load(path, "m", shard=shard, client=client, progress=pytest.fail)
    weights.load(path, "m", shard=(1, 2, [], ["a*"]), client=client)
    with weights.open("m", client=client) as w:
        assert w["a.q_proj.weight"].shape == (3, 1)


FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
if ml_dtypes is not None:
    FLOATS |= {word: name for word, name in NAMED.items() if word != "F8_E8M0"}


def test_floats_become_what_numpy_makes_of_them(client, tmp_path, monkeypatch):
    words = st.sampled_from(sorted(FLOATS) + ["I32", "C64", "BOOL"])

    @settings(max_examples=60)
    @given(st.dictionaries(st.sampled_from("abcd"), tensors(words), min_size=1), st.sampled_from(sorted(FLOATS)),
           st.integers(1, 100), st.booleans())  # fmt: skip
    def check(there, wanted, chunk, columns):
        monkeypatch.setattr(_plan, "CHUNK", chunk)
        shard = (0, 1, [], ["*"]) if columns else None
        path = models.write(tmp_path / "m", there)
        weights.load(path, "m", dtype=FLOATS[wanted], shard=shard, client=client)
        with weights.open("m", client=client) as w:
            for key, (word, shape, some) in there.items():
                if word in FLOATS:
                    with numpy.errstate(over="ignore", invalid="ignore"):
                        old = numpy.frombuffer(some, dtype_of(word))
                        word, some = wanted, old.astype(dtype_of(wanted)).tobytes()
                assert found(w)[key] == (word, shape, some)

    check()


def dtype_of(word):
    return numpy.dtype(FLOATS[word] if word in NUMPY else getattr(ml_dtypes, FLOATS[word]))


@pytest.mark.skipif(ml_dtypes is not None, reason="ml_dtypes is installed")
@pytest.mark.parametrize("word, dtype", [("BF16", "<f4"), ("F32", "bfloat16")])
def test_what_numpy_has_not_needs_ml_dtypes(client, tmp_path, word, dtype):
    path = models.write(tmp_path / "m", {"a": (word, (), some_bytes(word, (), 0))})
    with pytest.raises(ImportError, match="ml_dtypes"):
        weights.load(path, "m", dtype=dtype, client=client, progress=pytest.fail)


def test_only_what_matches_is_loaded(client, tmp_path):
    keys = ["[a]", "a", "a.b", "aa", "b", "b*"]
    path = models.write(tmp_path / "m", {key: ("U8", (), key[-1:].encode()) for key in keys})
    for only in "a", ["a?", "b"], "*b*", ["[a]", "[[]*"], "zz":
        expected = [key for key in keys if any(fnmatch.fnmatchcase(key, p) for p in ([only], only)[type(only) is list])]
        with contextlib.nullcontext() if expected else pytest.raises(caid.InvalidError, match="no tensor"):
            weights.load(path, "m", only=only, client=client)
            with weights.open("m", client=client) as w:
                assert list(w) == expected


def test_ties_that_are_asked_for(client, tmp_path):
    there = {"a": ("U8", (2,), b"ab"), "b": ("U8", (1,), b"c")}
    path = models.write(tmp_path / "m", there, {"c": "a"})
    for tie in {"a": "b"}, {"x": "y"}, {"x": "c"}, {"": "a"}, {"x\n": "a"}, {"__metadata__": "a"}:
        with pytest.raises(caid.InvalidError):
            weights.load(path, "m", tie=tie, client=client, progress=pytest.fail)
    weights.load(path, "m", tie={"x": "a"}, client=client)
    with weights.open("m", client=client) as w:
        assert list(w) == ["a", "b", "x"] and w["x"].ptr == w["a"].ptr
        assert w.file_metadata == {"c": "a"}
    models.write(path, {"a.w": there["a"]}, {"b.w": "a.w", "base": "a.w"})
    for tie, expected in (None, ["a.w", "b.w"]), ({}, ["a.w"]):
        weights.load(path, "m", tie=tie, client=client)
        with weights.open("m", client=client) as w:
            assert list(w) == expected and w.file_metadata == {"b.w": "a.w", "base": "a.w"}


# --- how far it is -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, (20 << 20) + 3])
def test_progress_grows_and_ends_with_all(client, tmp_path, n):
    """Of files that are larger than a chunk, too; nothing is kept of them here."""
    some = some_bytes("U8", (n,), n)
    path = models.write(tmp_path / "m", {"a": ("U8", (n,), some), "b": ("BF16", (0,), b"")})
    calls = []
    weights.load(path, "m", client=client, progress=lambda *call: calls.append(call))
    check_calls(calls, n)
    with weights.open("m", client=client) as w:
        assert raw(w["a"]) == some
        w["a"].close()
        weights.save(w, tmp_path / "saved", progress=lambda *call: calls.append(call))
    check_calls(calls, n)
    assert models.read(tmp_path / "saved")[0]["a"] == ("U8", (n,), some)
    weights.unload("m", client=client)
    wait_until(lambda: client.status().arrays == 0)
    with pytest.raises(caid.NotFoundError):
        weights.open("m", client=client)


def check_calls(calls, total):
    assert calls == sorted(calls) and calls[-1] == (total, total) and {all_of_it for _, all_of_it in calls} == {total}
    calls.clear()
