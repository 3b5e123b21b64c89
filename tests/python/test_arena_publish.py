# SPDX-License-Identifier: Apache-2.0
"""Publishing what lies in an arena: its allocations, and what other libraries have made in them."""

import gc
import weakref

import numpy as np
import pytest
from arenas import MIB, ByDlpack, Foreign, client_bytes, fill, seen, seen_behind
from conftest import PATIENCE_S, in_thread, wait_until

import caid
from caid import _caid


# --- publishing an allocation ---------------------------------------------------------------


def test_an_allocation_is_published(client, other, arena):
    x = arena.allocate(1 << 12)
    fill(client, x, np.arange(1024, dtype="<i4"))
    first = arena.publish("x", x, shape=(32, 32), dtype="<i4", metadata={"step": 1})
    with other.open("x") as b:
        assert (b.shape, b.typestr, b.generation) == ((32, 32), "<i4", first)
        assert b.metadata == {"step": 1}
        assert (b.copy_to_host() == np.arange(1024).reshape(32, 32)).all()
        fill(client, x, np.zeros(1024, "<i4"))  # nothing was copied
        assert (b.copy_to_host() == 0).all()
        assert arena.publish("x", x) == first + 1
        with other.open("x") as again:
            assert (again.shape, again.typestr, again.metadata) == ((4096,), "|u1", None)
    with other.open("x", "rw") as b:
        b[:4].copy_from_host(bytes(b"abcd"))
    assert bytes(client_bytes(client, x)[:4]) == b"abcd"


def test_shapes_of_an_allocation(client, arena):
    x = arena.allocate(100)
    for told, shape, typestr in (
        ({}, (100,), "|u1"),
        ({"dtype": "<f8"}, (12,), "<f8"),
        ({"shape": ()}, (), "|u1"),
        ({"shape": 25, "dtype": np.float32}, (25,), "<f4"),
        ({"shape": 2, "dtype": [("a", "<i4"), ("b", "<f8")]}, (2,), "|V12"),
        ({"shape": 3, "dtype": "(2,2)<f4"}, (3, 2, 2), "<f4"),
    ):
        arena.publish("x", x, **told)
        with client.open("x") as a:
            assert (a.shape, a.typestr) == (shape, typestr)
    with pytest.raises(caid.InvalidError, match="takes 104 bytes: the allocation has 100"):
        arena.publish("x", x, shape=26, dtype="<f4")
    for wrong in ({"shape": -1}, {"dtype": "(2,2)<f4"}, {"dtype": "nonsense"}, {"dtype": object}):
        with pytest.raises(caid.InvalidError):
            arena.publish("x", x, **wrong)
    with pytest.raises(TypeError):
        arena.publish("x", x, metadata={1, 2})


# --- publishing what others have made -------------------------------------------------------


def test_an_array_by_its_interface(client, arena):
    x = arena.allocate(4000)
    fill(client, x, np.arange(1000, dtype="<i4"))
    for version in (0, 1, 2, 3):
        arena.publish("x", Foreign(x, (10, 100), version=version))
        assert (seen(client, "x") == np.arange(1000).reshape(10, 100)).all()
    arena.publish("x", Foreign(x, (10, 50), strides=(400, 8), data=(x.ptr + 4, True)))
    assert (seen(client, "x") == np.arange(1000).reshape(10, 100)[:, 1::2]).all()
    arena.publish("x", Foreign(x, (100, 10), strides=(4, 400)))
    with client.open("x") as b:
        assert b.is_f_contiguous() and not b.is_c_contiguous()
        assert (b.copy_to_host() == np.arange(1000).reshape(10, 100).T).all()
    arena.publish("x", Foreign(x, (1, 5), strides=(-1, 8)))  # a step that is never taken
    assert (seen(client, "x") == [[0, 2, 4, 6, 8]]).all()
    arena.publish("x", Foreign(x, (2,), "|V2"))  # what PyTorch calls bfloat16
    with client.open("x") as b:
        assert b.typestr == "|V2"


def test_structured_types_keep_their_fields(client, arena):
    dtype = np.dtype([("a", "<i4"), ("b", "<f8", (2,))])
    x = arena.allocate(dtype.itemsize * 5)
    arena.publish("x", Foreign(x, (5,), dtype.str, descr=dtype.descr))
    with client.open("x") as b:
        assert b.dtype == dtype


