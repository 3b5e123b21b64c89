# SPDX-License-Identifier: Apache-2.0
"""Versions: a publisher for tensors that come one by one, as training loops give them. What the model is made of is
known when the first version has come as a whole: that one is held in the host's memory meanwhile. Each later tensor is
copied to its place as it comes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from .. import weights
from .._base._errors import invalid
from .._base._lifetime import NotCompared
from .._session import _default
from ..weights import _publisher

Put = Callable[[str, Any], None]


class Versions(NotCompared):
    """Who publishes them. Options are those of :func:`caid.weights.publisher`; `timeout` is for each wait."""

    def __init__(self, name, *, pool=None, versions=2, timeout=None, client=None):
        self._client = client or _default.default_client()
        self._name, self._options = name, {"pool": pool, "versions": versions, "timeout": timeout}
        self._timeout = timeout
        self._publisher: weights.Publisher | None = None
        self.current = 0  # the version that was published last

    def close(self) -> None:
        """Lets another one publish. Idempotent."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    @contextlib.contextmanager
    def version(self, metadata: Any = None) -> Iterator[Put]:
        """put(key, tensor) for the block, which copies the tensor on PyTorch's current stream. At the block's end the
        version has landed, and is current; a block that is left by an exception publishes nothing."""
        fill = self._first if self._publisher is None else self._next
        with fill(metadata) as put:
            yield put
        assert self._publisher is not None
        self.current = self._publisher.wait(self._timeout)

    @contextlib.contextmanager
    def _first(self, metadata):
        held, devices = {}, set()

        def put(key, tensor):
            self._once(key, held)
            if tensor.is_cuda:
                devices.add(self._client._find_device(tensor.device.index))
            held[key] = tensor.detach().to("cpu", copy=True)

        yield put
        device = devices.pop() if len(devices) == 1 else 0
        made = weights.publisher(self._name, held, device=device, client=self._client, **self._options)
        try:
            made.publish(held, timeout=self._timeout, metadata=metadata)
        except BaseException:
            made.close()
            raise
        self._publisher = made

    @contextlib.contextmanager
    def _next(self, metadata):
        members, given = self._publisher._members.of, set()
        with self._publisher.version(timeout=self._timeout, metadata=metadata) as w:

            def put(key, tensor):
                self._once(key, given)
                known = {key: members[key]} if key in members else {}
                misfits = [*_publisher._misfits(known, {key: tensor})]
                if misfits:
                    raise invalid(f"{self._name}: {misfits[0]}")
                given.add(key)
                w._fill({key: tensor.detach()})
                w._stream = None  # the next tensor may be another stream's: at the end all are waited for

            yield put
            missing = members.keys() - given
            if missing:
                raise invalid(f"{self._name}: {_publisher._listed(sorted(missing))}: missing")

    def _once(self, key, given):
        if key in given:
            raise invalid(f"{self._name}: {key!r} came twice")


def on_this_device(w: weights.Weights) -> dict[str, Any]:
    """PyTorch's tensors of a version, for the current device to read; those on another one over the link between them."""
    import torch

    device = w.client._find_device(torch.cuda.current_device()) if torch.cuda.is_initialized() else w.device
    return w.torch() if device == w.device else w.shard(0, 1, device=device).torch()
