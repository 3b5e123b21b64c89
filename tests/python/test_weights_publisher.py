# SPDX-License-Identifier: Apache-2.0
"""Publishers of weights: versions that are made once and written in turn, never what somebody reads; and who may
publish. Kills are in test_weights_swap.py."""

import contextlib
import gc
import os
import pickle

import numpy
import pytest
from conftest import PATIENCE_S, Held, after_gate, forked, in_a_thread, n_blocks, wait_until
from hypothesis import given, settings, strategies as st
from multiprocessing.reduction import ForkingPickler
from restarts import Restarts

import caid
from caid import weights
from caid._session import _default
from caid.weights import _publisher

LIKE = {"a": ((3, 4), "<f4"), "b": ((1000,), "<i2"), "none": ((0, 3), "<i8"), "scalar": ((), "<f8")}


def tensors(value, like=LIKE):
    return {key: numpy.full(shape, value, dtype) for key, (shape, dtype) in like.items()}


def value_of(opened, like=LIKE):
    """What all elements of a version have; its metadata, too, where there are some."""
    assert {key: (opened[key].shape, opened[key].typestr) for key in opened} == {
        key: (shape, numpy.dtype(dtype).str) for key, (shape, dtype) in like.items()
    }
    (value,) = {n for array in opened.values() for n in array.copy_to_host().ravel().tolist()} | (
        {opened.metadata} - {None}
    )
    return value


def current(client, name="m", like=LIKE):
    with weights.open(name, client=client) as w:
        return value_of(w, like)


def landed(p, client):
    """What another client finds when the last version is there."""
    version = p.wait(PATIENCE_S)
    with weights.open(p.name, client=client) as w:
        assert w.version == version
        return value_of(w)


@pytest.fixture
def p(client):
    with weights.publisher("m", LIKE, client=client) as p:
        yield p
    client.unlink("m/", missing_ok=True)


# --- versions -------------------------------------------------------------------------------

DTYPES = st.sampled_from(["|b1", "|u1", "<i2", "<f2", "bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", "<f4", "<i8", "<c16"])
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
KEYS = st.text("abc./é", min_size=1, max_size=6)


def test_readers_find_what_was_published(client, other):
    """Of any tensors, tied ones among them; and nothing is made for a new version."""

    @settings(max_examples=25)
    @given(
        st.dictionaries(KEYS, st.tuples(SHAPES, DTYPES), min_size=1, max_size=6), st.integers(2, 4), st.data(),
        st.integers(0, 1 << 32),
    )  # fmt: skip
    def check(like, versions, data, seed):
        random = numpy.random.default_rng(seed)
        with contextlib.ExitStack() as stack:
            first = {key: stack.enter_context(client.empty(*made)) for key, made in like.items()}
            tie = data.draw(st.dictionaries(KEYS.map("tied.{}".format), st.sampled_from(sorted(first)), max_size=2))
            shown = {**first, **{key: first[of] for key, of in tie.items()}}
            p = stack.enter_context(weights.publisher("m", shown, versions=versions, client=client))
            figures = None
            for version in range(1, 2 * versions + 2):
                bytes_of = {key: random.integers(0, 2, array.nbytes, "u1").tobytes() for key, array in first.items()}
                with p.version(metadata={"version": version}) as w:
                    assert list(w) == list(shown) and len(w) == len(shown)
                    for key in first:
                        w[key].copy_from_host(bytes_of[key])
                number = p.wait()
                with weights.open("m", client=other) as w:
                    assert w.version == number and w.metadata == {"version": version} and w.file_metadata == {}
                    for key, array in w.items():
                        of = tie.get(key, key)
                        assert numpy.ascontiguousarray(array.copy_to_host()).tobytes() == bytes_of[of]
                        assert (array.shape, array.typestr) == (first[of].shape, first[of].typestr)
                        assert not array.nbytes or array.ptr == w[of].ptr and array.ptr % 512 == 0
                status, memory = client.status(), client.memory_info()
                figures = figures or (status.arrays, status.names, memory.blocks)
                assert (status.arrays, status.names, memory.blocks) == figures
        client.unlink("m/")
        other.flush()

    check()


