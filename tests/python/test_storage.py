# SPDX-License-Identifier: Apache-2.0
"""caid.storage: GDP-3 of GT4Py, held against NumPy (docs/STORAGE.md has each statement's test)."""

import copy
import itertools
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from conftest import Stream, refuses, softcuda
from hypothesis.extra.numpy import array_shapes, arrays, basic_indices
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

import caid
import caid.storage as cs
from caid.storage._interface import data_interface

KINDS = {
    cs.CPUStorage: {},
    cs.GPUStorage: {"device": "gpu", "managed": None},
    cs.SoftwareManagedGPUStorage: {"device": "gpu"},
    cs.CUDAManagedGPUStorage: {"device": "gpu", "managed": "cuda"},
}
CLEAN, HOST_DIRTY, DEVICE_DIRTY = (
    getattr(cs.SyncState, f"SYNC_{name}") for name in ("CLEAN", "HOST_DIRTY", "DEVICE_DIRTY")
)


@pytest.fixture(autouse=True)
def default_client(daemon, monkeypatch):
    monkeypatch.setenv("CAID_SOCKET", daemon.address)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def options(request):
    return KINDS[request.param]


def contents(storage):
    """By the block that says of nothing that it was modified; the same on both sides."""
    sides = [None, "gpu"] if storage.device else [None]
    found = []
    for side in sides:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with cs.fields(read=[storage], device=side) as (a,):
                found.append(np.array(a) if side is None else a.copy_to_host())
    assert all(each.tobytes() == found[0].tobytes() for each in found)
    return found[0]


def device_array(values):
    """A caid array that nobody closes."""
    return cs.storage(values, device="gpu", managed=None)._array


def on_gpu(n):
    return cs.ones((n,), device="gpu", managed=None)


def n_copied():
    """Copies by this process so far."""
    calls = (line.split() for line in softcuda("calls").splitlines())
    return sum(int(n) for name, n in calls if name.startswith("cuMemcpy"))


def on_device(storage):
    return caid.as_array(storage).copy_to_host()


# --- where points lie -----------------------------------------------------------------------


@pytest.mark.parametrize("defaults, ijk, kji", [
    ("F", (2, 1, 0), (2, 1, 0)),
    ("C", (0, 1, 2), (0, 1, 2)),
    ("gtx86", (0, 1, 2), (2, 1, 0)),
    ("gtcuda", (2, 1, 0), (0, 1, 2)),
    ("gtmc", (2, 0, 1), (1, 0, 2)),
])
def test_layouts_of_presets(defaults, ijk, kji):
    for dims, layout in ("IJK", ijk), ("KJI", kji):
        s = cs.empty((3, 4, 5), "f4", defaults=defaults, dims=dims, device=None)
        falling = sorted(range(3), key=lambda axis: -s.strides[axis])
        assert tuple(map(falling.index, range(3))) == layout


# gt4py/storage/cartesian/layout_registry.py of gt4py 1.1.12, all that is registered there: the place of the
# strides of I, J and K, alignment (of points: empty() of interface.py beside it), device. Those of data are
# the largest ones. Then backends of the time of GDP-3: src/gt4py/backend/gt_backends.py of 2021.
OF_GT4PY = {
    "dace:cpu": ((1, 2, 0), 1, None),
    "dace:cpu_kfirst": ((0, 1, 2), 1, None),
    "dace:cpu_KJI": ((2, 1, 0), 1, None),
    "dace:gpu": ((2, 1, 0), 1, "gpu"),
    "dace:gpu_IJK": ((0, 1, 2), 1, "gpu"),
    "debug": ((0, 1, 2), 1, None),
    "gt:cpu_ifirst": ((2, 1, 0), 1, None),
    "gt:cpu_kfirst": ((0, 1, 2), 1, None),
    "gt:gpu": ((2, 1, 0), 32, "gpu"),
    "numpy": ((0, 1, 2), 1, None),
    "gtx86": ((0, 1, 2), 1, None),
    "gtmc": ((2, 0, 1), 8, None),
    "gtcuda": ((2, 1, 0), 32, "gpu"),
}


@pytest.mark.parametrize("name", OF_GT4PY)
@pytest.mark.parametrize("dims", ["IJK", "IJ", "JK", "K", "0", "IJK01", "IK0", "KJI", "K1I0"])
def test_presets_are_gt4pys(name, dims):
    places, points, device = OF_GT4PY[name]
    s = cs.empty(range(3, 3 + len(dims)), "f4", defaults=name, dims=dims, halo=[1] * len(dims))
    data = sorted(set(dims) - set("IJK"), reverse=name in ("gtmc", "gtcuda"))
    falling = data + sorted(set(dims) & set("IJK"), key=lambda axis: places["IJK".index(axis)])
    step, unit = 4, 4 * points
    for nth, dim in enumerate(reversed(falling)):
        assert s.strides[dims.index(dim)] == step
        step *= s.shape[dims.index(dim)]
        step = -(-step // unit) * unit if nth == 0 else step
    assert s.device == device
    for told in s.__gt_data_interface__.values():
        assert (told["data"][0] + sum(s.strides)) % unit == 0


def test_presets_of_ones_own():
    cs.register_defaults("mine", lambda dims: range(len(dims))[::-1], alignment_size=64, device="gpu")
    s = cs.empty((3, 4), defaults="mine")
    assert s.strides == (8, 64) and isinstance(s, cs.SoftwareManagedGPUStorage)
    assert isinstance(cs.empty((3, 4), defaults="mine", device=None), cs.CPUStorage)


shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)
dtypes = st.sampled_from(["f8", "f4", "i2", "u1", "?", "c16", "<u4", ">i4", [("a", "f4"), ("b", "i1")]])


@st.composite
def geometries(draw):
    shape = draw(shapes)
    halo = tuple((a := draw(st.integers(0, n)), draw(st.integers(0, n - a))) for n in shape)
    options = {"halo": halo, "alignment_size": draw(st.sampled_from([1, 2, 8, 24, 64, 512]))}
    if draw(st.booleans()):
        options["layout"] = draw(st.permutations(range(len(shape))))
    if draw(st.booleans()):
        options["aligned_index"] = tuple(draw(st.integers(0, n)) for n in shape)
    return shape, draw(dtypes), options


