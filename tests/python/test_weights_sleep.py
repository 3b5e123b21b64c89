# SPDX-License-Identifier: Apache-2.0
"""A worker that sleeps: what it has is unmapped, and mapped again where it was; and addresses that are reserved, the
same ones in all processes."""

import contextlib

import models
import numpy
import pytest
from conftest import Stream, n_blocks, n_leases, refuses, softcuda, wait_until
from hypothesis import settings, stateful, strategies as st
from restarts import Restarts

import caid
from caid import weights

MIB = 1 << 20
LARGE = 3 * MIB  # bytes of an array with a block of its own


@pytest.fixture
def files(tmp_path):
    return [models.write_version(tmp_path / f"{value}", value) for value in (1, 2)]


@pytest.fixture
def model(client, files):
    weights.load(files[0], "m", client=client)


def test_what_is_unmapped_cannot_be_used(client, model):
    uses = [
        lambda a: a.ptr,
        lambda a: a.__cuda_array_interface__,
        lambda a: a.__dlpack__(),
        lambda a: a.copy_to_host(),
        lambda a: a.copy_from_host(numpy.full(models.N, 1, "<i4")),
        lambda a: a[:1].copy_from(a[1:2]),
        lambda a: a.write().__enter__(),
    ]
    with weights.open("m", "rw", client=client) as w:
        a, part = w["layer.3"], w["layer.4"][5:7]
        w.unmap()
        for use in uses:
            with refuses(caid.ClosedError, match="unmapped"):
                use(a)
        with pytest.raises(caid.ClosedError, match="unmapped"):
            part.copy_to_host()
        assert (a.shape, a.name, a.closed) == ((models.N,), "m/layer.3", False)
        w.map()
        for use in uses[:-1]:
            use(a)


def test_it_is_mapped_again_where_it_was(client, other, model, files):
    with weights.open("m", client=client) as w:
        w.unmap()  # nothing is open
        tensors = dict(w.items())
        there = {key: a.ptr for key, a in tensors.items()}
        w.map()  # it is
        for _ in range(3):
            w.unmap()
            w.unmap()
            weights.load(files[1], "m", client=other)
            with pytest.raises(caid.ClosedError):
                models.value_of(w)
            w.map()
            w.map()
            assert {key: a.ptr for key, a in tensors.items()} == there and models.value_of(w) == 1
        w.unmap()
    with pytest.raises(caid.ClosedError, match="closed"):
        w.map()
    for a in tensors.values():
        a.close()
    wait_until(lambda: n_leases(client) == 0 and n_blocks(client) == 1)


@pytest.mark.parametrize("memory", ["pinned", "mapped", "legacy"])
def test_what_is_no_memory_of_a_device_stays_mapped(client, memory):
    with client.full(4, 7, "<i4", memory=memory) as a:
        client.publish_many("s/", {"a": a})
    with client.open_set("s/") as s:
        a = s["a"]
        with pytest.raises(caid.UnsupportedError):
            s.unmap()
        assert a.copy_to_host().tolist() == [7] * 4


@pytest.mark.parametrize("call, is_mapped", [("cuMemUnmap", True), ("cuMemMap", False), ("cuMemSetAccess", False)])
def test_what_fails_changes_nothing_and_can_be_tried_again(client, model, soft, call, is_mapped):
    with weights.open("m", client=client) as w:
        a = w["layer.3"]
        if not is_mapped:
            w.unmap()
        softcuda(f"fail {call}=CUDA_ERROR_OUT_OF_MEMORY")
        try:
            with pytest.raises(caid.OutOfMemoryError):
                w.unmap() if is_mapped else w.map()
        finally:
            softcuda("clear")
        with contextlib.nullcontext() if is_mapped else pytest.raises(caid.ClosedError, match="unmapped"):
            assert a.copy_to_host()[0] == 1
        w.unmap()
        w.map()
        assert models.value_of(w) == 1


def test_a_daemon_that_is_started_anew_meanwhile(tmp_path, files):
    with contextlib.closing(Restarts(tmp_path)) as daemon, daemon.connect() as client:
        weights.load(files[0], "m", client=client)
        with weights.open("m", client=client) as w:
            at = w["layer.0"].ptr
            a = w["layer.0"]
            w.unmap()
            daemon.restart()
            w.map()
            assert a.ptr == at and models.value_of(w) == 1
        a.close()


# --- any order of it, by a model -----------------------------------------------------------------


NAMES, KEYS = st.sampled_from("ab"), st.sampled_from("123")