def test_copies_are_published(client, other, p):
    """Of what lies anywhere, with any strides."""
    with client.full(1000, 7, "<i2") as on_device:
        given = {**tensors(7), "a": numpy.full((4, 3), 7, "<f4").T, "b": on_device}
        p.publish(given, metadata=7)
        assert landed(p, other) == 7
    for value in 8, 9, 10:
        p.publish(tensors(value), metadata=value)
    assert landed(p, other) == 10


def test_what_does_not_fit_is_told_at_once_and_nothing_is_written(client, other, p):
    p.publish(tensors(1))
    given = {"a": numpy.zeros((4, 3), "<f4"), "b": numpy.zeros(1000, "<i4"), "scalar": 3.0, "more": numpy.zeros(1)}
    with pytest.raises(caid.InvalidError) as e:
        p.publish(given)
    for told in "'none': missing", "'a': shape (4, 3), not (3, 4)", "'b': <i4, not <i2", "'scalar': no array", "'more': not":
        assert told in str(e.value), e.value
    with pytest.raises(TypeError, match="a mapping .* not list"):
        p.publish([*given.values()])
    assert landed(p, other) == 1


def test_what_a_version_can_be_like(client, other):
    with client.empty(5, "<f4") as array:
        with weights.publisher("m", {"a": array, "b": numpy.zeros((2, 3)), "c": array}, client=client) as p:
            p.publish({"a": array, "b": numpy.ones((2, 3)), "c": array})
            assert p.wait() and p.nbytes == 512 + 48 and p.device == array.device
    with weights.open("m", client=other) as w, weights.publisher("n", w, client=client) as p:
        with p.version() as new:
            assert {key: (a.shape, a.typestr) for key, a in new.items()} == {
                "a": ((5,), "<f4"), "b": ((2, 3), "<f8"), "c": ((5,), "<f4")
            }  # fmt: skip
            assert new["a"].ptr == new["c"].ptr
    client.unlink("n/")
    for like in {}, {"a": 3}, {"a": ((-1,), "<f4")}, {"a": ((1,), "no such")}, {"": ((1,), "<f4")}, {"a": ((1,), object)}:
        with pytest.raises(caid.InvalidError, match="^[mo]: "):
            weights.publisher("o", like, client=client)
    with pytest.raises(caid.InvalidError, match="'a'.*'b'"):
        weights.publisher("o", {"a": 3, "b": 4}, client=client)
    for wrong in [1], None, "m":
        with pytest.raises(TypeError):
            weights.publisher("o", wrong, client=client)
    for name, versions in ("o@3", 2), ("", 2), ("o", 1), ("x" * 250, 2):
        with pytest.raises(caid.InvalidError):
            weights.publisher(name, LIKE, versions=versions, client=client)
    assert [entry.name for entry in client.list()][:1] == ["m/"] and not client.exists("o.publisher")


