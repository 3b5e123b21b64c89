# SPDX-License-Identifier: Apache-2.0
"""checkpoint-engine (0.4): receivers of the updates that its ParameterServer sends, which believe the sender less than
its own does, and one that publishes them for all engines of the machine.

``python -m caid.rl.checkpoint_engine`` is ``python -m checkpoint_engine`` with sockets that these receivers take.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import zmq

from .._base._lifetime import NotCompared
from . import _wire
from ._versions import Versions

if TYPE_CHECKING:
    from .._session._client import Client

TIMEOUT_S = 600.0

__all__ = ["Receiver", "WorkerExtension", "private_sockets", "update_weights_from_ipc"]


def update_weights_from_ipc(
    zmq_ctx: zmq.Context,
    zmq_handle: str,
    device_id: int,
    *,
    run: Callable[[list[tuple[str, torch.Tensor]]], None],
    post_hook: Callable[[], None] | None = None,
    timeout: float = TIMEOUT_S,
) -> None:
    """In the place of ``checkpoint_engine.worker.update_weights_from_ipc``: takes one update. Of messages only what the
    protocol has is unpickled, and nothing in them is called but ``rebuild_cuda_tensor``, with arguments that have
    been looked at.

    Parameters
    ----------
    zmq_ctx, zmq_handle
        The sender's socket, in a folder of this user's with mode 0700.
    device_id : int
        PyTorch's index of the device.
    run : function
        Called with ``[(name, tensor), ...]``, many times. The tensors are the sender's buffer: they are overwritten
        after run() has returned, and what it enqueued on the device is done.
    post_hook : function, optional
        Called at the end, when all have been told.
    timeout : float
        Seconds without a word of the sender.

    Raises
    ------
    PermissionError
        Another user could have made the socket.
    pickle.UnpicklingError, TypeError, ValueError
        A message is not the protocol's.
    RuntimeError
        The sender gave up: this receiver, or another one, failed.
    TimeoutError
        The sender is not there, or has died.
    """
    _wire.receive(zmq_ctx, zmq_handle, device_id, run, post_hook, timeout)


class Receiver(NotCompared):
    """Publishes each update as a version of a model: its tensors, as they come, are copied to where they are read by all
    engines on the machine (:func:`caid.weights.open`). A context manager.

    Parameters
    ----------
    name : str
        The model's name.
    device : int, optional
        PyTorch's index of the device; by default its current one.
    timeout : float
        Seconds without a word of the sender, and of each wait for readers.
    pool, versions, client
        As for :func:`caid.weights.publisher`.
    """

    def __init__(
        self, name: str, *, device: int | None = None, pool: str | None = None, versions: int = 2,
        timeout: float = TIMEOUT_S, client: Client | None = None,
    ):  # fmt: skip
        self._device, self._timeout = torch.cuda.current_device() if device is None else device, timeout
        self._versions = Versions(name, pool=pool, versions=versions, timeout=timeout, client=client)
        self._context = zmq.Context()

    def close(self) -> None:
        """Lets another one publish. The current version keeps its name. Idempotent."""
        self._versions.close()
        self._context.term()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update_weights_from_ipc(self, zmq_handles: dict[str, str], metadata: Any = None) -> int:
        """Takes one update, and returns its version, which is current then. The errors are those of
        :func:`update_weights_from_ipc` and of :meth:`caid.weights.Publisher.version`; nothing is published then."""
        handle = _wire.handle_for(zmq_handles, _wire.uuid_of(self._device))
        with torch.cuda.device(self._device), contextlib.ExitStack() as writing:
            put = writing.enter_context(self._versions.version(metadata))

            def run(tensors):
                for name, tensor in tensors:
                    put(name, tensor)

            def publish():
                writing.pop_all().close()

            _wire.receive(self._context, handle, self._device, run, publish, self._timeout)
        return self._versions.current


class WorkerExtension:
    """For vLLM: ``worker_extension_cls="caid.rl.checkpoint_engine.WorkerExtension"``, in the place of
    ``checkpoint_engine.worker.VllmColocateWorkerExtension``."""

    device: torch.device  # vLLM's worker has them
    model_runner: Any
    model_config: Any

    def update_weights_from_ipc(self, zmq_handles: dict[str, str]) -> None:
        """Called by ``collective_rpc``. Takes one update into the model, and into the draft model, if there is one."""
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        drafter = getattr(getattr(self.model_runner, "drafter", None), "model", None)
        models = [model for model in (self.model_runner.model, drafter) if model is not None]
        shared = [model for model in models if hasattr(model, "caid")]

        def run(tensors):
            while shared:  # its tensors are other engines', too
                from ..vllm import _model

                _model.own(shared[-1])
                shared.pop()
            for model in models:
                model.load_weights(tensors)

        def finish():
            for model in models:
                process_weights_after_loading(model, self.model_config, self.device)

        handle = _wire.handle_for(zmq_handles, _wire.uuid_of(self.device.index))
        _wire.receive(zmq.Context.instance(), handle, self.device.index, run, finish, TIMEOUT_S)


def private_sockets() -> None:
    """From now on each ParameterServer of this process has its sockets in a folder that only this user enters. By
    itself checkpoint-engine has them where any user of the machine can make them, or connect."""
    from checkpoint_engine.ps import ParameterServer

    ParameterServer._bind_zmq_socket = _bind


def _bind(server):
    """(socket, [(GPU, address), ...]) as ParameterServer._bind_zmq_socket has them. The port of the servers' store tells
    those of one program from another's."""
    here, program = _wire.folder(), server._store.port

    def address(uuid):
        return f"ipc://{here}/{uuid}-{program}-{server._zmq_addr_counter}.sock"

    addresses = [(uuid, address(uuid)) for uuid in server._global_device_uuids]
    own = address(server._device_uuid)
    with contextlib.suppress(AttributeError, FileNotFoundError):
        os.unlink(server._caid_bound)  # of the update before: ZeroMQ leaves it
    socket = server._zmq_ctx.socket(zmq.REQ)
    socket.bind(own)
    server._caid_bound = own[len("ipc://") :]
    server._zmq_addr_counter += 1
    return socket, addresses


if __name__ == "__main__":
    from checkpoint_engine.__main__ import run_from_cli

    private_sockets()
    run_from_cli()
