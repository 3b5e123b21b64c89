# SPDX-License-Identifier: Apache-2.0
"""Work that is announced: an array says on which stream its data is being made.

Sources: CUDA Array Interface, version 3, "Interface Requirements" and "An example launching on an
array's non-default stream"; DeviceNDArray.bind() of Numba.
"""

import contextlib
import ctypes
import threading

import numpy as np
import pytest
from conftest import Held, in_thread

import caid

N, MADE = 1000, 0x07070707
NOT_READY = 600  # CUDA_ERROR_NOT_READY


def named(array):
    return array.__cuda_array_interface__["stream"]


def kernel(stream, array):
    """Makes the array's data, once what comes after could have overtaken it."""
    stream.hold_up()
    stream.fill(array, 7)
    threading.Timer(0.1, stream.gate.set).start()


def foreign(stream):
    return type("Foreign", (), {"ptr": stream.number})()


@pytest.fixture
def zeros(client):
    with client.create("zeros", N, "<i4") as a:
        a.copy_from_host(np.zeros(N, "<i4"))
        yield a


# --- who names it ---------------------------------------------------------------------------


def test_arrays_name_the_stream_that_they_are_made_with(client, stream, monkeypatch):
    s, x = stream.number, np.arange(4.0)
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(caid.device_array(N, stream=s, client=client))
        b = stack.enter_context(caid.device_array_like(a, s, client=client))
        c = stack.enter_context(caid.to_device(x, s, client=client))
        d = stack.enter_context(caid.mapped(x, stream=s))
        made = [a, b, c, d, a[1:], b.ravel(), caid.mapped_array(4, stream=s)]
        made += [caid.managed_array(4, stream=s), caid.mapped_array_like(x, s)[1:]]
        assert [named(array) for array in made] == len(made) * [s]
        monkeypatch.setenv("CAID_CAI_EXPORT_VERSION", "2")
        kernel(stream, a)
        assert "stream" not in made[-1].__cuda_array_interface__ and stream.gate.is_set()
        monkeypatch.delenv("CAID_CAI_EXPORT_VERSION")
        monkeypatch.setenv("CAID_CAI_SYNC", "0")
        assert [named(array) for array in made] == len(made) * [None]


def test_bind_gives_a_view_and_tells_the_array(zeros, streams):
    s, t = map(foreign, streams)
    with zeros.bind(s) as v, zeros.ravel(stream=t) as w:
        assert (named(v), named(zeros), named(w), named(v[1:])) == (s.ptr, s.ptr, t.ptr, s.ptr)
        zeros.bind()
        assert v.ptr == zeros.ptr and named(v) == s.ptr
    zeros.synchronize()
    assert named(zeros) is None
    in_thread(lambda: zeros.bind(2))[0].join()
    assert named(zeros) is None and named(zeros.bind(2)) == 2  # known in its thread alone
    for wrong, error in [("1", TypeError), (-1, ValueError)]:
        with pytest.raises(error):
            zeros.bind(wrong)
    with pytest.raises(caid.ClosedError):
        v.bind(s)


def test_the_stream_is_there_as_long_as_an_array_is_bound_to_it(daemon, client, stream):
    s = client.stream(non_blocking=True)
    number = s.handle
    is_there = lambda: stream.driver.cuStreamQuery(ctypes.c_void_p(number)) in (0, NOT_READY)
    a = caid.device_array(N, "<i4", stream=s, client=client)
    with a[1:] as v, Held(s):
        s.close()
        assert s.closed and named(a) == named(v) == number
        a.close()
        assert is_there()
    assert not is_there()
    with daemon.connect() as other, client.empty(N) as b:
        b.bind(other.stream()).close()
        other.close()
        b.synchronize()
        assert named(b) is None


# --- who waits ------------------------------------------------------------------------------


WAITS = {
    "the host": lambda a, t: a.synchronize(),
    "by the dict": lambda a, t: t.call("cuStreamSynchronize", ctypes.c_void_p(named(a))),
    "by DLPack": lambda a, t: a.__dlpack__(stream=t.number),
    "in a bracket": lambda a, t: [(b.begin(), b.end()) for b in [a.read(t.number)]],
}


@pytest.mark.parametrize("who", ["the array", "its view", "a view of before"])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_kernel_outside_of_a_bracket_is_waited_for(client, zeros, streams, wait, who):
    s, t = streams
    out = caid.pinned_array(N, "<i4", client=client)
    views = {"a view of before": zeros[:], "its view": zeros.bind(s.number), "the array": zeros}
    kernel(s, zeros)
    wait(views[who], t)
    t.read(zeros, out)
    t.synchronize()
    assert (out == MADE).all()


@pytest.mark.parametrize("end", ["bind", "close"])
def test_what_was_announced_stays_known(zeros, streams, end):
    """When no array is bound to the stream any more."""
    s, t = streams
    v = zeros.bind(foreign(s))
    kernel(s, zeros)
    zeros.bind(t.number)
    getattr(v, end)()
    assert named(zeros) == t.number
    assert (zeros.copy_to_host() == MADE).all()


def test_closing_on_a_stream_waits_for_it(client, streams):
    s, t = streams
    a = caid.device_array(N, "<i4", stream=s.number, client=client)
    kernel(s, a)
    a.close(stream=t.number)
    t.synchronize()
    assert s.gate.is_set()


def test_a_copy_on_another_stream_is_not_overtaken(client, zeros, streams):
    s, t = streams
    out = caid.pinned_array(N, "<i4", client=client)
    with zeros.bind(s.number) as v:
        t.hold_up()
        v.copy_to_host(out, stream=t.number)
        s.fill(v, 7)
        threading.Timer(0.1, t.gate.set).start()
        s.synchronize()
    assert (out == 0).all()


def test_the_example_of_the_specification(client, streams):
    """The kernel runs on another stream than the array's, which an event makes wait."""
    array_stream, kernel_stream = streams
    with caid.device_array(N, "<i4", stream=array_stream.number, client=client) as x:
        kernel(kernel_stream, x)
        evt = caid.event(client=client)
        evt.record(kernel_stream.number)
        evt.wait(array_stream.number)
        with client.as_array(dict(x.__cuda_array_interface__)) as consumed:
            assert (consumed.copy_to_host() == MADE).all()
        evt.close()