def test_arrays_that_are_not_published(client, arena):
    x = arena.allocate(4000)
    foreign = Foreign(x, (1000,))
    for x_, error, text in (
        (Foreign(x, (10,), strides=(-4,)), ValueError, "negative"),
        (Foreign(x, (1001,)), caid.InvalidError, "takes 4004 bytes: the allocation has 4000"),
        (Foreign(x, (2,), strides=(4000,)), caid.InvalidError, "4004 bytes"),
        (Foreign(x, (1,), data=(x.ptr + 4, False), typestr="|V4000"), caid.InvalidError, "3996"),
        (Foreign(x, (1,), data=(x.ptr + 16 * MIB, False)), caid.InvalidError, "this arena"),
        (Foreign(x, (1,), data=(1, False)), caid.InvalidError, "this arena"),
        (Foreign(x, (1,), "<f8", data=(x.ptr + 1, False)), caid.InvalidError, "publish it as bytes"),
        (Foreign(x, (1,), stream=0), ValueError, "ambiguous"),
        (Foreign(x, (1,), mask=foreign), NotImplementedError, "mask"),
        (Foreign(x, (1,), "|O8"), caid.InvalidError, "typestr"),
        (np.zeros(3), caid.InvalidError, "ndarray at .* this arena"),
        (object(), TypeError, "neither __cuda_array_interface__ nor __dlpack__"),
    ):
        if isinstance(x_, np.ndarray) and not hasattr(x_, "__dlpack__"):
            continue
        with pytest.raises(error, match=text):
            arena.publish("x", x_)
    with pytest.raises(TypeError, match="for an Allocation"):
        arena.publish("x", foreign, shape=10)
    with pytest.raises(TypeError, match="for an Allocation"):
        arena.publish("x", foreign, dtype="<f4")
    with client.arena() as another:
        with pytest.raises(caid.InvalidError, match="Allocation at .* not in memory of this arena"):
            another.publish("x", x)
    with client.empty(10) as own:
        with pytest.raises(caid.UnsupportedError, match="its own publish"):
            arena.publish("x", own)
    assert client.list() == [] and client._n_kept == 0


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_no_elements(client, arena, shape):
    x = arena.allocate(16)
    arena.publish("x", Foreign(x, shape, "<f4", data=(0, False)), metadata=[1])
    with client.open("x") as b:
        assert (b.shape, b.typestr, b.metadata) == (shape, "<f4", [1])
    second = arena.publish("x", x, shape=shape, dtype="<f8")
    with client.open("x") as b:
        assert (b.shape, b.typestr, b.generation) == (shape, "<f8", second)
    assert client._n_kept == 0


class Raises:
    """PyTorch's tensor of a type that the interface has no word for."""

    def __init__(self, error, array=None):
        self.error = error
        if array is not None:
            self.__dlpack__ = ByDlpack(array).__dlpack__
            self.__dlpack_device__ = array.__dlpack_device__

    @property
    def __cuda_array_interface__(self):
        raise self.error("of its own")


def test_an_array_by_dlpack(client, arena):
    x = arena.allocate(4000)
    fill(client, x, np.arange(1000, dtype="<i4"))
    view = client.as_array(Foreign(x, (10, 100)))
    foreign = ByDlpack(view)
    arena.publish("x", foreign)
    assert (seen(client, "x") == np.arange(1000).reshape(10, 100)).all()
    arena.publish("y", ByDlpack(view.T))
    assert (seen(client, "y") == np.arange(1000).reshape(10, 100).T).all()
    assert [asked["stream"] for asked in foreign.asked] == [-1]  # all work of the context is waited for
    arena.publish("x", foreign, stream=1)
    assert [asked["stream"] for asked in foreign.asked] == [-1, 1]
    arena.publish("x", Raises(KeyError, view))
    assert (seen(client, "x") == np.arange(1000).reshape(10, 100)).all()
    for error in (KeyError, RuntimeError):
        with pytest.raises(error, match="of its own"):
            arena.publish("x", Raises(error))
    with pytest.raises(ValueError, match="negative"):
        arena.publish("x", ByDlpack(view[::-1]))


class Bfloat16:
    def __init__(self, memory):
        self.memory = memory

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None, max_version=None):
        return _caid.dlpack_export(
            self.memory, self.memory.ptr, (2, 0), (4, 16, 1), (10,), (1,), False, False
        )


def test_bfloat16_is_published_by_its_name(client, arena):
    arena.publish("x", Bfloat16(arena.allocate(20)))
    with client.open("x") as a, caid.from_dlpack(ByDlpack(a)) as b:
        assert "typestr='bfloat16'" in repr(a)
        arena.publish("y", b[:0])  # an Array says it, too
    with client.open("y") as a:
        assert "typestr='bfloat16'" in repr(a)