class Sleeper(stateful.RuleBasedStateMachine):
    """Two sets, of which some arrays share blocks, also with the other set, and which blocks are unmapped."""

    client = None

    def __init__(self):
        super().__init__()
        self.asleep = set()
        self.block = {entry.name: self.client.show(entry.name).block for entry in self.client.list()}
        assert len(set(self.block.values())) > len(self.block) // 2
        self.sets = {name: self.client.open_set(f"{name}/") for name in "ab"}
        self.taken = {name: {} for name in "ab"}

    def blocks(self, name):
        return {self.block[f"{name}/{key}"] for key in self.taken[name]}

    @stateful.rule(name=NAMES, key=KEYS)
    def take(self, name, key):
        if key not in self.taken[name]:
            self.taken[name][key] = self.sets[name][key]
            self.asleep.discard(self.block[f"{name}/{key}"])

    @stateful.rule(name=NAMES)
    def unmap(self, name):
        if self.blocks(name) & self.blocks("ab".replace(name, "")):
            with pytest.raises(caid.InvalidError, match="open here, of which"):
                self.sets[name].unmap()
        else:
            self.sets[name].unmap()
            self.asleep |= self.blocks(name)

    @stateful.rule(name=NAMES)
    def map(self, name):
        self.sets[name].map()
        self.asleep -= self.blocks(name)

    @stateful.rule(name=NAMES)
    def open_anew(self, name):
        self.close(name)
        self.sets[name], self.taken[name] = self.client.open_set(f"{name}/"), {}

    def close(self, name):
        for array in self.taken[name].values():
            array.close()
        self.sets[name].close()

    @stateful.invariant()
    def what_is_mapped_is_right(self):
        for name, taken in self.taken.items():
            for key, array in taken.items():
                if self.block[f"{name}/{key}"] in self.asleep:
                    with pytest.raises(caid.ClosedError, match="unmapped"):
                        array.copy_to_host()
                else:
                    with array[-4:] as end:
                        assert set(end.copy_to_host().tolist()) == {ord(name)}

    def teardown(self):
        for name in "ab":
            self.close(name)


def test_random_sleepers(client):
    with contextlib.ExitStack() as stack:
        for name in "ab":
            sizes = {"1": LARGE, "2": 8, "3": 4 * LARGE}  # of both, the second is in a block that many share
            arrays = {key: stack.enter_context(client.full(n, ord(name), "|u1")) for key, n in sizes.items()}
            client.publish_many(f"{name}/", arrays)
    with client.open_set("a/") as a, client.open_set("b/") as b:
        assert a["2"].nbytes == b["2"].nbytes  # both are open
        with pytest.raises(caid.InvalidError, match="open here, of which"):
            a.unmap()
    Sleeper.client = client
    stateful.run_state_machine_as_test(Sleeper, settings=settings(max_examples=20, stateful_step_count=30))


def test_a_second_opener_of_the_same_client_keeps_it_mapped(client, other, model):
    """docs/WEIGHTS.md; another client, as another process, notices nothing."""
    with weights.open("m", client=client) as w, weights.open("m", client=other) as elsewhere:
        models.value_of(w), models.value_of(elsewhere)
        with weights.open("m", client=client) as second:
            models.value_of(second)
            with pytest.raises(caid.InvalidError, match="open here, of which"):
                w.unmap()
            assert models.value_of(w) == models.value_of(second) == 1  # nothing was unmapped
        w.unmap()
        assert models.value_of(elsewhere) == 1
        w.map()


# --- addresses -----------------------------------------------------------------------------------

OPENS = """
    with caid.connect() as c:
        with c.reserve(64 << 20, int(sys.argv[1])), c.open_set("m/") as s:
            step(min(a.ptr for a in s.values()))
            assert {int(a.copy_to_host().max()) for a in s.values()} == {1}
    print("done", flush=True)
"""


def test_two_processes_have_a_model_at_the_same_address(client, model, child):
    address = 0x7D0000000000
    with client.reserve(64 * MIB, address) as r:
        w = weights.open("m", client=client)
        at = min(a.ptr for a in w.values())
    assert r.address == address and address <= at < address + 64 * MIB
    second = child(OPENS, address)
    second.expect(at)
    w.unmap()
    w.map()
    assert min(a.ptr for a in w.values()) == at and models.value_of(w) == 1
    second.go()
    second.expect("done")
    assert second.finish()[0] == 0
    w.close()


def test_addresses_are_given_back_with_what_lies_there(client, model):
    r = client.reserve(8 * MIB)
    with r:
        w = weights.open("m", client=client)
        a = w["layer.0"]
    assert r.address <= a.ptr < r.address + 8 * MIB
    r.close()
    with pytest.raises(caid.InvalidError, match="not free"):
        client.reserve(8 * MIB, r.address)
    w.close()
    assert a.copy_to_host()[0] == 1
    a.close()
    client.flush()
    for _ in range(3):
        again = client.reserve(8 * MIB, r.address)
        assert again.address == r.address
        again.close()


