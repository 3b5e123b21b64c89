# SPDX-License-Identifier: Apache-2.0
"""The manifest of a set that an engine of vLLM has published: what comes out is what went in, and whatever another
process has written there is refused with a CorruptError, or fits the set."""

import collections
import json

import hypothesis
import pytest
from hypothesis import strategies as st

import caid
from caid.vllm import _manifest
from caid.vllm._manifest import MEMBER, Manifest, Tensor

Entry = collections.namedtuple("Entry", "typestr shape")
WHOLE = Manifest(
    {"model": "llama", "ranks": {"tp": [0, 2]}},
    {
        "embed.weight": Tensor("parameter", "bfloat16", (64, 32)),
        "attn.scale": Tensor("buffer", "<f4", ()),
        "rope.cos_sin": Tensor("transient", "<f4", (4, 2), on_host=True),
        "attn.packed": Tensor("parameter", "<f4", (0,)),
    },
    {"head.weight": "embed.weight"},
    ("attn.bias",),
    {"has_own_lm_head": True},
)
ENTRIES = {name: Entry(t.typestr, t.shape) for name, t in WHOLE.tensors.items() if 0 not in t.shape}
ENTRIES[MEMBER] = Entry("|u1", (1000,))


def test_what_comes_out_is_what_went_in():
    assert _manifest.decode(_manifest.encode(WHOLE), ENTRIES) == WHOLE
    assert _manifest.differences(WHOLE, WHOLE.facts) == []
    assert _manifest.differences(WHOLE, {"model": "other", "dtype": "half"}) == ["dtype", "model", "ranks"]


def told(**changed):
    whole = json.loads(_manifest.encode(WHOLE))
    tensors = {**whole["tensors"], **changed.pop("tensors", {})}
    return json.dumps({**whole, "tensors": {k: v for k, v in tensors.items() if v is not None}, **changed}).encode()


@pytest.mark.parametrize(
    "text, why",
    [
        (b"\x80\x04K\x01.", "no JSON"),  # a pickle
        (b"[" * 100_000, "no JSON"),
        (b"[]", "format"),
        (told(format=2), "format"),
        (told(tensors={"embed.weight": None}), "lacks 'embed.weight'"),
        (told(tensors={"other.weight": ["parameter", "<f4", [1], False]}), "the set lacks 'other.weight'"),
        (told(tensors={"embed.weight": ["parameter", "bfloat16", [64, 33], False]}), "in the set bfloat16 \\(64, 32\\)"),
        (told(tensors={"embed.weight": ["parameter", "<f4", [64, 32], False]}), "in the set bfloat16"),
        (told(tensors={"embed.weight": ["parameter", "bfloat16", [64, -32], False]}), "embed.weight"),
        (told(tensors={"embed.weight": ["parameter", "bfloat16", [64, True], False]}), "embed.weight"),
        (told(tensors={"embed.weight": ["os.system", "bfloat16", [64, 32], False]}), "os.system"),
        (told(tensors={MEMBER: ["buffer", "|u1", [1000], False]}), "no name of a tensor"),
        (told(tensors={"a\nb": ["parameter", "<f4", [0], False]}), "no name of a tensor"),
        (told(aliases={"head.weight": "nothing"}), "nothing"),
        (told(aliases={"attn.scale": "embed.weight"}), "another name"),
        (told(aliases={"head.weight": ["embed.weight"]}), "another name"),
        (told(absent=["embed.weight"]), "is there, and is not"),
        (told(absent="x"), "no list"),
        (told(flags={"__class__": True}), "__class__"),
        (told(flags={"has_own_lm_head": "yes"}), "has_own_lm_head"),
        (told(flags={"a.b": True}), "a.b"),
    ],
)
def test_what_does_not_fit_is_refused(text, why):
    with pytest.raises(caid.CorruptError, match=why):
        _manifest.decode(text, ENTRIES)


THINGS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.sampled_from(["parameter", "<f4", "embed.weight", "", "x"]),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.sampled_from([*WHOLE.tensors, "x.y"]), some, max_size=3),
    max_leaves=8,
)


@hypothesis.given(st.sampled_from([*Manifest._fields, "format"]), THINGS)
def test_whatever_is_written_there_fits_the_set_or_is_refused(field, thing):
    whole = json.loads(_manifest.encode(WHOLE))
    try:
        manifest = _manifest.decode(json.dumps({**whole, field: thing}).encode(), ENTRIES)
    except caid.CorruptError:
        return
    with_bytes = {name for name, tensor in manifest.tensors.items() if 0 not in tensor.shape}
    assert with_bytes == ENTRIES.keys() - {MEMBER}
    assert all(manifest.tensors[name][1:3] == ENTRIES[name] for name in with_bytes)
    assert {*manifest.aliases.values()} <= manifest.tensors.keys()