@given(geometry=geometries(), kind=st.sampled_from(list(KINDS)))
@example(geometry=((5,), "f8", {"halo": ((0, 0),), "alignment_size": 3}), kind=cs.CPUStorage)
@settings(max_examples=60)
def test_strides_and_alignment(daemon, geometry, kind):
    shape, dtype, options = geometry
    s = cs.empty(shape, dtype, **options, **KINDS[kind])
    assert type(s) is kind and (s.shape, s.dtype) == (shape, np.dtype(dtype))
    assert s.nbytes == np.empty(shape, dtype).nbytes and s.halo == options["halo"]
    layout, alignment = options.get("layout", range(len(shape))), options["alignment_size"]
    step = s.dtype.itemsize
    for nth, axis in enumerate(sorted(range(len(shape)), key=lambda axis: -layout[axis])):
        assert s.strides[axis] >= step and (nth == 0 or s.strides[axis] % alignment == 0)
        step = s.strides[axis] * max(shape[axis], 1)
    index = options.get("aligned_index", tuple(start for start, _ in options["halo"]))
    for told in s.__gt_data_interface__.values() if 0 not in shape else ():
        address = told["data"][0] + sum(i * each for i, each in zip(index, s.strides))
        assert address % alignment == address % s.dtype.alignment == 0


def test_search_order():
    data = np.asfortranarray(np.zeros((3, 4, 5), "f4"))
    assert cs.storage(data).strides == data.strides  # of the data
    assert cs.storage(data, defaults="C").strides == (80, 20, 4)  # the preset before it
    assert cs.storage(data, defaults="C", layout=(1, 0, 2)).strides == (20, 60, 4)  # what is given first
    assert cs.storage(data).dtype == "f4" and cs.storage(data, dtype="f8").dtype == "f8"
    assert cs.empty((2, 2)).dtype == np.float64 and cs.empty((2, 2)).halo == ((0, 0), (0, 0))
    of = cs.ones((3, 5), "f4", halo=(1, 1), alignment_size=64, device="gpu", managed=None)
    for source in of, DataArray(of):
        s = cs.storage(source, defaults="numpy")
        assert s.strides == (20, 4) and s.halo == of.halo and isinstance(s, cs.CPUStorage)
    assert cs.storage(of, defaults="gt:gpu").strides == (4, 128)
    assert cs.storage(of).strides == of.strides == (64, 4) and isinstance(cs.storage(of), cs.GPUStorage)
    assert cs.storage(of, alignment_size=None).strides == cs.empty((3, 5), "f4", alignment_size=None).strides == (20, 4)


@pytest.mark.parametrize("call, message", [
    (lambda: cs.storage(), "no shape"),
    (lambda: cs.empty((3, -1)), "negative"),
    (lambda: cs.empty((3,), object), "dtype object"),
    (lambda: cs.empty((3,), defaults="gtx87"), "gtx87"),
    (lambda: cs.empty((3, 4), layout=(0, 0)), "permutation"),
    (lambda: cs.empty((3, 4), dims="IX"), "dims"),
    (lambda: cs.empty((3, 4), halo=(1,)), "halo"),
    (lambda: cs.empty((3, 4), halo=(2, 1)), "halo"),
    (lambda: cs.empty((3,), halo=5), "halo 5"),
    (lambda: cs.empty((3,), halo=((1, 1, 1),)), "halo"),
    (lambda: cs.empty((3, 4), aligned_index=(4, 0)), "aligned_index"),
    (lambda: cs.empty((3, 4), alignment_size=0), "alignment_size"),
    (lambda: cs.empty((3, 4), device="cpu"), "device 'cpu'"),
    (lambda: cs.empty((3, 4), managed="me"), "managed 'me'"),
    (lambda: cs.as_storage(), "wraps a buffer"),
    (lambda: cs.as_storage(np.ones((2, 3)), layout=(1, 0)), "strides"),
    (lambda: cs.as_storage(np.ones(9), alignment_size=1 << 40), "not aligned"),
    (lambda: cs.as_storage(np.ones(3), device="gpu", managed=None), "no buffer on a device"),
    (lambda: cs.as_storage(np.ones(3), device="gpu", managed="cuda"), "managed memory"),
    (lambda: cs.as_storage(np.ones(3), shape=(4,)), "shape"),
    (lambda: cs.as_storage(np.ones(3), dtype="f4"), "dtype"),
    (lambda: cs.as_storage(np.ones(3), on_gpu(3)), "sync_state"),
    (lambda: cs.storage(np.ones(3), on_gpu(3)), "sync_state"),
    (lambda: cs.storage(np.ones(3), on_gpu(4), sync_state=cs.SyncState()), r"\(3,\), float64 and \(4,\), float64"),
    (lambda: cs.storage(np.ones(3, "f4"), on_gpu(3), sync_state=cs.SyncState()), "float32"),
    (lambda: cs.as_storage(np.ones(3), on_gpu(4), sync_state=cs.SyncState()), "shape"),
    (lambda: cs.storage(on_gpu(3), on_gpu(3), sync_state=cs.SyncState()), "no buffer on the host"),
    (lambda: cs.as_storage(on_gpu(3), on_gpu(3), sync_state=cs.SyncState()), "no buffer on the host"),
    (lambda: cs.as_storage(np.ones(3), on_gpu(3), managed=None), "both sides"),
    (lambda: cs.as_storage(np.ones(3), on_gpu(3), managed="cuda"), "both sides"),
    (lambda: cs.as_storage(np.ones(3), on_gpu(3), device=None), "both sides"),
    (lambda: cs.as_storage(TwoSided(), managed=None), "both sides"),
    (lambda: cs.as_storage(np.ones(3), device="gpu", sync_state=cs.SyncState()), "not given"),
    (lambda: cs.as_storage(None, on_gpu(3), managed="gt4py", sync_state=cs.SyncState(HOST_DIRTY)), "not given"),
    (lambda: cs.storage(Foreign(None, np.ones(3), [], data=None)), "no 'data'"),
    (lambda: cs.storage(Foreign("cpu", np.ones(3), [])), "the key 'cpu'"),
])
def test_what_is_refused(call, message):
    with pytest.raises(caid.InvalidError, match=message):
        call()


def test_arguments_that_are_not_there():
    for call in (lambda: cs.empty((3,), order="C"), lambda: cs.empty_like(cs.empty((3,)), shape=(4,)),
                 lambda: cs.Storage(), lambda: cs.as_storage([1, 2]), lambda: cs.empty_like(np.ones(3))):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(cs.empty((3,)))


# --- creation -------------------------------------------------------------------------------


