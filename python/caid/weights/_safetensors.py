# SPDX-License-Identifier: Apache-2.0
"""The safetensors format: reads a file's header, and checks all that it says.

A file is 8 bytes (the header's length, little-endian), the header (JSON: each tensor's dtype, shape and
offsets), and the tensors' bytes, without holes. Source: the format's page in the safetensors project;
Hugging Face's layout of several files: an index, ``model.safetensors.index.json``.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from typing import NamedTuple

from .._base import _typestr

HEADER_MAX = 100_000_000  # bytes, as the format has it
_DIMS_MAX = 32  # as a caid array
_SIZE_MAX = 1 << 62  # bytes of a tensor
_INDEX = ".safetensors.index.json"
METADATA = "__metadata__"  # the only key that is not a tensor's

# The format's types, and caid's names of them, in the order of the format's library.
TYPES = {
    "BOOL": "|b1",
    "F4": "float4_e2m1fn_x2",
    "F6_E2M3": "float6_e2m3fn_x4",
    "F6_E3M2": "float6_e3m2fn_x4",
    "U8": "|u1",
    "I8": "|i1",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "BF16": "bfloat16",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "C64": "<c8",
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
}
_WORDS = {name: word for word, name in TYPES.items()}
_ORDER = {word: i for i, word in enumerate(TYPES)}


_HEAD = 64  # bytes by which other formats are recognised
_OTHERS = {
    b"version https://git-lfs": "a pointer of Git LFS to a file that is still to be fetched (git lfs pull)",
    b"PK\x03\x04": "a zip file, as PyTorch's .bin, .pt and .pth are",
    **{b"\x80" + bytes([n]): "a pickle, as PyTorch's old .bin, .pt and .pth are" for n in range(2, 6)},
    b"\x93NUMPY": "a file of NumPy's",
    b"\x89HDF\r\n": "an HDF5 file, as Keras' .h5 are",
    b"GGUF": "a GGUF file, as of llama.cpp",
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
}


class FormatError(ValueError):
    """A file is no safetensors file, or not a whole one; or an index does not fit its files."""


class Tensor(NamedTuple):
    """A tensor in a file: `nbytes` from `offset` on, counted from the start of the file."""

    path: str
    key: str
    element: _typestr.Element
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Model(NamedTuple):
    """What files contain: tensors by key, the files' metadata, and the files by their paths."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    files: dict[str, tuple]


# --- one file -------------------------------------------------------------------------------


def open_file(path):
    """Opens a file to read. Only a regular file is taken: others may block, or never end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FormatError(f"{path}: not a regular file")
        return fd
    except BaseException:
        os.close(fd)
        raise


def _which(fd):
    """What identifies a file and its contents to the system."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_file(files, fd, path):
    """Raises FormatError if the file is not the one whose header was read."""
    if _which(fd) != files[path]:
        raise FormatError(f"{path}: it has changed since its header was read")


def read_file(path) -> Model:
    """Raises FormatError, OSError."""
    fd = open_file(path)
    try:
        which = _which(fd)
        size = os.fstat(fd).st_size
        head = _read(fd, path, min(size, _HEAD), 0)
        what = _what_it_is(head) if head[8:9] != b"{" else None
        if what:
            raise FormatError(f"{path}: {what}, not a safetensors file")
        if size < 8:
            raise FormatError(f"{path}: {size} bytes, too short for a safetensors file")
        (n,) = struct.unpack_from("<Q", head)
        if n > HEADER_MAX or n > size - 8:
            most = min(HEADER_MAX, size - 8)
            raise FormatError(f"{path}: a header of {n} bytes, where {most} are allowed")
        model = parse(_read(fd, path, n, 8), size - 8 - n, path)
        return model._replace(files={path: which})
    finally:
        os.close(fd)


def _what_it_is(head):
    """Which other format a file is of, by its first bytes, if that is known."""
    if not head:
        return "an empty file"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "a web page"
    if text.startswith(b"{"):
        return f"JSON text (an index is called *{_INDEX})"
    return next((what for start, what in _OTHERS.items() if head.startswith(start)), None)


def _read(fd, path, n, offset):
    parts = []
    while n > 0:
        part = os.pread(fd, n, offset)
        if not part:
            raise FormatError(f"{path}: it ends before its header does")
        parts.append(part)
        n -= len(part)
        offset += len(part)
    return b"".join(parts)