def test_a_module_of_pytorch(client, other):
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(30, 20)
            self.head = torch.nn.Linear(30, 20, bias=False, dtype=torch.float32)
            self.head.weight = self.layer.weight
            self.norm = torch.nn.LayerNorm(7, dtype=torch.bfloat16)
            for name, dtype in ("mask", torch.bool), ("packed", torch.float8_e4m3fn), ("none", torch.float16):
                self.register_buffer(name, torch.zeros((name != "none") * 5, 3, dtype=dtype))
            self.register_buffer("step", torch.tensor(3))

    module = Module().to("cpu" if client.host_accessible else "cuda")
    with torch.device("meta"):
        like = Module()
    with weights.publisher("m", like, client=client) as p:
        for value in 1.0, 2.0, 3.0:
            with torch.no_grad():
                module.layer.weight.fill_(value)
                module.norm.weight.fill_(value)
            p.publish(module.state_dict())
            p.wait()
            with weights.open("m", client=other) as w:
                found, wanted = w.torch(), module.state_dict()
                assert found.keys() == wanted.keys()
                for key, tensor in wanted.items():
                    assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape)
                    assert torch.equal(found[key].float(), tensor.float())
                assert found["head.weight"].data_ptr() == found["layer.weight"].data_ptr()
                del found
        with p.version() as w:
            w["step"].fill_(4)
            assert type(w["step"]) is torch.Tensor and w.torch()["step"] is w["step"]
        named = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
        p.publish(named)  # which require gradients
        with pytest.raises(caid.InvalidError, match="'layer.bias': <f2, not <f4"):
            p.publish({**named, "layer.bias": torch.zeros(20, dtype=torch.float16)})
        p.wait()
        del w


# --- never what somebody reads --------------------------------------------------------------


def leased(client, stack):
    stack.enter_context(weights.open("m", client=client))


def leased_by_a_member(client, stack):
    with weights.open("m", client=client) as w:
        stack.enter_context(w["b"])


def exported(client, stack):
    with weights.open("m", "rw", client=client) as w, w["b"] as array:
        taken = [numpy.from_dlpack(array)]
    stack.callback(taken.clear)


def sent(client, stack):
    with weights.open("m", client=client) as w, w["b"] as array:
        message = ForkingPickler.dumps(array)
    stack.callback(lambda: pickle.loads(message).close())


def referred_to(client, stack):
    with weights.open("m", client=client) as w, w["b"] as array:
        reference = caid.Reference(array, keep=True)
    stack.callback(reference.close)


def being_read(client, stack):
    """By work that a stream has not come to: the lease is closed behind it."""
    stream = stack.enter_context(client.stream(non_blocking=True))
    with weights.open("m", client=client) as w:
        array = w["b"]
    stack.enter_context(Held(stream))
    array.close(stream)


@pytest.fixture
def here(client):
    """The client of what arrives in this process."""
    receiver = _default.client_of(client._socket)
    yield receiver
    receiver.close()


HOLDS = leased, leased_by_a_member, exported, sent, referred_to, being_read


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("versions", [2, 3])
def test_a_version_that_somebody_has_is_not_written(client, other, here, hold, versions):
    """The publisher waits until he has let go, and says who it is."""
    with weights.publisher("m", LIKE, versions=versions, client=client) as p, client.stream(non_blocking=True) as stream:

        def publish(value, timeout=None):
            p.publish(tensors(value), stream=stream, timeout=timeout)
            p.wait()

        with contextlib.ExitStack() as stack:
            for value in range(1, versions):
                publish(value)
                hold(other, stack)
            publish(versions)
            for timeout in 0, 0.02:
                with pytest.raises(caid.TimedOutError, match=str(os.getpid())):
                    publish(99, timeout)
            assert current(client) == versions
            thread, ended = in_a_thread(lambda: publish(versions + 1))
            assert ended == []
        thread.join(PATIENCE_S)
        assert ended == [None] and landed(p, other) == versions + 1
    client.unlink("m/")


def test_an_old_version_is_not_opened_once_it_is_written(client, other, p):
    """By its generation, which names what somebody still holds."""
    versions = []
    for value in 1, 2:
        p.publish(tensors(value))
        versions.append(p.wait())
    other.open("m/b", generation=versions[0]).close()
    with p.version():
        for name in "m/", "m/b":
            with pytest.raises(caid.StaleError):
                other.open(name, generation=versions[0])
        with other.open("m/b", generation=versions[1]) as b:
            assert b.copy_to_host()[0] == 2


def test_a_mapping_alone_is_waited_for_by_nobody(client, other, p):
    p.publish(tensors(1))
    p.wait()
    with weights.open("m", client=other) as w, w["b"] as array:
        mapping = array._memory._keep_mapping()
    for value in 2, 3:
        p.publish(tensors(value), timeout=PATIENCE_S)
    assert landed(p, other) == 3
    del mapping