def test_creation(options):
    s = cs.full((3, 4), 5, "i4", halo=(1, (0, 2)), layout=(1, 0), alignment_size=32, **options)
    assert (contents(s) == 5).all()
    for like, value in (cs.ones_like(s), 1), (cs.zeros_like(s), 0), (cs.full_like(s, 9), 9), (cs.empty_like(s), None):
        assert (type(like), like.shape, like.dtype) == (type(s), s.shape, s.dtype)
        assert (like.strides, like.halo) == (s.strides, s.halo)
        assert value is None or (contents(like) == value).all()
    assert cs.zeros_like(s, "f8", halo=(0, 0)).halo == ((0, 0), (0, 0)) and cs.ones((2,)).dtype == float
    made = cs.storage(np.arange(12).reshape(3, 4), **options)
    assert (contents(made) == np.arange(12).reshape(3, 4)).all()
    again = cs.storage(made)
    assert type(again) is type(made) and (contents(again) == contents(made)).all()
    again[...] = 0
    assert contents(made)[2, 3] == 11
    assert cs.storage(copy=False, shape=(2, 2)).shape == (2, 2)
    host, device = np.zeros(3), cs.zeros((3,), device="gpu", managed=None)
    taken, copied = (cs.storage(host, device, sync_state=cs.SyncState(), copy=copy) for copy in (False, True))
    host[...], device[...] = 1, 2
    taken.set_host_modified()
    assert contents(taken).tolist() == contents(device).tolist() == [1] * 3 and not contents(copied).any()


@pytest.mark.parametrize("dtype", ["V3", "S3", "U2", "M8[s]", "?", [("a", "f4"), ("b", "S2")]])
def test_zeros_and_ones_are_numpys(dtype, options):
    for name in "zeros", "ones":
        made = getattr(cs, name)((2, 3), dtype, **options)
        like = getattr(cs, f"{name}_like")(cs.empty((2, 3), dtype, **options))
        expected = getattr(np, name)((2, 3), dtype)
        assert contents(made).tobytes() == contents(like).tobytes() == expected.tobytes()


def test_of_two_buffers_the_newer_is_copied():
    host, device = np.ones(3), on_gpu(3)
    device[...] = 2
    for state, value in (CLEAN, 1), (HOST_DIRTY, 1), (DEVICE_DIRTY, 2):
        for kind, options in {**KINDS, cs.CPUStorage: {"device": None}}.items():
            made = cs.storage(host, device, sync_state=cs.SyncState(state), **options)
            assert type(made) is kind and (contents(made) == value).all()
    assert cs.storage(TwoSided()).device == "gpu"
    for source in device, np.full(3, 2.0), [2.0] * 3, TwoSided(), device_array(np.full(3, 2.0)):
        made = cs.storage(device_data=source)
        assert made.device == "gpu" and (contents(made) == 2).all()
        assert cs.storage(device_data=source, device=None).to_numpy().tolist() == [2.0] * 3


def test_a_copy(options):
    s = cs.zeros((5, 6), "f4", halo=(1, 2), layout=(1, 0), **options)
    s[1:4, 2] = 3
    for other in (s.copy(), copy.copy(s), copy.deepcopy(s)):
        assert type(other) is type(s) and (other.halo, other.strides) == (s.halo, s.strides)
        assert (contents(other) == contents(s)).all()
        other[...] = 9
        assert contents(s).sum() == 9


def test_wrapping_copies_nothing():
    data = np.arange(6.0).reshape(2, 3)
    s = cs.as_storage(data, halo=(0, 1))
    data[0, 0] = 7
    assert s[0, 0] == 7 and s.halo == ((0, 0), (1, 1))
    device = cs.storage(data, device="gpu", managed=None)
    wrapped = cs.as_storage(device_data=device, managed=None)
    wrapped[1, 1] = 9
    assert device[1, 1] == 9 and isinstance(wrapped, cs.GPUStorage)
    both = cs.as_storage(data, device, sync_state=cs.SyncState(DEVICE_DIRTY))
    assert both[1, 1] == 9 and data[1, 1] == 9
    device = cs.storage(data, device="gpu", managed=None)
    for buffers, state in ((data.copy(), None), HOST_DIRTY), ((None, device), DEVICE_DIRTY):
        one = cs.as_storage(*buffers, device="gpu", managed="gt4py")
        assert one.sync_state.state == state and (contents(one) == data).all()
    assert cs.as_storage(np.empty((1, 3, 4))[:0], defaults="F").shape == (0, 3, 4)
    managed = caid.managed_array((3,), "f4")
    assert isinstance(cs.as_storage(managed, device="gpu", managed="cuda"), cs.CUDAManagedGPUStorage)
    view = cs.as_storage(both)
    view[0, 0] = 1
    assert both[0, 0] == 1 and view.sync_state is both.sync_state


def test_arrays_of_a_device_stay_there():
    made = cs.storage(device_array(np.ones((3, 4))), defaults="F")
    assert isinstance(made, cs.SoftwareManagedGPUStorage) and made.strides == (8, 24)
    wrapped = cs.as_storage(device_array(np.ones((3, 4))), managed=None)
    assert isinstance(wrapped, cs.GPUStorage) and (contents(wrapped) == 1).all()


def test_buffers_of_a_storage_bring_its_state():
    s = cs.ones((3, 4), device="gpu")
    state, host, device = s.sync_state, s.to_numpy(), caid.as_array(s)
    one = (host, None), (None, device)
    for buffers, told in [*itertools.product(one, (None, state)), ((host[1:], device[1:]), None)]:
        with pytest.raises(caid.InvalidError, match="its own sync_state"):
            cs.as_storage(*buffers, device="gpu", managed="gt4py", sync_state=told)
    with pytest.raises(caid.InvalidError, match="different parts"):
        cs.as_storage(host[1:], device[:2], sync_state=state)
    with pytest.raises(caid.InvalidError, match="its own sync_state"):
        cs.as_storage(np.ones((3, 4)), device="gpu", sync_state=state)
    wrapped = cs.as_storage(host[1:], device[1:], sync_state=state)
    s.synchronize()
    s[0] = 7
    wrapped[...] = 5
    assert wrapped.sync_state is state and state.state == HOST_DIRTY
    wrapped.synchronize()  # all of the buffer
    assert on_device(s).tolist() == [[7] * 4, [5] * 4, [5] * 4]
    del s, wrapped
    with pytest.raises(caid.InvalidError, match="its own sync_state"):
        cs.as_storage(host, device)  # the state keeps them
    assert cs.as_storage(host, device, sync_state=state).sync_state is state


# --- attributes -----------------------------------------------------------------------------