def parse(header: bytes, n_data: int, path: str = "header") -> Model:
    """The model that a header describes, in a file with so many bytes after the header. Raises
    FormatError."""
    try:
        fields = json.loads(
            header.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_natural,
        )
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path}: the header is not its JSON: {e}") from None
    if not isinstance(fields, dict) or header[:1] != b"{":
        raise FormatError(f"{path}: the header is not an object")
    metadata = fields.pop(METADATA, None)
    if metadata is not None and not _is_text(metadata):
        raise FormatError(f"{path}: __metadata__ does not map text to text")
    if not _is_utf8([*fields, *(metadata or {}), *(metadata or {}).values()]):
        raise FormatError(f"{path}: a key, or text of __metadata__, has half a surrogate pair")
    start = 8 + len(header)
    tensors = {key: _tensor(path, key, value, start) for key, value in fields.items()}
    _check_holes(path, tensors.values(), start, n_data)
    return Model(tensors, metadata or {}, {})


def _unique(pairs):
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    return made


def _no_constant(word):
    raise ValueError(f"{word} is no number")


def _natural(word):
    if word.startswith("-"):  # -0 is a float to the format's own library
        raise ValueError(f"{word} is no size")
    return int(word)


def _is_text(metadata):
    return isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())


def _is_utf8(texts):
    try:
        return all(text.encode() or True for text in texts)
    except UnicodeEncodeError:
        return False


def _is_sizes(x):
    return isinstance(x, list) and all(type(n) is int and 0 <= n <= _SIZE_MAX for n in x)


