# SPDX-License-Identifier: Apache-2.0
"""What other libraries see of a version: views of few blocks, which are what the arrays are, by value, shape, strides
and type, and keep the memory as they would."""

import contextlib
import gc
import json
import sys
import types

import models
import numpy
import pytest
from conftest import Held, n_leases, softcuda, wait_until
from engines import driver_calls
from hypothesis import given, settings, strategies as st

import own_torch
from own_torch import OWN, bytes_of, element_of, name_of

import caid
from caid import weights
from caid.weights import _weights


@pytest.fixture(params=["of its own", "PyTorch"])
def torch(request, monkeypatch, soft):
    if request.param == "PyTorch":
        return pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setitem(sys.modules, "torch", OWN)
    return OWN


TYPES = ["uint8", "bool", "int16", "int32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn",
         "float8_e8m0fnu", "float4_e2m1fn_x2"]  # fmt: skip
HOW = ["whole", "alone", "every other", "transposed", "rows", "same"]


@st.composite
def members(draw):
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    return shape, draw(st.sampled_from(TYPES)), draw(st.sampled_from(HOW)), draw(st.integers(0, 255))


def made(client, stack, member, former):
    shape, name, how, seed = member
    if how == "same" and former:
        return former[seed % len(former)]
    n = numpy.random.default_rng(seed)
    if how == "every other":
        shape = tuple(2 * extent for extent in shape)
    array = stack.enter_context(client.empty(shape, element_of(name), exclusive=how == "alone"))
    if array.nbytes:
        raw = n.integers(0, 2 if name == "bool" else 256, array.nbytes, "u1")
        array.view("|u1").copy_from_host(raw.reshape(array.view("|u1").shape)) if array.ndim else array.reshape(
            1
        ).view("|u1").copy_from_host(raw)
    if how == "every other":
        array = array[tuple(slice(None, None, 2) for _ in shape)]
    elif how == "transposed":
        array = array.T
    elif how == "rows" and shape and shape[0] > 1:
        array = array[1:]
    return stack.enter_context(array)