def test_which_buffers_there_are():
    def has(s):
        names = ("__array_interface__", "__cuda_array_interface__", "sync_state")
        return [hasattr(s, name) for name in names], sorted(map(str, s.__gt_data_interface__)), s.device

    made = {kind: cs.ones((2, 3), **options) for kind, options in KINDS.items()}
    assert has(made[cs.CPUStorage]) == ([True, False, False], ["None"], None)
    assert has(made[cs.GPUStorage]) == ([False, True, False], ["gpu"], "gpu")
    assert has(made[cs.SoftwareManagedGPUStorage]) == ([True, True, True], ["None", "gpu"], "gpu")
    assert has(made[cs.CUDAManagedGPUStorage]) == ([True, True, False], ["None", "gpu"], "gpu")
    assert all(isinstance(s, cs.Storage) and type(s) is kind for kind, s in made.items())
    assert made[cs.GPUStorage].data is None and made[cs.CPUStorage].data.shape == (2, 3)
    assert made[cs.CPUStorage].device_data is None
    for call in made[cs.GPUStorage].to_numpy, made[cs.CPUStorage].to_cupy:
        with pytest.raises(cs.GTNoSuchBufferError):
            call()
    assert made[cs.CPUStorage].to_ndarray().base is not None
    assert cs.GT4PySyncedGPUStorage is cs.SoftwareManagedGPUStorage
    assert cs.CUDASyncedGPUStorage is cs.CudaManagedGPUStorage is cs.CUDAManagedGPUStorage


def test_the_halo_may_be_set(options):
    s = cs.ones((6, 7), "i4", halo=(1, 1), **options)
    strides = s.strides
    s.halo = 2
    assert s.halo == ((2, 2), (2, 2)) == cs.ones((6, 7), "i4", halo=2, **options).halo and s.domain_view.shape == (2, 3)
    s.halo = (2, (0, 3))
    assert s.halo == ((2, 2), (0, 3)) and s.strides == strides
    s.domain_view[...] = 0
    expected = np.ones((6, 7))
    expected[2:4, :4] = 0
    assert (contents(s) == expected).all() and s.domain_view.halo == ((0, 0), (0, 0))
    with pytest.raises(caid.InvalidError):
        s.halo = (4, 0)


@given(shape=array_shapes(max_dims=3, max_side=6), data=st.data())
@settings(max_examples=60)
def test_the_halo_of_a_view_is_what_is_left_of_it(shape, data):
    halo = [(a := data.draw(st.integers(0, n)), data.draw(st.integers(0, n - a))) for n in shape]
    s = cs.zeros(shape, "i4", halo=halo)
    s.domain_view[...] = 1
    for step in 1, -1, 2, -2, -3:
        view = s[tuple(slice(*data.draw(st.tuples(*[st.none() | st.integers(-n, n)] * 2)), step) for n in shape)]
        inside = contents(view.domain_view)
        assert inside.all() and inside.size in (0, contents(view).sum())
    assert s[None, ..., 0].halo == ((0, 0), *halo[:-1])


def test_as_an_array_with_and_without_a_copy():
    s = cs.zeros((2, 3), device="gpu")
    s.synchronize()
    for made in s.__array__(copy=True), s.__array__("f4"):
        made[...] = 7
        assert s.sync_state.state == CLEAN and made.dtype in ("f4", "f8")
    with pytest.raises(ValueError, match="not without a copy"):
        s.__array__("f4", copy=False)
    s.__array__("f8", copy=False)[...] = 7
    assert (contents(s) == 7).all()


def test_it_computes_nothing(options):
    s = cs.ones((2, 3), **options)
    for call in (lambda: np.add(s, 1), lambda: np.sum(s), lambda: np.ones((2, 3)) + s, lambda: bool(s),
                 lambda: s == 1, lambda: s != s.copy()):
        with pytest.raises(TypeError, match="computes nothing|compares no elements"):
            call()
    with pytest.raises(TypeError):
        s + 1
    assert np.transpose(s).shape == (3, 2) and np.transpose(s, (0, 1)).strides == s.strides
    assert np.transpose(s, axes=(1, 0)).shape == s.T.shape == s.transpose(1, 0).shape == (3, 2)
    s.halo = ((0, 1), (1, 2))
    assert s.T.halo == ((1, 2), (0, 1)) and s.transpose(0, 1).halo == s.halo and s.T.domain_view.shape == (0, 1)


def test_what_is_told(options):
    s = cs.ones((4, 5), "f4", halo=(1, (0, 2)), layout=(1, 0), **options)
    for side, told in s.__gt_data_interface__.items():
        assert (told["shape"], told["typestr"], told["strides"], told["halo"]) == ((4, 5), "<f4", s.strides, s.halo)
        assert told["data"][1] is False and "dims" not in told and "release" not in told
        functions = (s.device_to_host, s.set_host_modified) if side is None else (s.host_to_device, s.set_device_modified)
        assert (told["acquire"], told["touch"]) == functions


def test_indexing_as_numpys(options):
    s = cs.zeros((3, 4), "i4", halo=(1, 0), alignment_size=64, **options)
    s.synchronize()
    s[1] = 5
    s.synchronize()
    s[0] = s[1]  # both up to date
    assert contents(s)[0, 0] == 5
    s[np.array(True)] = 6
    assert (contents(s) == 6).all()
    s[2] = np.ones((1, 4))
    assert s[2, 3] == 1 and isinstance(s[..., 2, 3], cs.Storage)
    assert s[None].copy().strides[1:] == s.strides and s[None].halo == ((0, 0), (1, 1), (0, 0))
    zero = cs.full((), 3, alignment_size=64, **options)
    assert zero[()] == 3 and zero.domain_view.shape == () and zero.T[...][()] == 3
    for key in (3, (0, 0, 0), (0, 4)):
        with pytest.raises(IndexError):
            s[key]
    for axes in ((0, 2), (0, 0), (0,)):
        with pytest.raises(ValueError):
            s.transpose(axes)
    records = cs.zeros((2, 2), [("a", "f4"), ("b", "i1")], **options)
    first = records[0, 0]
    first["a"] = 9  # a copy
    records[...] = np.array((1.5, 2), records.dtype)
    assert (contents(records)["a"] == 1.5).all() and (records["b"] == 2).all()


def test_each_side_has_its_strides():
    host, device = np.ones((4, 8))[:, :5], device_array(np.full((4, 5), 2.0))
    s = cs.as_storage(host, device, sync_state=cs.SyncState(DEVICE_DIRTY))
    told = s.__gt_data_interface__
    assert told[None]["strides"] == (64, 8) and told["gpu"]["strides"] == (40, 8)
    assert (contents(s) == 2).all() and (host == 2).all()


