# SPDX-License-Identifier: Apache-2.0
"""caid.strict_device() and CAID_SOFTCUDA_STRICT: without a GPU the host is refused the same access as with one."""

import io

import numpy
import pytest

import caid

KINDS = ["device", "legacy"]
IN_DEVICE_MEMORY = "in device memory: use copy_to_host"

REFUSED = {
    "asarray": (numpy.asarray, TypeError, IN_DEVICE_MEMORY),
    "add": (lambda a: numpy.add(a, 1), TypeError, IN_DEVICE_MEMORY),
    "save": (lambda a: numpy.save(io.BytesIO(), a), TypeError, IN_DEVICE_MEMORY),
    "interface": (lambda a: a.__array_interface__, AttributeError, "does not reach device memory"),
    "host view": (lambda a: a._memory.host_view(0, 8, True), caid.UnsupportedError, "does not reach"),
    "dlpack": (lambda a: a.__dlpack__(dl_device=(1, 0), copy=False), BufferError, "by a copy alone"),
}


@pytest.fixture(params=KINDS)
def array(client, soft, request):
    with client.empty(4, "<i4", memory=request.param) as a:
        a.copy_from_host(numpy.arange(4, dtype="<i4"))
        yield a


def is_refused(a):
    for use, error, match in REFUSED.values():
        with pytest.raises(error, match=match):
            use(a)
    assert a.host_ptr is None and not a._memory.client.host_accessible
    assert a.copy_to_host().tolist() == [0, 1, 2, 3]  # that is how
    return True


def is_seen(a):
    assert a.host_ptr == a.ptr and a._memory.client.host_accessible
    return numpy.add(a, 1).tolist() == [1, 2, 3, 4]


def test_in_a_block_it_is_so_for_what_is_there_and_comes(array, client):
    before = numpy.asarray(array)
    with caid.strict_device():
        assert is_refused(array) and is_refused(array[:])
        with caid.strict_device():
            pass
        assert is_refused(array)
        with client.empty(0, memory=array.memory) as empty, pytest.raises(TypeError):
            numpy.asarray(empty)
        assert before.tolist() == [0, 1, 2, 3]
    assert is_seen(array)


def test_from_a_call_on_it_is_so(array):
    undo = caid.strict_device()
    try:
        assert is_refused(array)
    finally:
        undo.close()
    assert is_seen(array)


@pytest.mark.parametrize("value, strict", [("1", True), ("0", False), ("", False)])
def test_the_environment_says_it_of_new_clients(array, daemon, monkeypatch, value, strict):
    monkeypatch.setenv("CAID_SOFTCUDA_STRICT", value)
    array.publish("a", replace=True)
    with daemon.connect() as c, c.open("a") as a:
        assert (is_refused if strict else is_seen)(a)
    assert is_seen(array)


def test_memory_of_the_host_stays_so(client, soft):
    with caid.strict_device(), client.empty(3, memory="pinned") as a, client.empty(3, memory="managed") as b:
        assert numpy.asarray(a).shape == numpy.asarray(b).shape == (3,)
