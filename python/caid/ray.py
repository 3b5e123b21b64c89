# SPDX-License-Identifier: Apache-2.0
"""Arrays between Ray's actors and tasks: on one machine by reference, between machines by value.

>>> import caid.ray                                   # before the actors are created
>>> @ray.remote(enable_tensor_transport=True)
... class Loader:
...     @ray.method(tensor_transport="caid")
...     def load(self):
...         return caid.default_client().ones(1 << 20, "<f4")
>>> ref = Loader.remote().load.remote()
>>> ray.get(trainer.train.remote(ref))                # an actor of the same machine opens it: no copy
>>> ref = caid.ray.put(a)                             # anywhere

The actor that made an object keeps its arrays, by a ticket for any number of receivers, until its ObjectRef
is out of scope. A receiver has an array of its own, which ends when it is closed or has no reference left.

``tensor_transport="caid"`` needs a Ray that can register tensor transports, such as 2.60; :func:`put` works
with any.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

try:
    from ray.experimental import TensorTransportManager, TensorTransportMetadata, register_tensor_transport
    from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata
except ImportError:
    TensorTransportManager = TensorTransportMetadata = object
    register_tensor_transport = None

from ._base._errors import not_found
from ._interfaces._reference import Reference
from ._memory._array import Array
from ._session import _default

__all__ = ["Transport", "put"]

_NAME = "CAID"
# A concurrency group of Ray's own, whose thread receives nothing: so two actors that receive from each other do
# not wait for each other.
_SERVES = "_ray_system_error"

_lock = threading.Lock()
_kept: dict[str, list[Reference]] = {}  # of this process's objects


def put(value: Any) -> ray.ObjectRef:
    """``ray.put()`` of an Array, or of anything in an arena's memory: nothing is copied until another machine
    wants it. Each ``ray.get()`` gives an array of its own.

    In an actor of a Ray with tensor transports, that actor keeps the arrays, and `value` may be anything that
    contains Arrays. Elsewhere a small actor, which is made on this node and ends with the ObjectRef, keeps the
    array.

    TypeError: `value` is not in a daemon's memory. RayTaskError: the new actor may not open the array.
    """
    if register_tensor_transport and ray.get_runtime_context().get_actor_id():
        return ray.put(value, _tensor_transport=_NAME)
    with Reference(value) as reference:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        owner = _Owner.options(scheduling_strategy=here).remote(reference._kept[0][0]._socket, reference)
        return ray.put(_Owned(ray.get(owner.reference.remote()), owner))


@ray.remote(num_cpus=0)
class _Owner:
    """Keeps an array. Ray ends the actor with its last handle, which is in the object that :func:`put` makes."""

    def __init__(self, socket, reference):
        with reference.open(_default.client_of(socket)) as array:
            self._reference = Reference(array)

    def reference(self):
        return self._reference

    def value(self):
        return _value(self._reference)


class _Owned:
    """An object that is unpickled as an array."""

    def __init__(self, reference, owner):
        self._told = reference, owner

    def __reduce__(self):
        return _opened, self._told


def _opened(reference, owner):
    return reference.open() if reference.here() else _made(reference, ray.get(owner.value.remote()))


@dataclass
class _Told(TensorTransportMetadata):
    """The metadata that receivers are sent."""

    references: list[Reference] = field(default_factory=list)
    actor: Any = None  # the actor that has the arrays; None: a driver


class Transport(TensorTransportManager):
    """What Ray calls, under the name "caid"."""

    @property
    def tensor_transport_backend(self) -> str:
        return _NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True  # the sender only copies

    def actor_has_tensor_transport(self, actor: ray.actor.ActorHandle) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Array]) -> _Told:
        with _lock:
            if obj_id not in _kept:  # it is there if the task is repeated
                _kept[obj_id] = _references(rdt_object)
            references = _kept[obj_id]
        actor = None
        with contextlib.suppress(RuntimeError):
            actor = ray.get_runtime_context().current_actor
        return _Told([(x.shape, x.typestr) for x in references], "cuda", references, actor)

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: _Told, communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Array] | None = None,
    ) -> list[Array]:
        """Opens the arrays that are on this machine. Asks the actor that has the others for their bytes, in
        one call."""
        told = tensor_transport_metadata
        with contextlib.ExitStack() as stack:
            away = [i for i, reference in enumerate(told.references) if not reference.here()]
            values = iter(_fetched(told.actor, obj_id, away))
            arrays = []
            for i, reference in enumerate(told.references):
                array = _made(reference, next(values)) if i in away else reference.open()
                arrays.append(stack.enter_context(array))
            for target, array in zip(target_buffers or (), arrays):
                target.copy_from(array)
            if target_buffers:
                return target_buffers
            stack.pop_all()
            return arrays

    def send_multiple_tensors(self, *_args: Any) -> None:
        raise NotImplementedError("receivers open arrays, or ask for them")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: _Told, tensors: list[Array]) -> None:
        with _lock:
            references = _kept.pop(obj_id, ())
        for reference in references:
            reference.close()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Does nothing, since no other actor waits for a transfer."""


def _references(arrays):
    with contextlib.ExitStack() as stack:
        references = [stack.enter_context(Reference(array)) for array in arrays]
        stack.pop_all()
        return references


def _fetched(actor, obj_id, indices):
    """The bytes of some of an object's arrays, by Ray's object store."""
    if not indices:
        return []
    if actor is None:
        raise not_found("an array of a driver's, on another machine: have an actor make or put it")
    return ray.get(actor.__ray_call__.options(concurrency_group=_SERVES).remote(_serve, obj_id, indices))


def _serve(_actor, obj_id, indices):
    with _lock:
        references = _kept.get(obj_id)
        if references is None:
            raise not_found(f"object {obj_id} is not kept any more")
        references = [references[i] for i in indices]
    return [_value(reference) for reference in references]


def _value(reference):
    """The bytes of an array that this process keeps, in C order."""
    with reference._kept[0][1].view() as array:
        value = numpy.empty(array.nbytes, "u1")
        array.copy_to_host(memoryview(value))
        return value


def _made(reference, value):
    """A dense array on this machine, with these bytes."""
    with contextlib.ExitStack() as stack:
        array = stack.enter_context(_default.default_client().empty(reference.shape, reference._element()))
        array.copy_from_host(memoryview(value))
        stack.pop_all()
        return array


if register_tensor_transport:
    register_tensor_transport(_NAME, ["cuda"], Transport, Array)