def test_an_array_over_others_memory(client, arena):
    x = arena.allocate(40)
    fill(client, x, np.arange(10, dtype="<i4"))
    foreign = Foreign(x, (10,))
    kept = weakref.ref(foreign)
    with client.as_array(foreign) as a:
        arena.publish("x", a[::2])
    del a, foreign
    gc.collect()
    assert kept() is not None  # the owner is kept, not the view
    assert (seen(client, "x") == [0, 2, 4, 6, 8]).all()
    client.unlink("x")
    wait_until(lambda: kept() is None)


# --- sets -----------------------------------------------------------------------------------


def member(key, ptr, shape=(4,), strides=None):
    return key, ptr, "<i4", None, shape, strides


def test_arrays_of_a_set_lie_where_they_were(client, other, arena):
    x, large = arena.allocate(64), arena.allocate(20 << 20)  # in two blocks
    fill(client, x, np.arange(16, dtype="<i4"))
    fill(client, large, np.full(5 << 20, 7, "<i4"))
    kept = np.zeros(1)
    gone = weakref.ref(kept)
    members = (
        member("a", x.ptr),
        member("twice", x.ptr),
        member("turned", x.ptr, (4, 4), (4, 16)),
        member("large", large.ptr),
        member("none", x.ptr, (0, 4)),
    )
    made = arena._set_of(members, [kept, x])
    with pytest.raises(caid.NotFoundError):
        other.open_set("s/")
    made.publish("s/", None, 0, False, None, 0)
    made.close()
    x.close()
    del kept, members
    with other.open_set("s/") as s:
        assert (s["turned"].copy_to_host() == np.arange(16).reshape(4, 4).T).all()
        assert (s["twice"].copy_to_host() == s["a"].copy_to_host()).all() and s["twice"].ptr == s["a"].ptr
        assert (s["large"].copy_to_host() == 7).all() and s["none"].shape == (0, 4)
        client.unlink("s/")
        gc.collect()
        assert gone() is not None and arena.info.published == 5
    wait_until(lambda: gone() is None)
    wait_until(lambda: arena.info.published == 0)


@pytest.mark.parametrize("n", [3, 3000])  # more than one request takes
def test_a_set_that_is_refused_keeps_nothing(client, arena, n):
    x = arena.allocate(64)
    kept = np.zeros(1)
    gone = weakref.ref(kept)
    good = tuple(member(str(i), x.ptr) for i in range(n))
    for wrong, error in (
        (member("0", x.ptr), caid.ExistsError),
        (member("x", x.ptr + 2), caid.InvalidError),
        (member("x", x.ptr, (17,)), caid.InvalidError),
        (member("x", 1 << 50), caid.NotFoundError),
        (member("\t", x.ptr), caid.InvalidNameError),
        (member(None, x.ptr), TypeError),
    ):
        with pytest.raises(error):
            arena._set_of((*good, wrong), [kept])
    del kept
    gc.collect()
    assert gone() is None
    wait_until(lambda: client.dispatch() or arena.info.published == 0)
    arena._set_of(good, None).close()
    wait_until(lambda: arena.info.published == 0)


# --- which work is waited for ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["the interface", "stream=", "an object", "all work"])
def test_the_work_that_writes_it_is_waited_for(client, arena, streams, how):
    held, idle = streams
    x = arena.allocate(4)
    held.hold_up()
    args, kwargs = {
        "the interface": ((Foreign(x, (1,), stream=held.number),), {}),
        "stream=": ((Foreign(x, (1,), stream=idle.number),), {"stream": held.number}),
        "an object": ((x,), {"stream": Pointer(held.number)}),
        "all work": ((x,), {}),
    }[how]
    seen_behind(client, held, lambda: arena.publish("x", *args, **kwargs))


def test_a_stream_is_named_for_one_that_is_ambiguous(client, arena, streams):
    _, idle = streams
    x = arena.allocate(4)
    for told in (0, -1, "none"):
        with pytest.raises((ValueError, caid.InvalidError)):
            arena.publish("x", Foreign(x, (1,), stream=told))
        assert arena.publish("x", Foreign(x, (1,), stream=told), stream=idle.number) >= 1
    with pytest.raises(ValueError, match="stream 0"):
        arena.publish("x", Foreign(x, (1,), stream=0), stream=0)


class Pointer:
    def __init__(self, number):
        self.ptr = number


def test_other_work_is_not_waited_for(client, arena, streams):
    held, idle = streams
    x = arena.allocate(4)
    held.hold_up()
    for foreign, kwargs in (
        (Foreign(x, (1,), stream=idle.number), {}),
        (Foreign(x, (1,), stream=held.number), {"stream": idle.number}),
    ):
        thread, ended = in_thread(lambda: arena.publish("x", foreign, **kwargs))
        thread.join(PATIENCE_S)
        assert ended and ended[0] >= 1
    held.gate.set()