def test_reservations_that_cannot_be(client):
    for nbytes in -1, 0, 1 << 63, (1 << 64) - 1, 1 << 64:
        with pytest.raises((caid.Error, OverflowError, ValueError)):
            client.reserve(nbytes)
    with client.full(LARGE, 1, "|u1") as a:
        for address in a.ptr, a.ptr + 2 * MIB, 4096, 0x7D0000000001:
            with pytest.raises(caid.InvalidError, match="not free"):
                client.reserve(2 * MIB, address)


def test_room_is_taken_one_after_another_until_there_is_none(client):
    with client.reserve(8 * MIB + 1) as r, contextlib.ExitStack() as stack:
        arrays = []
        with pytest.raises(caid.InvalidError, match="does not fit"):
            for _ in range(10):
                arrays.append(stack.enter_context(client.empty(LARGE, "|u1")))
        assert [a.ptr - r.address for a in arrays] == [0, 4 * MIB]
        with client.arena(block_size=2 * MIB) as arena, arena.allocate(100) as memory:
            assert memory.ptr == r.address + 8 * MIB
        for other in r, client.reserve(2 * MIB):
            with pytest.raises(caid.InvalidError, match="already"), other:
                pass
    with client.empty(LARGE, "|u1") as outside:
        assert not r.address <= outside.ptr < r.address + 8 * MIB
    assert n_leases(client) == 0


def test_a_client_that_ends_before_its_reservation(daemon):
    with daemon.connect() as c:
        with c.reserve(4 * MIB) as r:
            a = c.empty(LARGE, "|u1")
            a.close()
            c.close()
    with pytest.raises(caid.ClosedError), r:
        pass
    r.close()
    with daemon.connect() as c, contextlib.ExitStack() as stack:
        wait_until(lambda: not stack.callback(c.reserve(4 * MIB, r.address).close) or True)


def test_what_is_mapped_already_stays_outside_of_a_reservation(client, model):
    with weights.open("m", client=client) as first:
        at = min(a.ptr for a in first.values())
        with client.reserve(64 * MIB) as r, weights.open("m", client=client) as second:
            assert min(a.ptr for a in second.values()) == at and not r.address <= at < r.address + 64 * MIB


def test_a_mapping_that_is_kept_ends_with_its_client(daemon):
    with daemon.connect() as c, daemon.connect() as other, other.create("kept", LARGE, "|u1"):
        with c.open("kept") as a:
            at, mapping = a.ptr, a._memory._keep_mapping()
        wait_until(lambda: n_leases(other) == 1)
        with c.open("kept") as a:
            assert a.ptr == at and not mapping.closed
            last = a._memory._keep_mapping()
        mapping.close()
        mapping.close()
        assert mapping.closed
        with pytest.raises(caid.ClosedError):
            a._memory._keep_mapping()
    assert last.closed
    last.close()


def test_two_blocks_exchange_their_addresses(client):
    with client.full(LARGE, 1, "|u1", exclusive=True) as a, client.full(LARGE, 2, "|u1", exclusive=True) as b:
        old, new = a._memory, b._memory
        at = old.ptr, new.ptr
        client._exchange((old,), (new,))
        assert (new.ptr, old.ptr) == at
        assert [memoryview(lease.host_view(0, 1, True))[0] for lease in (old, new)] == [1, 2]
        client._exchange((new,), (old,))
        assert (old.ptr, new.ptr) == at
        with a.read(), pytest.raises(caid.InvalidError, match="bracket"):
            client._exchange((old,), (new,))
        with pytest.raises(caid.InvalidError, match="one block"):
            client._exchange((old,), (old,))
        for wrong in [old], None:
            with pytest.raises(TypeError):
                client._exchange(wrong, (new,))
    with pytest.raises(caid.ClosedError):
        client._exchange((old,), (new,))


def test_an_exchange_while_a_stream_of_the_clients_captures(client):
    stream = Stream(1)  # a non-blocking one, of which nobody else tells
    with (
        client.full(LARGE, 1, "|u1", exclusive=True) as a,
        client.full(LARGE, 2, "|u1", exclusive=True) as b,
        caid.Stream.from_handle(stream.number, client),
    ):
        leases = (a._memory,), (b._memory,)
        client._exchange(*leases)
        with stream.captures(), pytest.raises(caid.InvalidError, match="captures"):
            client._exchange(*leases)
        client._exchange(*leases)
    stream.close()
