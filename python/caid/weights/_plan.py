# SPDX-License-Identifier: Apache-2.0
"""The plan of a load, made before a byte is read: which tensors, in which types, at which places.

All arrays of a model lie in one piece of memory, so that a process that opens it maps one block.
"""

from __future__ import annotations

import fnmatch
import math
import re
from typing import Any, Iterator, NamedTuple

from .._base import _geometry, _typestr
from .._base._errors import InvalidNameError, invalid
from ._safetensors import METADATA, Model, Tensor, is_note

CHUNK = 4 << 20  # bytes that are read, and copied, at a time
_ALIGNED = 512  # of an array's first byte, as of memory of cuMemAlloc()
_NAME_MAX = 255  # bytes
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

# Names in Hugging Face's models. A layer's weight is (out, in): layers whose outputs are divided have a part of
# the rows, and layers that sum over divided inputs a part of the columns.
ROWS = tuple(
    f"*{name}.{part}"
    for name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj")
    for part in ("weight", "bias")
) + ("*embed_tokens.weight", "*lm_head.weight")
COLUMNS = ("*o_proj.weight", "*down_proj.weight")


class Part(NamedTuple):
    """A tensor's array: its shape and type, and its place, `at` bytes into the memory."""

    tensor: Tensor
    element: _typestr.Element
    shape: tuple[int, ...]
    at: int
    rows: slice  # rows of the tensor as a matrix that are read
    columns: slice | None  # columns of these that are kept; None: all

    @property
    def is_same(self):
        """Whether its bytes are as in the file."""
        return self.columns is None and self.element == self.tensor.element


class Plan(NamedTuple):
    parts: dict[str, Part]
    tied: dict[str, str]  # other keys of the same array
    metadata: dict[str, str]
    nbytes: int  # of the memory
    n_read: int  # bytes of files
    files: dict[str, tuple]  # the model's


class Shard(NamedTuple):
    """One of `world` equal parts of a model: see :func:`caid.weights.load`."""

    rank: int
    world: int
    rows: tuple[str, ...] = ROWS
    columns: tuple[str, ...] = COLUMNS


def make(model: Model, prefix: str, dtype: Any, only: Any, shard: Any, tie: Any) -> Plan:
    """Makes a Plan. InvalidError, InvalidNameError: the request does not fit the model."""
    wanted = None if dtype is None else float_of(dtype)
    shard = None if shard is None else shard_of(*shard)
    keys = _chosen(model.tensors, [only] if isinstance(only, str) else only)
    parts, at = {}, 0
    for key in keys:
        part = _part(model.tensors[key], at, wanted, shard)
        parts[key] = part
        at = aligned(at + _nbytes(part))
    tied = _tied(model, parts, tie)
    for key in (*parts, *tied):
        check_name(prefix, key)
    n_read = sum(_row_bytes(part) * (part.rows.stop - part.rows.start) for part in parts.values())
    return Plan(parts, tied, model.metadata, at, n_read, model.files)


def _chosen(tensors, patterns):
    if patterns is None:
        chosen = list(tensors)
    else:
        match = re.compile("|".join(map(fnmatch.translate, patterns))).match
        chosen = [key for key in tensors if match(key)]
    if not chosen:
        raise invalid("no tensors" if patterns is None else f"no tensor matches {list(patterns)}")
    # In the order of the files, so that neighbours are read, and copied, together.
    return sorted(chosen, key=lambda key: (tensors[key].path, tensors[key].offset))


