# SPDX-License-Identifier: Apache-2.0
"""Files of weights that are not as they should be: what is said of each, and that nothing is left of it."""

import contextlib
import json
import os
import shutil
import struct

import models
import pytest
from conftest import n_blocks, n_leases
from hypothesis import given, strategies as st

import caid
from caid import weights
from caid._interfaces import _staging
from caid.weights import FormatError

U8 = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.fixture
def refused(client, tmp_path):
    """refused(model, error, match): load() raises that before it reads, and leaves nothing."""

    def check(model=tmp_path / "m.safetensors", error=FormatError, match=""):
        n_fds = len(os.listdir("/proc/self/fd"))
        with pytest.raises(error, match=match):
            weights.load(model, "m", client=client, progress=pytest.fail)
        assert len(os.listdir("/proc/self/fd")) == n_fds
        assert client.list() == [] and (n_leases(client), n_blocks(client), client.status().arrays) == (0, 0, 0)

    return check


def tensor(**changes):
    return {"a": {**U8, **changes}}


# Each has four bytes of data.
HEADERS = {
    "not UTF-8": b'{"a\xff":1}',
    "empty": b"",
    "no JSON": b"{",
    "a list": [],
    "space before": b" {}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "more than an object": json.dumps(tensor()).encode() + b"{}",
    "a tensor twice": b'{"a":%b,"a":%b}' % ((json.dumps(U8).encode(),) * 2),
    "a dtype twice": b'{"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}',
    "deep": b'{"a":' * 100_000,
    "deep lists": b'{"a":' + b"[" * 100_000,
    "half a surrogate pair": b'{"\\ud800":%b}' % json.dumps(U8).encode(),
    "NaN": tensor(shape=[float("nan")]),
    "Infinity": tensor(data_offsets=[0, float("inf")]),
    "a long number": b'{"a":{"dtype":"U8","shape":[%b],"data_offsets":[0,4]}}' % (b"9" * 10_000),
    "negative": tensor(shape=[-4]),
    "two negatives": tensor(shape=[-2, -2]),
    "negative offset": tensor(data_offsets=[-4, 0]),
    "minus nothing": b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[-0,4]}}',
    "a float": tensor(shape=[4.0]),
    "a bool": tensor(shape=[True, 4]),
    "text": tensor(shape="4"),
    "no list": tensor(shape=4),
    "huge": tensor(shape=[2**64]),
    "overflow": tensor(shape=[2**33, 2**31]),
    "overflow to nothing": tensor(shape=[2**62, 2**62, 4]),
    "overflow of nothing": tensor(shape=[2**62, 2**62, 0], data_offsets=[0, 0]),
    "33 dimensions": tensor(shape=[1] * 32 + [4]),
    "unknown dtype": tensor(dtype="F3"),
    "packed over rows": tensor(dtype="F4", shape=[8, 1]),
    "packed, and no rows": tensor(dtype="F4", shape=[], data_offsets=[0, 1]),
    "dtype in small letters": tensor(dtype="u8"),
    "dtype that is none": tensor(dtype=["U8"]),
    "dtype of another size": tensor(dtype="F32"),
    "no dtype": {"a": {"shape": [4], "data_offsets": [0, 4]}},
    "one more field": tensor(strides=[1]),
    "one offset": tensor(data_offsets=[4]),
    "three offsets": tensor(data_offsets=[0, 2, 4]),
    "end before begin": tensor(data_offsets=[4, 0]),
    "a hole at the begin": tensor(shape=[3], data_offsets=[1, 4]),
    "a hole": {"a": {**U8, "shape": [1], "data_offsets": [0, 1]}, "b": {**U8, "shape": [2], "data_offsets": [2, 4]}},
    "an overlap": {**tensor(shape=[3], data_offsets=[0, 3]), "b": {**U8, "shape": [2], "data_offsets": [2, 4]}},
    "twice the same": {"a": U8, "b": U8},
    "nothing within another": {**tensor(), "b": {**U8, "shape": [0], "data_offsets": [2, 2]}},
    "bytes after it": tensor(shape=[3], data_offsets=[0, 3]),
    "too few bytes": tensor(shape=[5], data_offsets=[0, 5]),
    "metadata that are no object": {**tensor(), "__metadata__": "pt"},
    "metadata that are no text": {**tensor(), "__metadata__": {"a": 1}},
    "metadata of half a pair": b'{"__metadata__":{"a":"\\udc00"},"a":%b}' % json.dumps(U8).encode(),
}  # fmt: skip