def test_one_side_of_a_storage_is_not_wrapped_alone():
    s = cs.ones((3, 4), device="gpu", alignment_size=64)
    for options in {"managed": None}, {"device": None}:
        with pytest.raises(caid.InvalidError, match="not be in sync"):
            cs.as_storage(s, **options)
    s.halo = (1, 0)
    assert cs.as_storage(s[1:, 1::2]).sync_state is s.sync_state  # whatever is aligned there


# --- every door -----------------------------------------------------------------------------


def through_dict(side, values=None):
    def use(s):
        told = s.__gt_data_interface__[side]
        told["acquire"]()
        plain = {name: told[name] for name in ("shape", "typestr", "strides", "data", "version")}
        if side is None:
            a = np.asarray(type("Described", (), {"__array_interface__": plain})())
            out = a.copy()
            if values is not None:
                a[...] = values
        else:
            a = caid.from_cuda_array_interface(plain, s)
            out = a.copy_to_host()
            if values is not None:
                a.copy_from_host(values)
        if values is not None:
            told["touch"]()
        return out

    return use


def by_fields(device, values=None):
    def use(s):
        side = {"read": [s]} if values is None else {"write": [s]}
        with cs.fields(**side, device=device) as (a,):
            if values is None:
                return np.array(a) if device is None else a.copy_to_host()
            a.__setitem__(Ellipsis, values) if device is None else a.copy_from_host(values)

    return use


READS = {
    "index": lambda s: np.array([s[i] for i in np.ndindex(s.shape)]).reshape(s.shape),
    "advanced": lambda s: s[np.ones(s.shape, "?")].reshape(s.shape),
    "copy": lambda s: cs.storage(s, device=None).to_numpy(),
    "fields on the host": by_fields(None),
    "fields on the device": by_fields("gpu"),
    "to_numpy": lambda s: s.to_numpy().copy(),
    "asarray": lambda s: np.asarray(s).copy(),
    "array": lambda s: np.array(s, copy=True),
    "memoryview": lambda s: np.asarray(s.data).copy(),
    "CAI": on_device,
    "DLPack": lambda s: caid.from_dlpack(s).copy_to_host() if s.device else np.from_dlpack(s).copy(),
    "acquire on the host": through_dict(None),
    "acquire on the device": through_dict("gpu"),
}
WRITES = {
    "index": lambda v: lambda s: s.__setitem__((Ellipsis, *[slice(None)] * s.ndim), v),
    "advanced": lambda v: lambda s: s.__setitem__(np.ones(s.shape, "?"), v.reshape(-1)),
    "storage": lambda v: lambda s: s.__setitem__(Ellipsis, cs.storage(v)),
    "device array": lambda v: lambda s: s.__setitem__(Ellipsis, device_array(v)),
    "fields on the host": lambda v: by_fields(None, v),
    "fields on the device": lambda v: by_fields("gpu", v),
    "to_numpy": lambda v: lambda s: s.to_numpy().__setitem__(Ellipsis, v),
    "asarray": lambda v: lambda s: np.asarray(s).__setitem__(Ellipsis, v),
    "memoryview": lambda v: lambda s: np.asarray(s.data).__setitem__(Ellipsis, v),
    "CAI": lambda v: lambda s: caid.as_array(s).copy_from_host(v),
    "DLPack": lambda v: lambda s: written_by_dlpack(s, v),
    "touch on the host": lambda v: through_dict(None, v),
    "touch on the device": lambda v: through_dict("gpu", v),
}
HOST = ("on the host", "to_numpy", "asarray", "array", "memoryview")
DEVICE = ("on the device", "CAI")


def written_by_dlpack(s, v):
    try:
        caid.from_dlpack(s).copy_from_host(v)
    except BufferError:  # the host's side is ordinary memory
        np.asarray(s)[...] = v


def doors(table, s):
    """Those that a storage has."""
    missing = () if s._host is not None else HOST
    missing += () if s.device else DEVICE
    return {name: door for name, door in table.items() if not name.endswith(missing) or name.startswith("fields")}


@pytest.mark.filterwarnings("ignore:a .*Storage has no buffer:RuntimeWarning")
def test_what_is_written_through_a_door_is_read_through_every_other(options):
    s = cs.zeros((3, 4), "i4", halo=(1, 0), alignment_size=64, **options)
    writes, reads = doors(WRITES, s), doors(READS, s)
    assert len(writes) >= 7 and len(reads) >= 6
    for n, (write, read) in enumerate(itertools.product(writes, reads)):
        values = np.arange(n, n + 12, dtype="i4").reshape(3, 4)
        writes[write](values)(s)
        assert (reads[read](s) == values).all(), (write, read)
        v = s[::2, 1:]
        writes[write](values[::2, 1:] + 1)(v)
        values[::2, 1:] += 1
        assert (reads[read](s) == values).all(), (write, read)


class Storages(RuleBasedStateMachine):
    """Storages and views of them beside NumPy arrays, by any sequence of doors."""

    views = Bundle("views")

    @initialize(target=views, shape=array_shapes(min_dims=0, max_dims=3, max_side=4), dtype=st.sampled_from(["i4", "f8", "u1"]),
                kind=st.sampled_from(list(KINDS)), alignment=st.sampled_from([1, 32]), data=st.data())
    def make(self, shape, dtype, kind, alignment, data):
        values = np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)
        layout = data.draw(st.permutations(range(len(shape))))
        halo = tuple((n > 2, n > 3) for n in shape)
        made = cs.storage(values, alignment_size=alignment, layout=layout, halo=halo, **KINDS[kind])
        return made, values.copy()

    @rule(target=views, of=views, data=st.data())
    def index(self, of, data):
        s, model = of
        key = data.draw(basic_indices(model.shape, allow_newaxis=True, max_dims=3))
        view, expected = s[key], model[key]
        if isinstance(view, cs.Storage):
            return view, expected
        assert view == expected and view.dtype == expected.dtype
        return multiple()

    @rule(of=views, data=st.data(), value=st.integers(0, 99))
    def set_by_index(self, of, data, value):
        s, model = of
        key = data.draw(basic_indices(model.shape) | arrays("?", model.shape))
        s[key] = model[key] = value

    @rule(of=views, data=st.data())
    def get_by_mask(self, of, data):
        mask = data.draw(arrays("?", of[1].shape))
        assert (of[0][mask] == of[1][mask]).all()

    @rule(target=views, of=views)
    def transpose(self, of):
        return of[0].transpose(), of[1].T

    @rule(target=views, of=views)
    def domain(self, of):
        s, model = of
        assert all(start + end <= n for (start, end), n in zip(s.halo, s.shape))
        return s.domain_view, model[(*(slice(a, n - b) for (a, b), n in zip(s.halo, model.shape)), ...)]

    @rule(of=views, other=views)
    def set_another(self, of, other):
        if of[1].shape == other[1].shape:
            of[0][...] = other[0]
            of[1][...] = other[1].copy()

    @rule(of=views, name=st.sampled_from(sorted(WRITES)), value=st.integers(0, 99))
    def write(self, of, name, value):
        s, model = of
        door = doors(WRITES, s).get(name)
        if door is not None and model.size:
            values = np.arange(value, value + model.size, dtype=model.dtype).reshape(model.shape)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                door(values)(s)
            model[...] = values

    @rule(of=views, name=st.sampled_from(sorted(READS)))
    def read(self, of, name):
        s, model = of
        door = doors(READS, s).get(name)
        if door is not None and model.size:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                np.testing.assert_array_equal(door(s), model)

    @rule(of=views, call=st.sampled_from(["synchronize", "device_to_host", "host_to_device"]))
    def synchronize(self, of, call):
        getattr(of[0], call)()
        if call == "synchronize" and hasattr(of[0], "sync_state"):
            assert of[0].sync_state.state == CLEAN