def _tensor(path, key, value, start):
    what = f"{path}: tensor {key!r}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{what}: not just a dtype, a shape and data_offsets")
    word, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(word, str) or word not in TYPES:
        raise FormatError(f"{what}: caid has no type for {word!r}")
    if not _is_sizes(shape) or len(shape) > _DIMS_MAX:
        raise FormatError(f"{what}: its shape is not one of 0 to {_DIMS_MAX} sizes")
    if not _is_sizes(offsets) or len(offsets) != 2:
        raise FormatError(f"{what}: data_offsets are not two")
    element, _ = _typestr.of_dtype(TYPES[word])
    lanes = lanes_of(element)
    if lanes > 1 and (not shape or shape[-1] % lanes):
        raise FormatError(f"{what}: of {word}, which lies packed, rows have to be multiples of {lanes}")
    shape = [*shape[:-1], shape[-1] // lanes] if shape else []
    begin, end = offsets
    nbytes = math.prod(shape) * element.itemsize
    if end - begin != nbytes:
        raise FormatError(f"{what}: {end - begin} bytes, where its type and shape take {nbytes}")
    if math.prod(n or 1 for n in shape) * element.itemsize > _SIZE_MAX:  # also of no elements
        raise FormatError(f"{what}: its shape is too large")
    return Tensor(path, key, element, tuple(shape), start + begin, nbytes)


def lanes_of(element):
    """How many of the format's elements are one of an array, in the last dimension."""
    return _typestr.PACKED.get(element.name, 1)


def _check_holes(path, tensors, start, n_data):
    at = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != at:
            how = "overlaps another one" if tensor.offset < at else "has a hole before it"
            raise FormatError(f"{path}: tensor {tensor.key!r} {how}")
        at += tensor.nbytes
    if at != start + n_data:
        raise FormatError(f"{path}: {n_data} bytes of tensors, where the header has {at - start}")


# --- a model --------------------------------------------------------------------------------


def read_model(paths) -> Model:
    """The model in files, folders and indexes, which have no key twice. Raises FormatError, OSError."""
    files = []
    for path in map(os.fspath, paths):
        files += _files_of_folder(path) if os.path.isdir(path) else [path]
    return _joined(
        (path, _read_index(path) if path.endswith(_INDEX) else read_file(path)) for path in files
    )


def _joined(models):
    tensors, metadata, files = {}, {}, {}
    for path, found in models:
        twice = next((key for key in found.tensors if key in tensors), None)
        if twice is not None:
            raise FormatError(f"{path}: tensor {twice!r} is in {tensors[twice].path}, too")
        tensors.update(found.tensors)
        metadata.update(found.metadata)
        files.update(found.files)
    return Model(tensors, metadata, files)


def _files_of_folder(folder):
    """Reads a folder: its index or else its files, as Hugging Face's libraries do."""
    names = sorted(os.listdir(folder))
    found = [name for name in names if name.endswith(_INDEX)]
    if len(found) > 1:
        raise FormatError(f"{folder}: {len(found)} indexes ({', '.join(found)}): name one of them")
    found = found or [name for name in names if name.endswith(".safetensors")]
    if not found:
        raise FormatError(f"{folder}: no *.safetensors and no *{_INDEX} in it")
    return [os.path.join(folder, name) for name in found]


def _read_index(path):
    """Reads an index: its weight_map has to say exactly which file has which tensor."""
    fd = open_file(path)
    try:
        size = os.fstat(fd).st_size
        if size > HEADER_MAX:
            raise FormatError(f"{path}: {size} bytes, where {HEADER_MAX} are allowed")
        text = _read(fd, path, size, 0)
        index = json.loads(text, object_pairs_hook=_unique)
        where = index["weight_map"]
    except FormatError:
        raise
    except (ValueError, RecursionError, TypeError, KeyError) as e:
        why = None if text.startswith(b"{") else _what_it_is(text[:_HEAD])
        raise FormatError(f"{path}: no index of safetensors files: {why or e}") from None
    finally:
        os.close(fd)
    if not _is_text(where):
        raise FormatError(f"{path}: its weight_map does not map text to text")
    files = {name: os.path.join(os.path.dirname(path), _inside(path, name)) for name in where.values()}
    model = _joined((path, read_file(path)) for _, path in sorted(files.items()))
    for key in where.keys() | model.tensors.keys():
        there = model.tensors.get(key)
        if there is None or key not in where or there.path != files[where[key]]:
            raise FormatError(f"{path}: it and its files do not agree on tensor {key!r}")
    return model


def _inside(path, name):
    parts = name.split("/")
    if os.path.isabs(name) or ".." in parts or "" in parts or "\0" in name:
        raise FormatError(f"{path}: {name!r} is not a file of its folder")
    return name


# --- writing --------------------------------------------------------------------------------


def is_note(key: str, of: str) -> bool:
    """Whether a line of __metadata__ looks like the note that safetensors.torch.save_model() leaves for a
    parameter that it has left out: two parameters' names. Other text may happen to be a tensor's name."""
    parts = key.rpartition("."), of.rpartition(".")
    return all(module for module, _, _ in parts) and parts[0][2] == parts[1][2]


def _word(key, array):
    name = array._layout.element.type_name
    if name not in _WORDS:
        raise TypeError(f"{key!r}: safetensors has no type for {name!r}")
    return _WORDS[name]


def header_of(arrays, metadata) -> tuple[bytes, dict[str, int]]:
    """The header of a file of C-ordered arrays, and the offset of each array in the file, by key. The order is
    that of the format's own library: the largest elements first, so that all arrays are aligned.

    Raises
    ------
    TypeError
        The format lacks the type of an array.
    ValueError
        The format has no array of that key.
    """
    if METADATA in arrays:
        raise ValueError(f"{METADATA!r}: safetensors has no tensor of that name")
    header, offsets, at = {}, {}, 0
    if metadata:
        header[METADATA] = dict(metadata)
    words = {key: _word(key, array) for key, array in arrays.items()}
    for key in sorted(arrays, key=lambda key: (-_ORDER[words[key]], key)):
        array, word = arrays[key], words[key]
        end = at + array.nbytes
        shape, lanes = list(array.shape), lanes_of(array._layout.element)
        if lanes > 1:
            if not shape:
                raise TypeError(f"{key!r}: {lanes} elements that lie packed need a dimension")
            shape[-1] *= lanes
        header[key] = {"dtype": word, "shape": shape, "data_offsets": [at, end]}
        offsets[key], at = at, end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_MAX:
        raise ValueError(f"a header of {len(text)} bytes, where {HEADER_MAX} are allowed")
    start = 8 + len(text)
    return struct.pack("<Q", len(text)) + text, {key: start + n for key, n in offsets.items()}