def test_a_header_is_not_believed(refused, tmp_path):
    for what, header in HEADERS.items():
        print(what)
        models.write_header(tmp_path / "m.safetensors", header, b"abcd")
        refused(match="m.safetensors")


def test_a_header_longer_than_its_file_or_the_limit(refused, tmp_path):
    for n, size in (11, 10), (100_000_001, 100_000_100), (2**63, 20), (2**64 - 1, 20):
        (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", n) + b"{}")
        os.truncate(tmp_path / "m.safetensors", size)
        refused(match=f"a header of {n} bytes")


def test_a_file_is_cut_off_anywhere(refused, client, tmp_path):
    whole = models.write(tmp_path / "whole", {"a": ("F16", (2, 3), bytes(12)), "b": ("U8", (), b"x")})
    text = whole.read_bytes()

    @given(st.integers(0, len(text) - 1))
    def check(n):
        (tmp_path / "m.safetensors").write_bytes(text[:n])
        refused()

    check()


OTHERS = {
    b"": "an empty file", b"version https://git-lfs.github.com/spec/v1\noid sha256:": "Git LFS", b"PK\x03\x04\x14\0\0\0\0\0": "a zip",
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.": "a pickle", b"\x1f\x8b\x08\0\0\0\0\0\0": "gzip", b"GGUF\3\0\0\0\0": "GGUF",
    b"\x93NUMPY\1\0v\0{": "NumPy", b"\n <!DOCTYPE html>\n<html>": "a web page", b'{"weight_map": {"a": "b"}}': "JSON text",
    b"\x89HDF\r\n\x1a\n\0": "HDF5", b"\x28\xb5\x2f\xfd\0\0\0\0\0": "zstd",
}  # fmt: skip


def test_a_file_that_is_none_is_named(refused, tmp_path):
    for head, what in OTHERS.items():
        for tail in 0, 1 << 20:  # which a header of so many bytes would fit in
            (tmp_path / "m.safetensors").write_bytes(head + bytes(tail) * (head != b""))
            refused(match=f"m.safetensors: .*{what}")
        if not head.startswith(b"{"):
            (tmp_path / "n.safetensors.index.json").write_bytes(head)
            refused(tmp_path / "n.safetensors.index.json", match=f"no index.*{what}")


def test_what_is_no_file(refused, tmp_path):
    refused(tmp_path / "none", FileNotFoundError)
    refused(tmp_path, match="no [*].safetensors")
    os.mkfifo(tmp_path / "m.safetensors")
    for model in tmp_path, tmp_path / "m.safetensors":
        refused(model, match="not a regular file")
    refused("/dev/zero", match="not a regular file")
    refused([], caid.InvalidError, "no tensors")
    (tmp_path / "m.safetensors").unlink()
    (tmp_path / "m.safetensors").mkdir()
    refused(tmp_path, match="not a regular file")
    (tmp_path / "m.safetensors").rmdir()
    (tmp_path / "m.safetensors").symlink_to("m.safetensors")
    refused(tmp_path, OSError)


def test_a_tensor_that_two_files_have(refused, tmp_path):
    files = [models.write(tmp_path / f"{i}.safetensors", {"a": ("U8", (), b"x")}) for i in range(2)]
    for model in files, tmp_path, files[:1] * 2:
        refused(model, match="tensor 'a' is in .*, too")


# --- an index ------------------------------------------------------------------------------------

ONE, TWO = "1.safetensors", "2.safetensors"
INDEXES = {
    "no JSON": b"{",
    "not UTF-8": b"\xff",
    "deep": b"[" * 100_000,
    "a list": [],
    "no map": {"metadata": {}},
    "a map that is none": {"weight_map": ["a"]},
    "no text": {"weight_map": {"a": 1}},
    "a file twice": b'{"weight_map":{"a":"1.safetensors","a":"1.safetensors"}}',
    "a tensor that is in another file": {"weight_map": {"a": ONE, "d": TWO, "b": TWO}},
    "a tensor that is missing": {"weight_map": {"a": ONE, "d": ONE, "c": ONE}},
    "a tensor that it has not": {"weight_map": {"a": ONE}},
    "another name of a file": {"weight_map": {"a": ONE, "d": f"./{ONE}"}},
    "an absolute path": {"weight_map": dict.fromkeys("ad", f"FOLDER/{ONE}")},
    "a path out of it": {"weight_map": dict.fromkeys("ad", f"../NAME/{ONE}")},
    "a way out of it and back": {"weight_map": dict.fromkeys("ad", f"sub/../{ONE}")},
    "a slash too many": {"weight_map": dict.fromkeys("ad", f"sub//{ONE}")},
    "a NUL": {"weight_map": dict.fromkeys("ad", f"{ONE}\0")},
    "its folder": {"weight_map": {"a": "."}},
    "a folder": {"weight_map": {"a": "sub"}},
    "itself": {"weight_map": {"a": "m.safetensors.index.json"}},
    "a FIFO": {"weight_map": {"a": "fifo"}},
}


def test_an_index_that_does_not_fit_its_files(refused, tmp_path):
    models.write(tmp_path / "1.safetensors", {"a": ("U8", (), b"x"), "d": ("U8", (), b"x")})
    models.write(tmp_path / "2.safetensors", {"b": ("U8", (), b"x")})
    (tmp_path / "sub").mkdir()
    shutil.copy(tmp_path / ONE, tmp_path / "sub")
    os.mkfifo(tmp_path / "fifo")
    index = tmp_path / "m.safetensors.index.json"
    for what, told in INDEXES.items():
        print(what)
        if not isinstance(told, bytes):
            told = json.dumps(told).replace("FOLDER", str(tmp_path)).replace("NAME", tmp_path.name).encode()
        index.write_bytes(told)
        for model in tmp_path, index:
            refused(model)
    (tmp_path / "n.safetensors.index.json").write_text("{}")
    refused(tmp_path, match="2 indexes")


def test_an_index_that_is_too_large_or_of_no_file(refused, tmp_path):
    index = tmp_path / "m.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "none.safetensors"}}')
    refused(tmp_path, FileNotFoundError)
    os.truncate(index, 100_000_001)
    refused(tmp_path, match="100000001 bytes")


# --- names, and files that change ----------------------------------------------------------------


def test_a_name_that_no_model_or_array_can_have(refused, client, tmp_path):
    path = models.write(tmp_path / "m.safetensors", {"a": ("U8", (), b"x")})
    for name in "m\n", "m\x7f", "m\x85", "m" * 255, "m@7", "m@", "\ud800":
        with pytest.raises(caid.InvalidNameError):
            weights.load(path, name, client=client, progress=pytest.fail)
    for key in "", "\n", "a\0", "\x9f", "ä" * 127:
        models.write(path, {"a": ("U8", (), b"x"), key: ("U8", (), b"x")})
        refused(error=caid.InvalidNameError, match="tensor ")


@pytest.fixture
def meanwhile(monkeypatch):
    """meanwhile(change): it is called when all files are open, and before a tensor is read."""
    run = _staging.run

    def set_change(change):
        monkeypatch.setattr(_staging, "run", lambda *args: (change(), run(*args)))

    return set_change


def test_a_file_that_becomes_shorter(client, tmp_path, meanwhile):
    """After its header was read, by any number of bytes: an error, no signal."""
    path = models.write(tmp_path / "m", {"a": ("U8", (100,), bytes(100)), "b": ("F32", (25,), bytes(100))})
    whole = path.read_bytes()

    @given(st.integers(0, len(whole) - 1), st.sampled_from([None, "<f2"]))
    def check(n, dtype):
        path.write_bytes(whole)
        meanwhile(lambda: os.truncate(path, n))
        with pytest.raises(OSError, match="shorter"):
            weights.load(path, "m", dtype=dtype, client=client)
        assert (n_leases(client), n_blocks(client)) == (0, 0)

    check()


def test_a_file_that_cannot_be_read(client, tmp_path, meanwhile):
    path = models.write(tmp_path / "m", {"a": ("F32", (100,), bytes(400))})

    def make_unreadable():
        only_path = os.open(path, os.O_PATH)
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(FileNotFoundError):
                if fd != only_path and os.readlink(f"/proc/self/fd/{fd}") == str(path):
                    os.dup2(only_path, fd, inheritable=False)
        os.close(only_path)

    meanwhile(make_unreadable)
    for dtype in None, "<f8":
        with pytest.raises(OSError, match="Bad file"):
            weights.load(path, "m", dtype=dtype, client=client)
        assert (n_leases(client), n_blocks(client)) == (0, 0)
