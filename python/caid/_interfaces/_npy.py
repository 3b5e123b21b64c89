# SPDX-License-Identifier: Apache-2.0
"""Arrays as .npy files, which ``caidctl get`` writes and ``caidctl put`` reads."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import struct
import sys
import types

import numpy

from . import _staging, _target


def write(array, path: str | None) -> None:
    """Writes the elements of an array, in C order, to a file, which appears when it is whole; without a path to
    standard output."""
    header = _header(array)
    if path is None:
        _staging.write_in_order(sys.stdout.fileno(), header, _staging.pieces(array))
        return
    with _target.opened(path, len(header) + array.nbytes) as fd:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            _staging.write_in_order(fd, header, _staging.pieces(array))
            return
        offset = len(header)
        for piece in _staging.pieces(array):
            _staging.write(fd, piece, offset)
            offset += piece.nbytes
        _staging.write(fd, header, 0)


def read(path: str | None) -> numpy.ndarray:
    """What a file holds; without a path standard input. Raises ValueError where it is no .npy file, or one of Python
    objects."""
    with contextlib.nullcontext(sys.stdin.buffer) if path is None else open(path, "rb") as file:
        reader = types.SimpleNamespace(read=file.read)  # of a file NumPy would ask where it is: a pipe does not know
        return numpy.lib.format.read_array(reader, allow_pickle=False)


def _header(array):
    """Types that NumPy has no word for are raw memory there, as ml_dtypes has them written."""
    is_record = array.dtype.names is not None
    descr = numpy.lib.format.dtype_to_descr(array.dtype) if is_record else array.typestr
    fields = {"descr": descr, "fortran_order": False, "shape": array.shape}
    out = io.BytesIO()
    try:
        numpy.lib.format.write_array_header_1_0(out, fields)
    except UnicodeEncodeError:  # names of fields that are not Latin-1: version 3.0, for which NumPy has no function
        text = repr(fields).encode()
        text += b" " * (-(len(text) + 13) % 64) + b"\n"
        return numpy.lib.format.magic(3, 0) + struct.pack("<I", len(text)) + text
    return out.getvalue()