TestStorages = Storages.TestCase
TestStorages.settings = settings(max_examples=60, stateful_step_count=25)


# --- the sync state -------------------------------------------------------------------------


def test_the_state_is_that_of_all_views():
    s = cs.zeros((4, 4), device="gpu")
    v, t = s[1:], s.T[:2]
    assert v.sync_state is t.sync_state is s.sync_state and s.sync_state.state == HOST_DIRTY
    s.synchronize()
    assert v.sync_state.state == CLEAN
    v.set_device_modified()
    assert t.sync_state.state == DEVICE_DIRTY and "DEVICE_DIRTY" in repr(t.sync_state)
    t.set_synchronized()
    assert s.sync_state.state == CLEAN
    with pytest.raises(caid.InvalidError):
        s.sync_state.state = 3
    for kind, options in KINDS.items():
        if kind is not cs.SoftwareManagedGPUStorage:
            other = cs.ones((2, 2), **options)
            for call in ("device_to_host", "host_to_device"):
                getattr(other, call)(force=True)
            for call in ("set_device_modified", "set_host_modified", "set_synchronized", "synchronize"):
                getattr(other, call)()
            assert (contents(other) == 1).all()


def test_what_is_modified_behind_its_back_is_told():
    s = cs.zeros((3, 3), device="gpu")
    host, device = s.to_numpy(), caid.as_array(s)
    device.copy_from_host(np.ones((3, 3)))
    assert s[0, 0] == 1 and host[0, 0] == 1  # the door has said so
    host[...] = 2
    assert on_device(s)[0, 0] == 1
    host[...] = 2
    s.set_host_modified()
    assert on_device(s)[0, 0] == 2
    s.device_to_host()
    host[...] = 3
    s.set_synchronized()
    s.device_to_host(force=True)
    assert host[0, 0] == 2
    host[...] = 4
    s.set_synchronized()
    s[0] = 5
    s.host_to_device(force=True)  # all of it
    assert on_device(s)[:2, 0].tolist() == [5, 4]


def test_nothing_is_copied_where_nothing_is_modified():
    s = [cs.zeros((64, 64), device="gpu") for _ in range(3)]
    for each in s:
        each.synchronize()
    before = n_copied()
    for device in (None, "gpu", None):
        with cs.fields(read=s, device=device):
            pass
    for each in s:
        each.synchronize()
        each.__gt_data_interface__
    assert n_copied() == before
    with cs.fields(write=s[:1], device="gpu"):
        pass
    with cs.fields(read=s, device="gpu"):
        pass
    assert n_copied() == before
    with cs.fields(read=s):
        pass
    assert n_copied() == before + 1


def test_who_modifies_one_side_has_all_of_it():
    s = cs.zeros((3, 3), "i4", device="gpu")
    host = s.to_numpy()
    s.synchronize()
    s[:1].set_device_modified()
    host[1] = 7
    s[2:].set_host_modified()
    assert on_device(s).tolist() == [[0] * 3, [7] * 3, [0] * 3]


def test_what_a_view_has_modified_is_copied_alone():
    s = cs.zeros((100, 100), "u1", device="gpu")
    s.synchronize()
    host = s.to_numpy()
    s.synchronize()
    s[10:12] = 1
    host[50] = 7  # nobody is told
    assert on_device(s)[10:12].all() and not on_device(s)[50].any()


@pytest.fixture
def hold():
    """(stream, hold(), another): what is enqueued on the stream after hold() waits for a moment."""
    stream, other = Stream(flags=1), Stream(flags=1)  # CU_STREAM_NON_BLOCKING

    def start():
        stream.gate.clear()
        stream.waiting.clear()
        stream.hold_up()
        threading.Timer(0.05, stream.gate.set).start()

    yield stream, start, other
    stream.close()
    other.close()


@pytest.mark.parametrize("use", [
    lambda s: s.__setitem__(..., 77), lambda s: s.to_numpy().fill(77), lambda s: s.device_to_host(),
    lambda s: np.asarray(s).fill(77), lambda s: s.__gt_data_interface__[None]["acquire"](), contents,
])
def test_the_hosts_buffer_waits_for_copies_on_a_stream(daemon, hold, use):
    stream, start, _ = hold
    with daemon.connect() as client:
        s = cs.full((4, 4), 1, device="gpu", client=client)
        host = s.to_numpy()
        start()
        s.host_to_device(stream=stream.number)
        assert s.sync_state.state == CLEAN
        use(s)
        host.fill(77)  # too late for that copy
        s.set_synchronized()
        assert on_device(s)[0, 0] == 1
        start()
        s.device_to_host(stream=stream.number)
        s.device_to_host()
        assert host[0, 0] == 1
        del s