def test_a_slow_reader_has_one_of_three(client, other):
    with weights.publisher("m", LIKE, versions=3, client=client) as p:
        p.publish(tensors(1))
        p.wait()
        with weights.open("m", client=other) as slow:
            for value in range(2, 8):
                p.publish(tensors(value), timeout=PATIENCE_S)
            assert landed(p, client) == 7 and value_of(slow) == 1
            assert client.memory_info().blocks == 3
    client.unlink("m/")


def test_the_version_that_is_free_first_is_written(client, other):
    """Also where it is not the one that was displaced first."""
    with weights.publisher("m", LIKE, versions=3, client=client) as p, contextlib.ExitStack() as stack:
        readers = []
        for value in range(3):
            p.publish(tensors(value))
            p.wait()
            readers.append(stack.enter_context(weights.open("m", client=other)))
        for value in 3, 4, 5:
            thread, ended = in_a_thread(lambda: p.publish(tensors(value)))
            assert ended == []
            readers.pop(1).close()
            thread.join(PATIENCE_S)
            assert ended == [None] and landed(p, other) == value
            readers.append(stack.enter_context(weights.open("m", client=other)))
            assert value_of(readers[0]) == 0
        readers.pop(0).close()
        assert client.memory_info().blocks == 3
    client.unlink("m/")


# --- landing --------------------------------------------------------------------------------


def test_a_version_is_there_when_it_has_landed(client, other, p):
    p.publish(tensors(1))
    p.wait()
    with client.stream(non_blocking=True) as stream:
        held = Held(stream)
        with held:
            p.publish(tensors(2), stream=stream)
            with pytest.raises(caid.TimedOutError):
                p.wait(0)
            with pytest.raises(caid.TimedOutError):
                p.publish(tensors(3), timeout=0)
            assert current(other) == 1
            after_gate(held.gate, p.wait)
        assert landed(p, other) == 2
        p.publish(tensors(3), stream=stream)
        assert landed(p, other) == 3


def test_a_block_that_fails_publishes_nothing(client, other, p, streams):
    """What it had begun does not meet the next version either."""
    p.publish(tensors(1))
    p.wait()
    failing = streams[0]
    failing.hold_up()
    for error in ZeroDivisionError, KeyboardInterrupt:
        with pytest.raises(error):
            with p.version(stream=failing.number) as w:
                for array in w.values():
                    failing.fill(array, 99)
                raise error
        with pytest.raises(caid.ClosedError):
            w["a"]
    with p.version(stream=streams[1].number) as w:
        for key, values in tensors(2).items():
            w[key].copy_from_host(values)
    failing.gate.set()
    failing.synchronize()
    assert landed(p, other) == 2
    p.publish(tensors(3))
    assert landed(p, other) == 3
    wait_until(lambda: (other.flush(), n_blocks(client))[1] == 2, client.memory_info)


def test_ctrl_c_as_a_version_is_published(client, other, p):
    """It was on its way by then: it is published, and its slot goes on."""
    slot = p._free[0]
    lease = slot.set

    class Interrupted:
        def _publish_behind(self, *args):
            lease._publish_behind(*args)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), p.version() as w:
        w._fill(tensors(1))
        slot.set = Interrupted()
    slot.set = lease
    for value in 1, 2, 3:
        assert landed(p, other) == value
        p.publish(tensors(value + 1))
    assert landed(p, other) == 4 and n_blocks(client) == 2


def test_one_version_is_written_at_a_time(client, p):
    with p.version() as w:
        arrays = list(w.values())
        with pytest.raises(caid.InvalidError, match="another version"):
            p.publish(tensors(1))
        for array, values in zip(arrays, tensors(1).values()):
            array.copy_from_host(values)
    assert p.wait() and all(array.closed for array in arrays)
    with pytest.raises(TypeError):
        w["a"] = 1