def aligned(at: int) -> int:
    """The next place where an array may begin."""
    return -(-at // _ALIGNED) * _ALIGNED


def check_name(prefix: str, key: str) -> None:
    """Checks a name before the load, with the daemon's errors."""
    name = prefix + key
    try:
        n = len(name.encode())
    except UnicodeEncodeError:
        n = 0
    if not key or not 0 < n <= _NAME_MAX or _CONTROL.search(name):
        raise InvalidNameError(
            22,
            f"tensor {key!r}: {prefix!r} and it have to be a name of 1 to {_NAME_MAX} bytes of UTF-8 "
            "without control characters",
        )


def float_of(dtype) -> _typestr.Element:
    """The type to which floats are converted, checked."""
    element, inner = _typestr.of_dtype(dtype)
    if inner or not _is_float(element):
        raise invalid(f"dtype {dtype!r}: weights are converted to floats, bfloat16 or float8s")
    return element


def _check_convertible(element):
    """Checks before the load that NumPy can convert a type: without ml_dtypes it takes some for raw memory."""
    if element.name and _typestr.to_numpy(element).name != element.name:
        raise ImportError(f"to convert {element.name}, ml_dtypes is needed: pip install 'caid[weights]'")


def _is_float(element):
    """Whether a type is a float that can be converted. Packed types cannot."""
    if element.name in _typestr.PACKED:
        return False
    return element.type_name[1:2] == "f" or element.type_name.startswith(("float", "bfloat"))


def _tied(model, parts, tie):
    """The further keys: those given, or those that save_model() noted in the files."""
    tied = {
        key: of
        for key, of in model.metadata.items()
        if key not in model.tensors and of in parts and is_note(key, of) and tie is None
    }
    for key, of in dict(tie or {}).items():
        if of not in parts or key in parts or key == METADATA:
            raise invalid(f"tie {key!r} to {of!r}: the first must not be loaded, and the second must")
        tied[key] = of
    return tied


# --- shards ---------------------------------------------------------------------------------


def shard_of(rank, world, rows=ROWS, columns=COLUMNS) -> Shard:
    """A Shard, checked."""
    if not 0 <= rank < world:
        raise invalid(f"shard {rank} of {world}: 0 to one less than there are")
    return Shard(rank, world, tuple(rows), tuple(columns))


def _range(part, n, shard, key):
    if n % shard.world:
        raise invalid(f"tensor {key!r}: {n} {part} are not divisible by {shard.world}")
    each = n // shard.world
    return slice(each * shard.rank, each * (shard.rank + 1))


def _matches(key, patterns):
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def cut_of(key: str, shape: tuple, shard: Shard | None) -> tuple[int, slice] | None:
    """(axis, range) of the part of a tensor that a shard has; None: all of it."""
    if shard and shape and _matches(key, shard.rows):
        return 0, _range("rows", shape[0], shard, key)
    if shard and len(shape) > 1 and _matches(key, shard.columns):
        return 1, _range("columns", shape[1], shard, key)
    return None


def _part(tensor, at, wanted, shard):
    element = wanted if wanted and _is_float(tensor.element) else tensor.element
    if element != tensor.element:
        _check_convertible(tensor.element)
        _check_convertible(element)
    shape = tensor.shape
    rows, columns = slice(0, shape[0] if shape else 1), None
    axis, some = cut_of(tensor.key, shape, shard) or (None, None)
    if axis is not None:
        shape = (*shape[:axis], some.stop - some.start, *shape[axis + 1 :])
    if axis == 0:
        rows = some
    elif axis == 1:
        inner = math.prod(shape[2:])
        columns = slice(some.start * inner, some.stop * inner)
    return Part(tensor, element, shape, at, rows, columns)


def _nbytes(part):
    return _geometry.size(part.shape) * part.element.itemsize


def _row_bytes(part):
    return part.tensor.nbytes // (part.tensor.shape[0] or 1) if part.tensor.shape else part.tensor.nbytes


# --- what is read ---------------------------------------------------------------------------


class Stretch(NamedTuple):
    """A range of a file's bytes, which goes to the memory at `at`. `part` is set if they are converted."""

    path: str
    offset: int
    nbytes: int
    at: int
    part: Part | None = None


def stretches(plan: Plan) -> Iterator[Stretch]:
    """The stretches that are copied unchanged. Neighbours on both sides are one stretch."""
    last = None
    for part in plan.parts.values():
        if not part.is_same or not _nbytes(part):
            continue
        start, nbytes = _rows(part)
        if last and (last.path, last.offset + last.nbytes, last.at + last.nbytes) == (
            part.tensor.path, start, part.at
        ):
            last = last._replace(nbytes=last.nbytes + nbytes)
            continue
        if last:
            yield last
        last = Stretch(part.tensor.path, start, nbytes, part.at)
    if last:
        yield last


def converted(plan: Plan) -> Iterator[Stretch]:
    """The stretches that are converted: each has at most CHUNK bytes before and after, or one row if a row is
    longer."""
    for part in plan.parts.values():
        if part.is_same or not _nbytes(part):
            continue
        start, nbytes = _rows(part)
        each, width = _row_bytes(part), 1
        if part.columns is None:  # a row is an element
            each = part.tensor.element.itemsize
        else:
            width = part.columns.stop - part.columns.start
        after = width * part.element.itemsize
        step = max(CHUNK // max(each, after), 1) * each
        for done in range(0, nbytes, step):
            n = min(step, nbytes - done)
            yield Stretch(part.tensor.path, start + done, n, part.at + done // each * after, part)


def _rows(part):
    """Where the rows to be read begin in the file, and their bytes."""
    each = _row_bytes(part)
    return part.tensor.offset + each * part.rows.start, each * (part.rows.stop - part.rows.start)