@pytest.mark.parametrize("kind", list(KINDS)[1:], ids=lambda kind: kind.__name__)
def test_work_on_a_stream_is_waited_for(daemon, hold, kind):
    stream, start, _ = hold
    with daemon.connect() as client:
        s, t = (cs.zeros((4, 4), "u1", client=client, **KINDS[kind]) for _ in range(2))
        reads = contents, lambda s: s[np.arange(4)], lambda s: cs.storage(s, device=None).to_numpy()
        for value, read in enumerate(reads, start=5):
            start()
            with cs.fields(write=[s], device="gpu", stream=stream.number) as (a,):
                stream.fill(a, value)
            assert (read(s) == value).all()
        start()
        with cs.fields(write=[s], device="gpu", stream=stream.number) as (a,):
            stream.fill(a, 8)
        t[...] = s
        assert (contents(t) == 8).all()
        start()
        s[...] = 9
        with cs.fields(read=[s], device="gpu", stream=stream.number) as (a,):
            assert (a.copy_to_host() == 9).all()
        del s, t, a


class DataArray:
    """What of xarray's the data interface uses."""

    __gt_data_interface__ = property(data_interface)

    def __init__(self, data):
        self.data, self.dims = data, "IJ"[: len(data.shape)]


def of_data_array(read):
    return lambda s: read(DataArray(s))


# Of the device's buffer, then of the host's.
LOOKS = {
    "the stream": lambda s: caid.from_cuda_array_interface(s.__gt_data_interface__["gpu"], s).copy_to_host(),
    "acquire": through_dict("gpu"),
    "DataArray": of_data_array(by_fields("gpu")),
    "copied": of_data_array(by_fields(None)),
    "set": of_data_array(lambda s: (t := cs.zeros(s.data.shape, "u1"), t.__setitem__(..., s)) and t.to_numpy()),
    "storage": of_data_array(lambda s: cs.storage(s, device=None).to_numpy()),
    "ordered": None,
    "acquire on the host": through_dict(None),
    "wrapped on the host": lambda s: cs.as_storage(s, device=None).to_numpy(),
}


@pytest.mark.filterwarnings("ignore:a DataArray has no buffer:RuntimeWarning")
@pytest.mark.parametrize("kind, look", [
    (kind, look) for kind in list(KINDS)[1:] for look in LOOKS
    if not (look.endswith("host") and kind is not cs.CUDAManagedGPUStorage)
])
def test_what_a_storage_tells_of_waits_for_work_on_a_stream(daemon, hold, kind, look):
    stream, start, other = hold
    with daemon.connect() as client:
        s = cs.zeros((4, 4), "u1", client=client, **KINDS[kind])
        s.synchronize()
        start()
        with cs.fields(write=[s], device="gpu", stream=stream.number) as (a,):
            stream.fill(a, 7)
        if LOOKS[look]:
            found = LOOKS[look](s)
        else:
            found = caid.pinned_array((4, 4), "u1")
            s.host_to_device(stream=other.number)
            other.read(a, found)
            other.synchronize()
        assert (found == 7).all()
        del s, a


def test_streams_come_after_each_other(daemon, hold):
    stream, start, other = hold
    out = caid.pinned_array((4, 4), "u1")
    with daemon.connect() as client:
        s = cs.zeros((4, 4), "u1", device="gpu", client=client)

        def write(s, value):
            start()
            with cs.fields(write=[s], device="gpu", stream=stream.number) as (a,):
                stream.fill(a, value)

        write(s, 5)
        with cs.fields(read=[s], device="gpu", stream=other.number) as (a,):
            other.read(a, out)
        other.synchronize()
        assert (out == 5).all()
        write(s, 6)
        s.device_to_host(stream=other.number)
        assert (contents(s) == 6).all()
        write(s, 7)
        s.host_to_device()  # what "acquire" is
        assert stream.gate.is_set()
        write(s, 8)
        with cs.fields(read=[s], stream=stream.number) as (a,):
            assert (a == 8).all()
        done = []
        foreign = Foreign("gpu", np.zeros((4, 4), "u1"), [], touch=lambda: done.append(stream.gate.is_set()))
        write(foreign, 9)
        assert done == [True]
        del s, a


# --- the data interface as consumer ---------------------------------------------------------


class Foreign:
    """Somebody else's field, which writes down what it is asked."""

    def __init__(self, side, values, said, **more):
        self.values, self.said = values, said
        self.array = device_array(values) if side == "gpu" else values
        interface = "__cuda_array_interface__" if side == "gpu" else "__array_interface__"
        functions = {name: lambda name=name: said.append((name, self)) for name in ("acquire", "touch", "release")}
        self.__gt_data_interface__ = {side: {**getattr(self.array, interface), **functions, **more}}


class TwoSided:
    """A field with ones on the host and twos on the device, which nobody keeps in sync."""

    def __init__(self):
        self.sides = Foreign(None, np.ones(3), []), Foreign("gpu", np.full(3, 2.0), [])
        self.__gt_data_interface__ = {k: v for side in self.sides for k, v in side.__gt_data_interface__.items()}


def test_a_foreign_field_is_asked_in_order():
    said = []
    a, b = (Foreign(side, np.ones((2, 3)), said) for side in (None, None))
    with cs.fields(read=[a], write=[b]) as (x, y):
        assert said == [("acquire", a), ("acquire", b)]
        y[...] = x + 1
    assert said[2:] == [("touch", b), ("release", b), ("release", a)] and (b.values == 2).all()
    del said[:]
    with pytest.raises(ZeroDivisionError), cs.fields(read=[a], write=[b]):
        1 / 0
    assert said == [("acquire", a), ("acquire", b), ("touch", b), ("release", b), ("release", a)]


def test_a_field_that_cannot_be_had_releases_the_others():
    said = []
    a = Foreign(None, np.ones(3), said)
    with pytest.raises(TypeError, match="int"), cs.fields(read=[a, 3]):
        pass
    assert said == [("acquire", a), ("release", a)]
    bad = Foreign(None, np.ones(3), said)
    bad.__gt_data_interface__[None]["touch"] = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError), cs.fields(write=[bad, a]):
        pass
    assert said[-3:] == [("touch", a), ("release", a), ("release", bad)]


@pytest.mark.parametrize("side", [None, "gpu"])
def test_a_field_on_the_other_side_is_copied_and_copied_back(side):
    other, said = (None if side else "gpu"), []
    a = Foreign(side, np.ones((2, 3)), said)

    def values():
        return a.array.copy() if side is None else a.array.copy_to_host()

    with pytest.warns(RuntimeWarning, match="Foreign has no buffer on") as caught:
        with cs.fields(write=[a], device=other) as (x,):
            x.__setitem__(Ellipsis, 5) if other is None else x.copy_from_host(np.full((2, 3), 5.0))
    assert caught[0].filename == __file__
    assert (values() == 5).all() and [name for name, _ in said] == ["acquire", "touch", "release"]
    with pytest.warns(RuntimeWarning), pytest.raises(ZeroDivisionError):
        with cs.fields(write=[a], device=other) as (x,):
            x.__setitem__(Ellipsis, 7) if other is None else x.copy_from_host(np.full((2, 3), 7.0))
            1 / 0
    assert (values() == 5).all()


