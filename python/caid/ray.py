# SPDX-License-Identifier: Apache-2.0
"""Arrays between Ray's actors: on one machine by reference, between machines by value. Needs a Ray that takes
tensor transports (``ray.experimental.register_tensor_transport``; 2.60 has it).

>>> import caid.ray                                   # before the actors are created
>>> @ray.remote(enable_tensor_transport=True)
... class Loader:
...     @ray.method(tensor_transport="caid")
...     def load(self):
...         return caid.default_client().ones(1 << 20, "<f4")
>>> ref = Loader.remote().load.remote()
>>> ray.get(trainer.train.remote(ref))                # an actor of the same machine opens it: no copy
>>> ref = caid.ray.put(a)                             # within an actor

The actor that made an object keeps its arrays, by a ticket for any number of receivers, until nobody has the
ObjectRef. A receiver has an array of its own, which it closes, or which ends with its last reference.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy
import ray
from ray.experimental import TensorTransportManager, TensorTransportMetadata, register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata

from . import _default
from ._array import Array
from ._errors import not_found
from ._reference import Reference

__all__ = ["Transport", "put"]

_NAME = "CAID"
# One of Ray's own threads of an actor, and not the one that receives: so two actors that receive from each
# other do not wait for each other.
_SERVES = "_ray_system_error"

_lock = threading.Lock()
_kept: dict[str, list[Reference]] = {}  # of this process's objects


def put(value: Any) -> ray.ObjectRef:
    """``ray.put()`` for what has caid's arrays in it: the actor that calls it keeps them, and nothing is
    copied until another machine wants them."""
    return ray.put(value, _tensor_transport=_NAME)


@dataclass
class _Told(TensorTransportMetadata):
    """What receivers are sent."""

    references: list[Reference] = field(default_factory=list)
    actor: Any = None  # that has the arrays; None: a driver


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
        return True  # who serves only copies

    def actor_has_tensor_transport(self, actor: ray.actor.ActorHandle) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Array]) -> _Told:
        with _lock:
            if obj_id not in _kept:  # a task that is tried again has its object
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
        """Opens what is here; asks the actor that has the others for their bytes, once for all of them."""
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
        """Nothing is under way that another actor waits for."""


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
        views = [references[i]._kept[0][1].view() for i in indices]
    values = []
    for view in views:
        with view:
            values.append(numpy.empty(view.nbytes, "u1"))
            view.copy_to_host(memoryview(values[-1]))
    return values


def _made(reference, value):
    """An array of this machine's, dense, with these bytes."""
    with contextlib.ExitStack() as stack:
        array = stack.enter_context(_default.default_client().empty(reference.shape, reference._element))
        array.copy_from_host(memoryview(value))
        stack.pop_all()
        return array


register_tensor_transport(_NAME, ["cuda"], Transport, Array)