def test_what_keeps_a_version_from_its_name_is_raised_once(client, other):
    with other.create("m/b", 1), weights.publisher("m", LIKE, client=client) as p:
        for publish_again in False, True:
            p.publish(tensors(1))
            with pytest.raises(caid.ExistsError):
                p.publish(tensors(2)) if publish_again else p.wait()
            assert p.wait() == 0
        other.unlink("m/b")
        p.publish(tensors(3))
        assert landed(p, other) == 3
    client.unlink("m/")


def test_another_name_keeps_a_version(client, other, p):
    p.publish(tensors(1))
    p.wait()
    client.rename("m/", "kept/")
    for value in range(2, 6):
        p.publish(tensors(value))
    assert landed(p, other) == 5 and current(other, "kept") == 1
    client.unlink("kept/")


def test_others_may_take_the_name(client, other, p):
    """A version of theirs is displaced by the next, and an unlinked one comes again."""
    p.publish(tensors(1))
    with weights.publisher("n", LIKE, client=client) as q:
        q.publish(tensors(7))
        q.wait()
    p.wait()
    other.rename("n/", "m/", replace=True)
    assert current(other) == 7
    p.publish(tensors(2))
    assert landed(p, other) == 2
    weights.unload("m", client=other)
    p.publish(tensors(3))
    assert landed(p, other) == 3


# --- turns ----------------------------------------------------------------------------------


def test_a_name_has_one_publisher(client, other, p):
    with pytest.raises(caid.TimedOutError, match=f"^m: .* {os.getpid()} publishes it$"):
        weights.publisher("m", LIKE, timeout=0, client=other)
    with pytest.raises(caid.DeadlockError, match=f"^m: .* {os.getpid()} publishes it$"):
        weights.publisher("m", LIKE, client=client)
    p.publish(tensors(1))
    waiting = [in_a_thread(lambda: weights.publisher("m/", LIKE, client=c)) for c in (client, other)]
    for _, got in waiting:
        assert got == []
    p.close()
    p.close()
    for turn in 2, 3:
        wait_until(lambda: any(got for _, got in waiting))
        ((thread, (q,)),) = [w for w in waiting if w[1]]
        thread.join()
        waiting = [w for w in waiting if not w[1]]
        assert landed(q, client) == turn - 1
        q.publish(tensors(turn))
        q.close()
        assert current(other) == turn
    for use in p.wait, lambda: p.publish({}), lambda: p.version().__enter__():
        with pytest.raises(caid.ClosedError):
            use()
    assert p.closed and "closed" in repr(p)


def test_the_next_goes_on_with_the_current_version(client, other):
    for turn in range(3):
        with weights.publisher("m", LIKE, client=client) as p:
            assert not turn or landed(p, other) == 10 * turn - 8
            for value in 1, 2:
                p.publish(tensors(10 * turn + value))
                assert landed(p, other) == 10 * turn + value
            wait_until(lambda: (other.flush(), n_blocks(client))[1] == 2, client.memory_info)
    other_like = {**LIKE, "b": ((999,), "<i2")}
    with weights.open("m", client=other) as held:
        with weights.publisher("m", other_like, client=client) as p:
            p.publish(tensors(50, other_like))
            p.publish(tensors(51, other_like))
            assert p.wait() and current(other, like=other_like) == 51 and value_of(held) == 22
            assert client.memory_info().blocks == 3
        held.close()
        other.flush()
        client.flush()
    assert client.memory_info().blocks == 1
    client.unlink("m/")


def test_a_model_of_another_kind_is_displaced(client, other):
    arrays = {key: client.array(value) for key, value in tensors(1).items()}
    client.publish_many("m/", arrays)
    for array in arrays.values():
        array.close()
    with weights.publisher("m", LIKE, client=client) as p:
        assert landed(p, other) == 1
        for value in 2, 3, 4:
            p.publish(tensors(value))
            assert landed(p, other) == value
        wait_until(lambda: (other.flush(), n_blocks(client))[1] == 2, client.memory_info)
    client.unlink("m/")


