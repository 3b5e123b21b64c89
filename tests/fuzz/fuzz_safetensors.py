# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files that are nearly right: FormatError is all that comes out of them, and what is
accepted is what the safetensors library, where it is installed, finds there, too.

usage: fuzz_safetensors.py [SEED], for CAID_FUZZ_SECONDS (3)
"""

import json
import os
import random
import struct
import sys
import time

from caid._base import _typestr
from caid.weights import FormatError, _safetensors

try:
    import safetensors
except ImportError:
    safetensors = None

SECONDS = float(os.environ.get("CAID_FUZZ_SECONDS", 3))
WORDS = [*_safetensors.TYPES, "f32", "", 1, None]
SIZES = {word: _typestr.of_dtype(told)[0].itemsize for word, told in _safetensors.TYPES.items()}
NUMBERS = [0, 1, 2, 3, 7, 8, -1, -0.0, 1.0, 1e3, 2**31, 2**32, 2**53 + 1, 2**62, 2**63, 2**64, 10**40, True, None]
TEXTS = ["", "a", "b", "a.weight", "__metadata__", "dtype", "\0", "\ud800", "\ud83d\ude00", "ä", "x" * 300]
VALUES = [*NUMBERS, *TEXTS, [], {}, [[]], {"a": {}}, float("nan"), float("inf")]
TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\ud800", b"null", b"true", b"NaN", b"-", b"1e2", b"\xff",
          b"\0", b" ", b"[" * 5000, b'{"a":' * 2000, b"9" * 5000, b"/**/", b"\xef\xbb\xbf"]  # fmt: skip


def in_file(word, shape):
    """Of what lies packed, where an array has one element the file has several."""
    lanes = _typestr.PACKED.get(_safetensors.TYPES[word], 1)
    return [*shape[:-1], shape[-1] * lanes] if lanes > 1 else shape


def whole(chance):
    """(header, bytes after it) as they should be."""
    told, at = {}, 0
    for key in chance.sample(["a", "b", "c.weight", "d\t", "ä"], chance.randrange(5)):
        word = chance.choice(list(SIZES))
        is_packed = _safetensors.TYPES[word] in _typestr.PACKED
        shape = [chance.choice([0, 1, 2, 3]) for _ in range(chance.randrange(is_packed, 4))]
        n = SIZES[word]
        for extent in shape:
            n *= extent
        told[key] = {"dtype": word, "shape": in_file(word, shape), "data_offsets": [at, at + n]}
        at += n
    if chance.random() < 0.3:
        told["__metadata__"] = {"format": "pt", "x": chance.choice(TEXTS)}
    return told, at


def spoilt(chance, value):
    """The value, of which something is another thing."""
    if chance.random() < 0.2 or not isinstance(value, (dict, list)) or not value:
        return chance.choice(VALUES)
    if isinstance(value, list):
        made = list(value)
        i = chance.randrange(len(made))
        how = chance.randrange(4)
        made[i : i + 1] = [[], [made[i]] * 2, [spoilt(chance, made[i])], [spoilt(chance, made[i])]][how]
        return made
    made = dict(value)
    key = chance.choice(list(made))
    how = chance.randrange(5)
    if how == 0:
        del made[key]
    elif how == 1:
        made[chance.choice(TEXTS)] = made[key]
    else:
        made[key] = chance.choice(WORDS) if key == "dtype" and how == 2 else spoilt(chance, made[key])
    return made


def case(chance):
    """(header, bytes after it)"""
    told, n_data = whole(chance)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        told = spoilt(chance, told)
    text = json.dumps(told, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(TOKENS) + text[at + chance.randrange(3) :]
    if chance.random() < 0.1:
        n_data = max(n_data + chance.choice([-1, 1, 100]), 0)
    return text + b" " * chance.choice([0, 0, 7]), n_data


def of_library(text, n_data):
    data = struct.pack("<Q", len(text)) + text + bytes(n_data)
    return {key: (told["dtype"], tuple(told["shape"]), len(told["data"])) for key, told in safetensors.deserialize(data)}


def check(text, n_data):
    """Whether it was accepted."""
    try:
        model = _safetensors.parse(text, n_data)
    except FormatError:
        return False
    words = {told: word for word, told in _safetensors.TYPES.items()}
    found = {}
    for t in model.tensors.values():
        word = words[t.element.type_name]
        found[t.key] = word, tuple(in_file(word, t.shape)), t.nbytes
    assert sum(nbytes for *_, nbytes in found.values()) == n_data
    for text_of in (*found, *model.metadata, *model.metadata.values()):
        text_of.encode()
    if safetensors is not None:
        assert of_library(text, n_data) == found
    return True


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else int.from_bytes(os.urandom(4), "little")
    end = time.monotonic() + SECONDS
    n = n_accepted = 0
    while time.monotonic() < end:
        text, n_data = case(random.Random(seed + n))
        try:
            n_accepted += check(text, n_data)
        except BaseException:
            print(f"seed {seed + n}: {text[:2000]!r}, {n_data} bytes", file=sys.stderr)
            raise
        n += 1
    print(f"{n} headers from seed {seed} on, {n_accepted} accepted")
    return 0 if n > n_accepted > n // 100 else 1


if __name__ == "__main__":
    sys.exit(main())
