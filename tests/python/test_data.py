# SPDX-License-Identifier: Apache-2.0
"""Arrays of data: create(data=), array() and publish_many() of what libraries have, and tensors of types that
NumPy has no word for."""

import array as plain_arrays

import numpy as np
import pytest
from conftest import in_thread, n_leases, wait_until

import caid
from caid import _caid

FOUR = np.arange(4, dtype="<f4")


class Bfloat16:
    """A tensor on the host as PyTorch's of bfloat16: by DLPack alone. What NumPy asks for raises."""

    def __init__(self, bits, shape=None, device=(1, 0)):
        self.bits = np.array(bits, "<u2").reshape(np.shape(bits) if shape is None else shape)
        self.ndim, self.shape = self.bits.ndim, self.bits.shape
        self.device = device

    def __array__(self, *_args, **_options):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, max_version=None):
        steps = tuple(step // 2 for step in self.bits.strides)
        address = self.bits.ctypes.data
        return _caid.dlpack_export(self, address, self.device, (4, 16, 1), self.shape, steps, 0, max_version is not None)


def bits_of(a):
    return a.view("<u2").copy_to_host()


SOURCES = {
    "NumPy": (FOUR, FOUR),
    "strided": (np.arange(24, dtype="<i2").reshape(4, 6)[::-2, 1::2], np.arange(24, dtype="<i2").reshape(4, 6)[::-2, 1::2]),
    "record": (np.array([(1, 2.5)], [("a", "<i4"), ("b", "<f8")]), np.array([(1, 2.5)], [("a", "<i4"), ("b", "<f8")])),
    "no elements": (np.zeros((0, 3), "<c8"), np.zeros((0, 3), "<c8")),
    "list": ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
    "scalar": (2.5, np.array(2.5)),
    "bytes": (b"abc", np.frombuffer(b"abc", "u1")),
    "buffer": (plain_arrays.array("d", [1, 2]), np.array([1.0, 2.0])),
}


@pytest.mark.parametrize("data, expected", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("name", [None, "x"])
def test_the_array_is_as_the_data(client, data, expected, name):
    make = client.array if name is None else lambda data: client.create(name, data=data)
    with make(data) as a:
        assert (a.shape, a.dtype, a.name, a.created) == (expected.shape, expected.dtype, name, True)
        assert a.copy_to_host().tobytes() == expected.tobytes()
    if name is not None:
        with client.open(name) as a:
            assert a.copy_to_host().tobytes() == expected.tobytes()
        client.unlink(name)
    assert n_leases(client) == 0


@pytest.mark.parametrize("memory", ["device", "pinned", "mapped", "managed"])
def test_arrays_of_devices_are_data(client, memory):
    with client.array(FOUR, memory=memory) as a, client.array(a[::2]) as b, client.create("c", data=a) as c:
        assert (a.memory, b.memory, c.name) == (memory, "device", "c")
        np.testing.assert_array_equal(b.copy_to_host(), FOUR[::2])
        np.testing.assert_array_equal(c.copy_to_host(), FOUR)
        if memory == "device":
            with caid.as_array(a) as foreign, client.array(foreign) as d:
                np.testing.assert_array_equal(d.copy_to_host(), FOUR)
    client.unlink("c")


def test_a_type_converts_what_is_on_the_host(client):
    with client.array([1, 2], "<f2") as a, client.array(FOUR, "<i8", order="F") as b, client.create("c", None, "|u1", data=[3]) as c:
        assert (a.typestr, b.typestr, c.typestr) == ("<f2", "<i8", "|u1")
        assert a.copy_to_host().tolist() == [1, 2] and b.copy_to_host().tolist() == [0, 1, 2, 3]
        with pytest.raises(TypeError, match="types differ"):
            client.array(a, "<f4")
    client.unlink("c")


def test_what_is_no_data(client):
    for call, error in [
        (lambda: client.create("x"), TypeError),
        (lambda: client.create("x", 3, data=FOUR), TypeError),
        (lambda: client.array(object()), caid.InvalidError),
        (lambda: client.create("x", data=[None]), caid.InvalidError),
        (lambda: client.array(FOUR, "(2,)<f4"), caid.InvalidError),
        (lambda: client.publish_many("s/", {"a": FOUR, "b": 5}), TypeError),
        (lambda: client.publish_many("s/", {"a": FOUR, "b": np.array([None])}), caid.InvalidError),
    ]:
        with pytest.raises(error):
            call()
    assert client.list() == [] and n_leases(client) == 0


def test_the_name_appears_when_the_data_are_there(client, streams):
    """The data's own work is held up: until it is done nobody sees the name."""
    s, _ = streams
    with client.zeros(4, "<f4") as source:
        s.hold_up_copy(source, 7)
        thread, made = in_thread(lambda: client.create("x", data=source, metadata={"step": 1}, ttl=1000))
        wait_until(lambda: n_leases(client) == 2 or made)
        assert client.list() == [] and made == []
        s.gate.set()
        thread.join()
        with made.pop() as a, client.open("x") as b:
            assert (b.copy_to_host() == 7).all() and b.metadata == {"step": 1} and a.generation == b.generation
        assert client.show("x").entry.ttl_ns > 0
    client.unlink("x")


def test_a_name_that_is_taken_is_left_alone(client):
    with client.create("x", data=FOUR) as a:
        with pytest.raises(caid.ExistsError):
            client.create("x", data=FOUR + 1)
        with client.create("x", data=FOUR + 1, exist_ok=True) as b:
            assert not b.created and b.generation == a.generation
            np.testing.assert_array_equal(b.copy_to_host(), FOUR)
        with pytest.raises(caid.ExistsError, match="shape"):
            client.create("x", data=FOUR[1:], exist_ok=True)
    client.unlink("x")
    with client.create("x", data=FOUR + 1, exist_ok=True) as b:
        assert b.created and b.copy_to_host().tolist() == [1, 2, 3, 4]
    client.unlink("x")
    assert n_leases(client) == 0


def test_sets_of_what_libraries_have(client):
    with client.array(FOUR + 1) as own:
        client.publish_many("m/", {"numpy": FOUR, "bf16": Bfloat16([1, 2]), "own": own, "step": np.int64(3)})
    assert n_leases(client) == 0
    with client.open_set("m/") as s:
        assert sorted(s) == ["bf16", "numpy", "own", "step"]
        np.testing.assert_array_equal(s["numpy"].copy_to_host(), FOUR)
        np.testing.assert_array_equal(s["own"].copy_to_host(), FOUR + 1)
        assert "bfloat16" in repr(s["bf16"]) and bits_of(s["bf16"]).tolist() == [1, 2]
        assert s["step"].shape == () and s["step"].copy_to_host() == 3
    client.unlink("m/")


# --- tensors that NumPy has no word for -----------------------------------------------------


def test_bfloat16_of_the_host_is_taken(client, daemon, monkeypatch):
    monkeypatch.setenv("CAID_SOCKET", daemon.address)
    six = Bfloat16(range(6), (2, 3))
    with client.array(six) as a, client.create("x", data=six) as b, client.empty((2, 3), "bfloat16") as c:
        c.copy_from(six)
        for array in a, b, c:
            assert "bfloat16" in repr(array) and bits_of(array).tolist() == six.bits.tolist()
        with caid.to_device(six, client=client) as d, caid.to_device(six, copy=False, client=client) as e:
            assert "bfloat16" in repr(d) and bits_of(d).tolist() == six.bits.tolist()
            assert "bfloat16" in repr(e) and e.shape == (2, 3)
        a.copy_from_host(Bfloat16(range(5, 11), (2, 3)))
        out = Bfloat16([0] * 6, (2, 3))
        assert a.copy_to_host(out=out) is out and out.bits.tolist() == [[5, 6, 7], [8, 9, 10]]
        c.copy_to(out)
        assert out.bits.tolist() == six.bits.tolist()
    client.unlink("x")


def test_bfloat16_is_assigned_and_broadcast(client):
    with client.zeros((2, 3), "bfloat16") as a:
        for key, x, expected in [
            (np.s_[:], Bfloat16([[1, 2, 3], [4, 5, 6]]), [[1, 2, 3], [4, 5, 6]]),
            (np.s_[1], Bfloat16([7, 8, 9]), [[1, 2, 3], [7, 8, 9]]),
            (np.s_[:, 1:], Bfloat16([[5], [6]]), [[1, 5, 5], [7, 6, 6]]),
            (np.s_[0], Bfloat16([[[4]]]), [[4, 4, 4], [7, 6, 6]]),
            (np.s_[1, 2], Bfloat16(3), [[4, 4, 4], [7, 6, 3]]),
        ]:
            a[key] = x
            assert bits_of(a).tolist() == expected
        for x in Bfloat16([1, 2]), Bfloat16([[1, 2, 3]] * 3):
            with pytest.raises(ValueError, match="cannot be broadcast"):
                a[:] = x
        with client.zeros(2, "<f4") as b, pytest.raises(TypeError, match="types differ"):
            b.copy_from(Bfloat16([1, 2]))


def test_a_target_that_is_elsewhere_is_refused(client):
    with client.zeros(2, "bfloat16") as a:
        for out in object(), 5, [0, 0]:
            with pytest.raises(TypeError, match="neither array nor buffer"):
                a.copy_to_host(out=out)
        with pytest.raises(TypeError, match="neither array nor buffer"):
            a.copy_to_host(out=Bfloat16([0, 0], device=(13, 0)))


def test_pytorchs_tensors(client):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for dtype in torch.bfloat16, torch.float32, torch.int64, torch.bool:
        x = torch.arange(6).reshape(2, 3).to(dtype)
        with client.array(x) as a, client.array(x.T) as b, caid.to_device(x, client=client) as c:
            for array, expected in (a, x), (b, x.T), (c, x):
                out = torch.zeros_like(expected, memory_format=torch.contiguous_format)
                assert array.copy_to_host(out=out) is out and torch.equal(out, expected)
            a[:] = x[:1]
            a.copy_to_host(out=(out := torch.empty_like(x)))
            assert torch.equal(out, x[:1].expand(2, 3))
    net = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    client.publish_many("net/", net.state_dict())
    with client.open_set("net/", "rw") as s:
        out = torch.empty_like(net.weight)
        s["weight"].copy_to_host(out=out.detach())
        assert torch.equal(out, net.weight)
    client.unlink("net/")
