# SPDX-License-Identifier: Apache-2.0
"""Elements of an array as values of Python, what is not computed, and Numba's names."""

import contextlib
import ctypes
import operator
import os
import signal

import pytest
from conftest import PATIENCE_S, Held, forked, in_thread
from restarts import Restarts

import caid

np = pytest.importorskip("numpy")


@pytest.fixture
def a(client):
    with client.array(np.arange(6, dtype="<i4").reshape(2, 3)) as a:
        yield a


def test_values(a):
    host = a.copy_to_host()
    assert a.tolist() == host.tolist() and a[0, 1].tolist() == 1
    for index in ((4,), (-1,), (1, 2), ((0, -1),)):
        assert a.item(*index) == host.item(*index)
        assert type(a.item(*index)) is int
    assert a[1, 1:2].item() == 4 and a.T.item(1) == 3
    assert (float(a[1, 2]), int(a[1, 2]), complex(a[1, 2:])) == (5.0, 5, 5 + 0j)
    assert len(a) == 2 and [row.tolist() for row in a] == host.tolist()


def test_what_is_no_value(a):
    for index in (6, -7, (0, 3), (2, 0)):
        with pytest.raises(IndexError):
            a.item(index)
    for index in ((), ((0,),), (0, 0, 0)):
        with pytest.raises(ValueError, match="item"):
            a.item(*index)
    for convert in (float, int, complex):
        with pytest.raises(TypeError, match=r"6 elements.*tolist\(\)"):
            convert(a)
    with pytest.raises(TypeError, match=r"item\(\)"):
        bool(a)
    a.close()
    with pytest.raises(caid.ClosedError):
        a.tolist()


@pytest.mark.parametrize("other", [2, 1.5, [1, 2, 3], "itself"])
def test_arithmetic_says_what_computes(a, other):
    other = a if other == "itself" else other
    for name in "add sub mul matmul truediv floordiv mod pow lt le gt ge and_ or_ xor lshift rshift".split():
        for left, right in ((a, other), (other, a)):
            with pytest.raises(TypeError, match=r"cupy.asarray\(a\).*copy_to_host"):
                getattr(operator, name)(left, right)


def test_operators_of_one(a):
    for name in ("neg", "pos", "abs", "invert"):
        with pytest.raises(TypeError, match="copy_to_host"):
            getattr(operator, name)(a)


def test_a_library_that_computes_is_asked(a):
    class Theirs:
        def __radd__(self, other):
            return "theirs", other

        __gt__ = __radd__

    assert a + Theirs() == ("theirs", a) and (a < Theirs()) == ("theirs", a)


def test_numbas_names(client, a, streams):
    stream, _ = streams
    a.setitem((0, slice(None)), 7)
    a.setitem(1, [8, 9, 10])
    assert a.tolist() == [[7, 7, 7], [8, 9, 10]]
    assert a.getitem((1, slice(1, None))).tolist() == [9, 10]
    stream.hold_up()
    a.setitem((0, 0), 1, stream=stream.number)  # after what is there
    bound = a.getitem(0, stream=stream.number)
    assert bound.__cuda_array_interface__["stream"] == stream.number
    stream.gate.set()
    assert bound.tolist() == [1, 7, 7]
    bound.close()
    flat = a.ravel()
    assert [part.tolist() for part in flat.split(4)] == [[1, 7, 7, 8], [9, 10]]
    for array, section in ((a, 1), (flat[::2], 1), (flat, 0)):
        with pytest.raises(ValueError, match="split"):
            array.split(section)


# --- repr() ---------------------------------------------------------------------------------------


def told(array):
    """(what repr() says the array is, its values or "")"""
    what, _, values = repr(array).partition("mode='rw'")
    return what, values[:-1]


def text(host):
    return np.array2string(host, separator=", ", prefix=" ")


@pytest.mark.parametrize("memory", ["device", "pinned", "mapped", "managed", "legacy"])
def test_repr_shows_what_is_small(client, memory):
    host = np.arange(24, dtype="<i4").reshape(4, 6)
    with client.create("x", data=host, memory=memory) if memory != "managed" else client.array(host, memory=memory) as a:
        assert repr(a).startswith("<caid.Array") and "shape=(4, 6) typestr='<i4' device=" in repr(a)
        assert told(a)[1] == "\n " + text(host) and repr(a).endswith("]]>")
        for view, of in ((a[1], host[1]), (a[::-1, ::2], host[::-1, ::2]), (a[2, 3], host[2, 3]), (a.T, host.T)):
            assert told(view)[1].lstrip("\n")[1:] == text(of)
        assert told(a[:0])[1] == ""
    with client.create("y", data=host) as a, client.open("y") as b:
        assert repr(b).endswith("mode='r'\n " + text(host) + ">") and told(a)[1] in repr(b)