PUBLISHES = """
    import numpy, caid.weights
    like = {"a": ((3, 4), "<f4"), "b": ((1000,), "<i2"), "none": ((0, 3), "<i8"), "scalar": ((), "<f8")}
    def tensors(value):
        return {key: numpy.full(shape, value, dtype) for key, (shape, dtype) in like.items()}
    p = caid.weights.publisher("m", like)
    p.publish(tensors(1)); p.wait()
    with p.version() as w:
        w["b"].fill(99)
        step("writes")
    step("closes")
"""


def test_the_next_has_its_turn_when_the_process_has_gone(client, other, child):
    first = child(PUBLISHES)
    first.expect("writes")
    with pytest.raises(caid.TimedOutError, match=f"{first.pid} publishes it"):
        weights.publisher("m", LIKE, timeout=0, client=client)
    thread, got = in_a_thread(lambda: weights.publisher("m", LIKE, client=client))
    assert got == []
    first.kill()
    thread.join(PATIENCE_S)
    (p,) = got
    with p:
        assert landed(p, other) == 1
        for value in 2, 3:
            p.publish(tensors(value))
        assert landed(p, other) == 3
        wait_until(lambda: (other.flush(), n_blocks(client))[1] == 2, client.memory_info)
    assert [entry.name for entry in client.list() if not entry.of_set] == ["m/"]
    client.unlink("m/")


# --- its end --------------------------------------------------------------------------------


def test_close_waits_for_what_is_on_its_way(client, other, p):
    with client.stream(non_blocking=True) as stream:
        held = Held(stream)
        with held:
            p.publish(tensors(1), stream=stream)
            thread, ended = in_a_thread(p.close)
            assert ended == []
            with pytest.raises(caid.TimedOutError):
                weights.publisher("m", LIKE, timeout=0, client=other)
        thread.join(PATIENCE_S)
        assert ended == [None] and current(other) == 1