def test_arrays_are_fields_and_values_and_keys():
    with cs.fields(read=[np.ones(3)], write=[np.zeros(3)]) as (x, y):
        y[...] = x
    with cs.fields(read=[device_array(np.ones(3))], device="gpu") as (x,):
        assert (x.copy_to_host() == 1).all()
    s = cs.zeros((5,), device="gpu")
    s[Foreign(None, np.array([1, 2]), [])] = Foreign("gpu", np.array([3.0, 4.0]), [])
    s[cs.storage(np.array([4]), device="gpu")] = cs.storage(np.array([9.0]))
    assert s.to_numpy().tolist() == [0, 3, 4, 0, 9]
    assert s[device_array(np.array([4, 1]))].tolist() == [9, 3]
    halo = cs.storage(Foreign(None, np.ones((4, 4)), [], halo=((1, 1), (0, 2)))).halo
    assert halo == ((1, 1), (0, 2))
    for bad in ({"device": "cpu"}, {"device": "gpu", "stream": "s"}):
        with pytest.raises((caid.InvalidError, TypeError)):
            cs.fields(read=[s], **bad)


def test_the_compute_domain_is_inside_of_all_halos():
    u = cs.zeros((12, 11, 8), halo=(3, (1, 2), 0))
    v = cs.zeros((12, 9), halo=(0, (4, 1)))
    w = Foreign(None, np.zeros((2, 20, 7)), [], halo=((0, 0), (6, 6), (1, 0)), dims=("0", "J", "K"))
    block = cs.fields(read=[u, w], write=[v.T])
    assert block.domain == {} and block.origins == ()
    with block:
        assert block.domain == {"I": 4, "J": 8, "K": 6}
        assert block.origins == ((3, 1, 0), (0, 6, 1), (4, 0)) and u.__gt_origin__ == (3, 1, 0)
    w.__gt_data_interface__[None]["halo"] = ((0, 0), (1, 1), (9, 0))
    with block, pytest.raises(caid.InvalidError, match="halo"):
        block.domain


def test_which_side_is_written():
    s = cs.zeros((3,), device="gpu")
    device, host = cs.ones((3,), device="gpu"), cs.ones((3,))
    device.synchronize()
    for value, state in (1, HOST_DIRTY), (np.ones(3), HOST_DIRTY), (host, HOST_DIRTY), (device, DEVICE_DIRTY), (
            device_array(np.ones(3)), DEVICE_DIRTY), (Foreign("gpu", np.ones(3), []), DEVICE_DIRTY):
        s[...] = value
        assert s.sync_state.state == state, value
    device.set_host_modified()
    s[...] = device
    assert s.sync_state.state == HOST_DIRTY
    s[...] = TwoSided()
    assert s.sync_state.state == DEVICE_DIRTY and (contents(s) == 2).all()
    host[...] = TwoSided()
    assert (host.to_numpy() == 1).all()


@pytest.mark.parametrize("give", [
    lambda s: s.to_cupy(), lambda s: s.device_data, lambda s: s.to_ndarray(),
    lambda s: s.__dlpack__(), lambda s: s.data,
])
def test_who_gets_nothing_has_modified_nothing(give, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    s = cs.zeros((3,), "M8[s]", device="gpu")  # which no buffer of Python's has
    s.synchronize()
    with refuses(ImportError, BufferError, ValueError):
        give(s)
    assert s.sync_state.state == CLEAN


# --- xarray ---------------------------------------------------------------------------------

XARRAY = """
import sys
if {first!r} == "user's":
    import xarray
    xarray.register_dataarray_accessor("__gt_data_interface__")(lambda data_array: "theirs")
    import caid.storage
    assert xarray.DataArray([1], dims=("I",)).__gt_data_interface__ == "theirs"
    print("right")
    sys.exit()
if {first!r} == "storage":
    import caid.storage as cs
import xarray
import caid.storage as cs
import numpy as np

a = xarray.DataArray(np.ones((2, 3)), dims=("I", "J"))
told = a.__gt_data_interface__
assert told[None]["dims"] == ("I", "J") and told[None]["shape"] == (2, 3)
s = cs.zeros((2, 3), halo=(1, 0))
b = xarray.DataArray(s, dims=("J", "K"))
assert b.data is s, type(b.data)
assert b.__gt_data_interface__[None]["dims"] == ("J", "K")
with cs.fields(read=[a], write=[b]) as (x, y):
    y[...] = x
assert (s.to_numpy() == 1).all()

class WithDims(np.ndarray):
    __gt_data_interface__ = {{None: {{**np.ones(3).__array_interface__, "dims": ("K",)}}}}
try:
    xarray.DataArray(np.ones(3).view(WithDims), dims=("I",)).__gt_data_interface__
    assert False
except ValueError as e:
    assert "dims" in str(e)
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    xarray.register_dataarray_accessor("__gt_data_interface__")(lambda data_array: "mine")
assert len(caught) == 1 and a.__gt_data_interface__ == "mine"
print("right")
"""
# What of xarray these use, where it is not installed.
STAND_IN = """
import warnings
class DataArray:
    def __init__(self, data, dims):
        self.data, self.dims = data, dims
def register_dataarray_accessor(name):
    def register(accessor):
        if hasattr(DataArray, name):
            warnings.warn("overrides")
        setattr(DataArray, name, property(accessor))
    return register
"""


@pytest.mark.parametrize("first", ["storage", "xarray", "user's"])
def test_data_arrays_have_the_interface(tmp_path, first):
    if subprocess.run([sys.executable, "-c", "import xarray"], stderr=subprocess.DEVNULL).returncode != 0:
        (tmp_path / "xarray.py").write_text(STAND_IN)
    done = subprocess.run([sys.executable, "-c", XARRAY.format(first=first)], cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.stdout == "right\n", done.stderr
    users = """
import xarray
xarray.register_dataarray_accessor("__gt_data_interface__")(lambda data_array: "mine")
import caid.storage
print(xarray.DataArray([1], dims=("I",)).__gt_data_interface__)
"""
    done = subprocess.run([sys.executable, "-c", users], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "mine\n", done.stderr  # it was there before