def test_repr_of_types(client):
    record = np.array([(1, b"ab"), (2, b"")], dtype=[("n", "<i2"), ("s", "S3")])
    with client.array(record) as a, client.empty(2, "bfloat16") as b:
        assert told(a)[1] == " [(1, b'ab'), (2, b'')]"
        with contextlib.suppress(ImportError):
            import ml_dtypes  # noqa: F401

            pytest.skip("ml_dtypes is installed")
        assert told(b) == ("<caid.Array shape=(2,) typestr='bfloat16' device=0 ", "")  # as bytes they would tell nothing
        with pytest.raises(caid.UnsupportedError, match="ml_dtypes"):
            b.fill(1)


def test_repr_of_what_is_large_copies_nothing(client, soft):
    with client.zeros(1000, "|u1") as a, client.zeros(1001, "|u1") as b, client.zeros(2, "|V32768") as c, client.zeros(3, "|V32768") as d:
        assert [bool(told(array)[1]) for array in (a, b, c, d)] == [True, False, True, False]
        assert told(a)[1].count("0") == 1000 and "..." not in repr(a)


def test_repr_waits_for_no_work(client, other, a, streams):
    """Neither for this process's, nor for what others write, nor for whoever has the default stream."""
    s, _ = streams
    values = told(a)[1]
    s.hold_up_copy(a, 7)
    assert told(a)[1] == ""
    s.gate.set()
    s.synchronize()
    assert values != told(a)[1] == "\n [[7, 7, 7],\n  [7, 7, 7]]"
    stream = client.stream()
    with stream, a.bind(stream) as bound, Held(stream):
        assert told(bound)[1] == told(a)[1] == ""
    with stream if not stream.closed else client.stream() as stream, a.write(stream) as v:
        stream.synchronize()  # what has held it up may not have returned
        assert told(v)[1] != ""
        with Held(stream):
            assert told(v)[1] == ""
    a.publish("x")
    with other.open("x", "rw") as b, b.write():  # as it lies there: the daemon is not asked
        assert told(a)[1] == told(b)[1] == "\n [[7, 7, 7],\n  [7, 7, 7]]"


def test_repr_beside_the_default_stream(client, a, stream):
    with client.empty(1000) as b:
        address = ctypes.c_uint64(b.ptr)
        stream.hold_up()
        stream.call("cuMemsetD8Async", address, 1, ctypes.c_size_t(8), None)  # it waits for that one, and blocking streams for it
        assert told(a)[1] == "\n [[0, 1, 2],\n  [3, 4, 5]]"
        stream.gate.set()


def test_repr_ends_no_capture(client, a, stream, streams):
    a.copy_from_host(np.zeros((2, 3), "<i4"), stream=streams[0].number)
    streams[0].synchronize()
    for mode in 0, 2:
        with stream.captures(mode):
            thread, said = in_thread(lambda: (repr(a), repr(a.view().bind(stream.number))))
            thread.join(PATIENCE_S)
            assert "[[0, 0, 0]" in said[0][0] and said[0][1].endswith("'rw'>"), said
            assert "[[0, 0, 0]" in repr(a)


def test_repr_raises_nothing(client, tmp_path, a):
    with client.create("s", data=np.arange(3), exclusive=True) as b:
        client.publish_many("t/", {"k": b})
    with client.open_set("t/") as s, s["k"] as k:
        assert repr(k).endswith(" [0, 1, 2]>")
        s.unmap()
        assert repr(k).endswith(" mode='r'>")
        s.map()
        assert repr(k).endswith(" [0, 1, 2]>")
    shown = repr(a)
    forked(work=lambda: operator.ne(repr(a), shown[: shown.index("\n")] + ">") and 1 / 0)
    with contextlib.closing(Restarts(tmp_path)) as r, r.connect() as c, c.array([1, 2]) as one:
        r.end()
        assert repr(one).endswith("mode='rw' [1, 2]>")  # nobody is asked
        r.start()
    with caid.LocalDaemon() as d, d.connect() as c, c.array([1, 2]) as one:
        os.kill(d.pid, signal.SIGKILL)
        d.stop()
        assert repr(one).startswith("<caid.Array shape=(2,)")
    a.close()
    assert repr(a) == "<caid.Array closed>"
    with pytest.warns(ResourceWarning, match="unclosed <caid.Array shape=.2,. typestr='<i8' device=0 mode='rw'>$"):
        del one
        client.array([1, 2])