@pytest.mark.parametrize("of, what", [(_publisher._Slot, "close"), (caid.Client, "unlink")])
def test_after_ctrl_c_in_close_the_next_has_its_turn(client, other, p, of, what, monkeypatch):
    """Though somebody has the publisher still."""
    def interrupted(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    p.publish(tensors(1))
    p.wait(PATIENCE_S)
    monkeypatch.setattr(of, what, interrupted)
    with pytest.raises(KeyboardInterrupt):
        p.close()
    with weights.publisher("m", LIKE, client=other, timeout=PATIENCE_S):
        assert current(other) == 1


@pytest.mark.parametrize("versions", [2, 3])
@pytest.mark.parametrize("closes", ["publisher", "client"])
def test_a_wait_for_a_version_ends_when_it_is_closed(daemon, client, other, closes, versions):
    with daemon.connect() as c, contextlib.ExitStack() as readers:
        p = weights.publisher("m", LIKE, client=c, versions=versions)
        for value in range(versions):
            p.publish(tensors(value))
            p.wait()
            readers.enter_context(weights.open("m", client=other))
        thread, ended = in_a_thread(lambda: p.publish(tensors(9)))
        (p if closes == "publisher" else c).close()
        thread.join(PATIENCE_S)
        assert [type(e) for e in ended] == [caid.ClosedError] and current(other) == versions - 1
        p.close()
    client.unlink("m/")


def test_a_wait_ends_in_time_while_another_thread_waits(client, p):
    with client.stream(non_blocking=True) as stream:
        held = Held(stream)
        with held:
            p.publish(tensors(1), stream=stream)
            thread, ended = in_a_thread(p.wait)
            for wait in lambda: p.wait(0), lambda: p.publish(tensors(2), timeout=0):
                with pytest.raises(caid.TimedOutError):
                    wait()
            assert ended == []
        thread.join(PATIENCE_S)
    assert len(ended) == 1 and p.wait() == ended[0]


def test_close_in_the_block_publishes_nothing(client, other, p):
    with pytest.raises(caid.ClosedError):
        with p.version() as w:
            w["a"].fill(1)
            p.close()
    assert not client.exists("m/") and not client.exists("m.publisher")


@pytest.mark.parametrize("is_on_its_way", [False, True])
def test_a_publisher_that_is_collected(client, other, is_on_its_way):
    p = weights.publisher("m", LIKE, client=client)
    with client.stream(non_blocking=True) as stream, contextlib.ExitStack() as stack:
        if is_on_its_way:
            stack.enter_context(Held(stream))
        p.publish(tensors(1), stream=stream)
        if not is_on_its_way:
            p.wait()
        with pytest.warns(ResourceWarning, match="unclosed <caid.weights.Publisher 'm'"):
            del p
            gc.collect()
        if is_on_its_way:
            with pytest.raises(caid.TimedOutError):
                weights.publisher("m", LIKE, timeout=0, client=other)
    with weights.publisher("m", LIKE, client=other) as p:
        assert landed(p, other) == 1
    client.unlink("m/")


def test_a_client_that_is_closed_under_it(daemon, client, other):
    with daemon.connect() as c:
        p = weights.publisher("m", LIKE, client=c)
        p.publish(tensors(1))
    for use in p.wait, lambda: p.publish(tensors(2)):
        with pytest.raises(caid.ClosedError):
            use()
    assert p.closed
    p.close()
    with weights.publisher("m", LIKE, client=other) as p:
        assert landed(p, other) == 1
    client.unlink("m/")


def test_in_a_child_it_is_refused(client, other, p):
    p.publish(tensors(1))
    forked(p.wait, lambda: p.publish(tensors(2)), lambda: p.version().__enter__(), work=p.close)
    p.publish(tensors(2))
    assert landed(p, other) == 2


def test_a_restart_between_any_two_steps(tmp_path):
    with contextlib.closing(Restarts(tmp_path)) as daemon, daemon.connect() as client, daemon.connect() as other:
        with client.stream(non_blocking=True) as stream:
            p = weights.publisher("m", LIKE, client=client)
            daemon.restart()
            for value in range(1, 5):
                with p.version(stream=stream, metadata=value, timeout=PATIENCE_S) as w:
                    daemon.restart()
                    held = Held(stream)
                    for array in w.values():
                        array.fill(value, stream)
                daemon.restart()
                with held:
                    pass
                p.wait()
                daemon.restart()
                with weights.open("m", client=other) as reader:
                    daemon.restart()
                    assert value_of(reader) == value
                with pytest.raises(caid.TimedOutError, match="publishes it"):
                    weights.publisher("m", LIKE, timeout=0, client=other)
        p.close()
        daemon.restart()
        with weights.publisher("m", LIKE, client=other) as p:
            assert landed(p, client) == 4
            for value in 5, 6:
                p.publish(tensors(value))
            assert landed(p, client) == 6
        client.unlink("m/")
        wait_until(lambda: (other.flush(), client.flush(), client.memory_info().blocks)[2] == 0, client.memory_info)
        assert (client.status().arrays, client.status().names) == (0, 0)


def test_a_restart_while_it_waits(tmp_path):
    with contextlib.closing(Restarts(tmp_path)) as daemon, daemon.connect() as client, daemon.connect() as other:
        with weights.publisher("m", LIKE, client=client) as p:
            p.publish(tensors(1))
            p.wait()
            reader = weights.open("m", client=other)
            p.publish(tensors(2))
            thread, ended = in_a_thread(lambda: p.publish(tensors(3)))
            daemon.restart()
            assert value_of(reader) == 1 and ended == []
            reader.close()
            thread.join(PATIENCE_S)
            assert ended == [None] and landed(p, other) == 3