def check_same(torch, tensors, w):
    assert list(tensors) == list(w)
    for key, array in w.items():
        tensor = tensors[key]
        assert torch is OWN or not tensor._is_view()  # to write it in place voids nothing of another one for autograd
        assert name_of(torch, tensor.dtype) == (
            array._layout.element.name or numpy.dtype(array.typestr).name
        )
        assert tuple(tensor.shape) == array.shape
        if array.size:
            steps = tuple(step // array.itemsize for step in array.strides)
            assert [s for n, s in zip(array.shape, tensor.stride()) if n > 1] == [
                s for n, s in zip(array.shape, steps) if n > 1
            ]
            assert tensor.data_ptr() == array.host_ptr
            assert bytes_of(torch, tensor) == numpy.ascontiguousarray(array.copy_to_host()).tobytes()
        array.close()


def test_tensors_are_what_the_arrays_are_and_keep_the_memory(client, torch):
    @settings(max_examples=80, deadline=None)
    @given(st.lists(members(), min_size=1, max_size=6), st.booleans())
    def check(drawn, readonly):
        with contextlib.ExitStack() as stack:
            arrays = []
            for member in drawn:
                arrays.append(made(client, stack, member, arrays))
            there = {f"k{i}": array for i, array in enumerate(arrays)}
            client.publish_many("m/", there)
            same = {(a, b) for a in there for b in there if there[a] is there[b] and there[a].nbytes}
        with weights.open("m", "r" if readonly else "rw", client=client) as w:
            tensors = w.torch()
            check_same(torch, tensors, w)
            for a, b in same:
                assert tensors[a] is tensors[b]
            before = {key: bytes_of(torch, tensor) for key, tensor in tensors.items()}
        weights.unload("m", client=client)
        client.flush()
        assert {key: bytes_of(torch, tensor) for key, tensor in tensors.items()} == before
        key, last = tensors.popitem()
        tensors.clear()
        assert bytes_of(torch, last) == before[key]
        del last
        gc.collect()
        wait_until(lambda: (client.flush(), client.status().arrays)[1] == 0, lambda: client.status())

    check()


def test_tensors_outlive_their_client(torch):
    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        with client.array(numpy.arange(8, dtype="<i4")) as a:
            client.publish_many("m/", {"a": a, "b": a[2:]})
        with daemon.connect() as reader:
            w = weights.open("m", client=reader)
            tensors = w.torch()
        w.close()
        weights.unload("m", client=client)
        client.flush()
        assert bytes_of(torch, tensors["b"]) == numpy.arange(2, 8, dtype="<i4").tobytes()


def test_few_leases_and_no_list_of_each(client, other, tmp_path, torch):
    weights.load(models.write_version(tmp_path / "m", 3), "m", client=client)
    with weights.open("m", client=other) as w:
        assert n_leases(client) == 1
        tensors = w.torch()
        assert n_leases(client) == 2, "the set's, and one array's"
        again = w.torch()
        assert n_leases(client) == 2
    assert n_leases(client) == 2
    del tensors
    assert n_leases(client) == 2
    del again
    wait_until(lambda: n_leases(client) == 0)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_rests_while_tensors_are_made(client, monkeypatch, is_enabled, soft):
    with client.zeros(3, "<f4") as a:
        client.publish_many("m/", {"a": a})
    monkeypatch.setitem(sys.modules, "torch", OWN)
    there = []
    for made in lambda x: there.append(gc.isenabled()) or own_torch._from_dlpack(x), lambda _: 1 / 0:
        monkeypatch.setattr(OWN, "from_dlpack", made)
        with weights.open("m", client=client) as w:
            gc.enable() if is_enabled else gc.disable()
            try:
                with contextlib.suppress(ZeroDivisionError):
                    w.torch()
                assert (gc.isenabled(), there) == (is_enabled, [False])
            finally:
                gc.enable()


def test_what_has_no_type_is_refused_as_by_itself(client, torch):
    with client.zeros(3, ">f4") as a, client.zeros(3, "<f4") as b:
        client.publish_many("m/", {"a": a, "b": b})
    with weights.open("m", client=client) as w, pytest.raises((BufferError, RuntimeError)):
        w.torch()
    wait_until(lambda: n_leases(client) == 0)


@pytest.mark.parametrize("memory", ["pinned", "mapped"])
def test_memory_of_the_host(client, torch, memory):
    with client.full(5, 7, "<i4", memory=memory) as a:
        client.publish_many("m/", {"a": a, "b": a[1:]})
    with weights.open("m", client=client) as w:
        tensors = w.torch()
        check_same(torch, tensors, w)


def test_tensors_of_another_device_are_one_copy(client, other, tmp_path, torch):
    weights.load(models.write_version(tmp_path / "m", 3), "m", client=client)
    with weights.open("m", client=other) as w:
        at = {key: array.ptr for key, array in w.items()}
        here, there = w.torch("cpu"), w.torch(device="meta")
        assert {key: tensor.data_ptr() for key, tensor in here.items()} == at
        expected = {key: bytes_of(torch, tensor) for key, tensor in here.items()}
        del here
    wait_until(lambda: n_leases(client) == 0)
    assert list(there) == list(at)
    if torch is OWN:  # PyTorch's "meta" has no memory
        assert {key: bytes_of(torch, tensor) for key, tensor in there.items()} == expected
        (_,) = {tensor.data_ptr() - at[key] for key, tensor in there.items()}
    else:
        assert {tensor.device.type for tensor in there.values()} == {"meta"}


# --- versions of a publisher ---------------------------------------------------------------------

N_BYTES = 3 << 20


def slots(client, n):
    """Sets in a block each, which are made once and may be published again and again; their values are their
    numbers."""
    made = []
    for number in range(n):
        with client.full(N_BYTES, number, "|u1", exclusive=True) as whole:
            parts = ("a", 512, "<i4", None, (3, 5), None), ("b", 4096, "|u1", None, (7,), (2,))
            made.append(client._set_create(whole._memory, parts))
    return made


def publish(slot, **metadata):
    slot.publish("m/", json.dumps(metadata), 0, False, None, 0)


def value(torch, w):
    """The one that is in all of it."""
    (found,) = {byte for tensor in w.torch().values() for byte in bytes_of(torch, tensor)}
    return found


def test_an_adoption_maps_nothing_again(client, other, torch, monkeypatch):
    made = slots(client, 3)
    publish(made[0], publisher={"versions": 2})
    w = weights.open("m", client=other)
    assert value(torch, w) == 0
    monkeypatch.setattr(_weights, "Table", pytest.fail)  # the first one's is used
    for turn, expected in enumerate([1, 0, 1, 0, 1]):
        publish(made[expected], publisher={"versions": 2})
        before = driver_calls("cuMem")  # beside those of the thread that closes the last version
        newer = w.newer()
        tensors = newer.torch()
        calls = driver_calls("cuMem") - before
        assert (calls == 0) == (turn > 0), "each block is mapped once"
        assert {byte for tensor in tensors.values() for byte in bytes_of(torch, tensor)} == {expected}
        del tensors
        w.close()
        w = newer
        assert w.newer() is None
    publish(made[2], publisher={"versions": 2})
    newer = w.newer()
    assert value(torch, newer) == 2
    w.close()
    newer.close()
    wait_until(lambda: n_leases(other) == 3, lambda: "the publisher's; no mapping is left with the last")
    for slot in made:
        slot.close()


def test_a_version_is_given_up_behind_its_stream(client, other, torch, soft):
    made = slots(client, 2)
    publish(made[0])
    with other.stream() as stream:
        w = weights.open("m", client=other)
        assert w.newer(stream) is None
        publish(made[1])
        newer = w.newer(stream)
        for last, options in (w, {"stream": stream}), (newer, {}):
            assert value(torch, last) == (last is newer)
            with Held(stream) as held, other.empty(8, "|u1") as some:
                some.copy_from_host(numpy.zeros(8, "u1"), stream=stream)
                before = client.status().leases
                last.close(**options)
                assert client.status().leases == before, "until the stream has come so far, and no longer"
                held.gate.set()
                stream.synchronize()
        with weights.open("m", client=other) as w, pytest.raises(ValueError):
            w.close(0)
    wait_until(lambda: client.status().leases == 2)
    for slot in made:
        slot.close()


def test_a_list_that_leads_out_of_the_block_is_refused(client, torch, monkeypatch):
    (slot,) = slots(client, 1)
    publish(slot)
    lies = [
        ("b", {"offset": (4 << 20) - 12}), ("b", {"offset": (1 << 64) - 8}), ("a", {"offset": 0}), ("b", {"nbytes": 8}),
        ("b", {"shape": (-1, -7)}), ("b", {"strides": (-2,)}), ("b", {"strides": (1 << 62,)}), ("b", {"strides": (1, 1)}),
        ("a", {"typestr": "<u4"}), ("a", {"shape": (5, 3)}), ("b", {"block": 77}),
    ]  # fmt: skip
    for key, lie in lies:
        with weights.open("m", client=client) as w:
            there = w._set.entries()
            there[key] = there[key]._replace(**lie)
            monkeypatch.setattr(type(w._set), "_entries", lambda _self, there=there: there)
            with pytest.raises(caid.CorruptError):
                w.torch()
            monkeypatch.undo()
            monkeypatch.setitem(sys.modules, "torch", torch)
    slot.close()
    wait_until(lambda: n_leases(client) == 0)


# --- in place ------------------------------------------------------------------------------------


def test_a_version_takes_the_place_of_the_one_before(client, other, torch):
    made = slots(client, 2)
    publish(made[0], publisher={"versions": 2})
    with weights.open("m", client=other) as w:
        tensors, first = w.torch(), w.version
        there = {key: tensor.data_ptr() for key, tensor in tensors.items()}
        assert w.advance() is None
        with w["a"] as a:
            assert a.copy_to_host().any() == 0
        for turn in range(1, 8):
            publish(made[turn % 2], publisher={"versions": 2})
            assert w.advance() == w.version == first + turn == client.show("m/").entry.generation
            told = {byte for tensor in tensors.values() for byte in bytes_of(torch, tensor)}
            assert told == {turn % 2} and value(torch, w) == turn % 2
            assert {key: tensor.data_ptr() for key, tensor in w.torch().items()} == there
            with w["a"] as a:
                assert a.copy_to_host().tobytes() == bytes([turn % 2]) * a.nbytes
        wait_until(lambda: n_leases(other) == 5, lambda: "two of the reader's, its array's, and two of the publisher's")
    del tensors
    wait_until(lambda: n_leases(other) == 2)
    for slot in made:
        slot.close()


def test_ctrl_c_after_the_wait_leaves_the_newer_version_in_its_place(client, other, torch, monkeypatch):
    made = slots(client, 2)
    publish(made[0])
    with weights.open("m", client=other) as w:
        tensors, exchange = w.torch(), type(other)._exchange

        def interrupted(*given):
            exchange(*given)
            raise KeyboardInterrupt

        publish(made[1])
        monkeypatch.setattr(type(other), "_exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            w.advance()
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert w.version == client.show("m/").entry.generation and value(torch, w) == 1
        assert {byte for tensor in tensors.values() for byte in bytes_of(torch, tensor)} == {1}
        other.flush()
        wait_until(lambda: n_leases(other) == 4, lambda: "two of the reader's, on what its tensors show, and two of the publisher's")
        client._vacate((made[0],), (), 0)
        publish(made[0])
        with pytest.raises(caid.TimedOutError):
            client._vacate((made[1],), (), 0)
        assert w.advance() == w.version and value(torch, w) == 0
    tensors.clear()
    for slot in made:
        slot.close()


def test_what_cannot_take_its_place_changes_nothing(client, other, torch, soft):
    made = slots(client, 2)
    with client.full(N_BYTES, 9, "|u1", exclusive=True) as whole, client.full(1 << 20, 9, "|u1") as small:
        parts = ("a", 512, "<i4", None, (3, 5), None), ("b", 4096, "|u1", None, (7,), None)
        strides = client._set_create(whole._memory, parts)
        several = whole.view(), small.view()
    publish(made[0])
    with weights.open("m", client=other) as w:
        tensors = w.torch()

        def check_refused(error, match):
            version = w.version
            with pytest.raises(error, match=match):
                w.advance()
            assert w.version == version and value(torch, w) == 0
            assert {byte for tensor in tensors.values() for byte in bytes_of(torch, tensor)} == {0}

        publish(strides)
        check_refused(caid.InvalidError, "not laid out as")
        client.publish_many("m/", dict(zip("ab", several)))
        check_refused(caid.InvalidError, "not laid out as")
        publish(made[1])
        array = w["a"]
        check_refused(caid.InvalidError, "open here")
        array.close()
        with weights.open("m", client=other) as beside:
            assert value(torch, beside) == 1
            check_refused(caid.InvalidError, "open here")
        softcuda("fail cuMemUnmap=CUDA_ERROR_OUT_OF_MEMORY")
        try:
            check_refused(caid.OutOfMemoryError, "cuMemUnmap")
        finally:
            softcuda("clear")
        assert w.advance() == w.version and value(torch, w) == 1
        client.unlink("m/")
        with pytest.raises(caid.NotFoundError):
            w.advance()
    tensors.clear()
    for each in (*several, *made, strides):
        each.close()
    wait_until(lambda: n_leases(client) == 0)


# --- parts, and copies of one's own --------------------------------------------------------------


def test_parts_are_together_the_whole(client, torch):
    @settings(max_examples=30, deadline=None)
    @given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from(["uint8", "int32", "bfloat16"]),
           st.booleans())  # fmt: skip
    def check(world, rows, columns, name, transposed):
        element = element_of(name)
        shape = (rows * world, columns * world)
        with client.empty(shape[::-1] if transposed else shape, element) as a, a.T if transposed else a.view() as x:
            if a.nbytes:
                flat = numpy.arange(a.nbytes, dtype="u1")
                a.reshape(a.size).view("|u1").copy_from_host(flat)
            whole = x.copy_to_host()
            client.publish_many("m/", {"r": x, "c": x, "s": x})
        with weights.open("m", client=client) as w:
            parts = [w.shard(rank, world, ["r"], ["c"]) for rank in range(world)]
            taken = [part.torch() for part in parts]
            for rank, found in enumerate(taken):
                expected = {
                    "c": whole[:, rank * columns : (rank + 1) * columns],
                    "r": whole[rank * rows : (rank + 1) * rows],
                    "s": whole,
                }
                assert {key: (tuple(t.shape), bytes_of(torch, t)) for key, t in found.items()} == {
                    key: (part.shape, part.tobytes()) for key, part in expected.items()
                }
            if whole.size:
                with w["r"] as r:
                    assert [t["r"].data_ptr() - r.host_ptr for t in taken] == [
                        rank * rows * r.strides[0] for rank in range(world)
                    ], "views"
                del r
        del taken, parts, found

    check()
    with client.zeros(3, "<i4") as a:
        client.publish_many("m/", {"r": a})
    with weights.open("m", client=client) as w:
        with pytest.raises(caid.InvalidError):
            w.shard(2, 2)
        with pytest.raises(caid.InvalidError, match="3 rows"):
            w.shard(0, 2, ["r"]).torch()
        assert repr(w.shard(0, 2)).startswith("<caid.weights.Part 0/2")


def own_copy(torch, tensor):
    return tensor.contiguous() if torch is OWN else torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def without_memory(torch, tensor):
    """As PyTorch's of device "meta" are."""
    if torch is not OWN:
        return tensor.to("meta")
    made = own_torch.Tensor(tensor.memory, tensor.dtype, tensor.shape, tensor.steps)
    made.data_ptr = lambda: 0
    return made


def test_a_copy_of_ones_own_is_never_in_shared_memory(client, torch):
    """Which is mapped read-only here: a write to it would end this process."""
    values = numpy.arange(24, dtype="<i4").reshape(4, 6)
    with client.array(values) as a, client.full(3, 7, "|u1") as b:
        client.publish_many("m/", {"a": a, "at": a.T, "b": b})
    with weights.open("m", client=client) as w:
        shared = w.torch()
        mine = {key: own_copy(torch, tensor) for key, tensor in shared.items()}
        module = types.SimpleNamespace(state_dict=lambda: mine)
        for target in mine, module:
            if torch is OWN:
                for tensor in mine.values():
                    tensor.memory[:] = 0
            w.copy_into(target)
            told = {key: bytes_of(torch, tensor) for key, tensor in mine.items()}
            assert told == {"a": values.tobytes(), "at": values.T.tobytes(), "b": b"\7" * 3}
        hosts = {key: numpy.zeros_like(array.copy_to_host()) for key, array in w.items()}
        w.copy_into(hosts)
        assert (hosts["at"] == values.T).all() and (hosts["b"] == 7).all()
        wrong = {
            "'a' lies in the memory of a version": {**mine, "a": shared["a"]},
            "'b' has no memory": {**mine, "b": without_memory(torch, mine["b"])},
            "'b' is not in the target": {key: mine[key] for key in ("a", "at")},
            "'more' is not in m": {**hosts, "more": hosts["a"]},
            "'b' is int64": {**hosts, "b": hosts["b"].astype("i8")},
            r"'a' is <i4 \(6, 4\), not <i4 \(4, 6\)": {**mine, "a": mine["at"]},
        }
        hosts["b"][:] = 0
        for match, target in wrong.items():
            with pytest.raises(ValueError, match=match.replace("int64", "<i8")):
                w.copy_into(target)
        assert not hosts["b"].any(), "nothing is written"
        del shared, wrong, target
