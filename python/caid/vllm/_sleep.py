# SPDX-License-Identifier: Apache-2.0
"""Sleep mode backend "caid" of vLLM: an engine that sleeps has its weights not mapped, and the same addresses again when
it wakes. What is not caid's, such as the KV cache, is vLLM's own backend's.

The memory of the weights stays where it is, for the other engines, until the set has been unlinked and nobody has it.
"""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from . import _loader


class CaidBackend(CuMemBackend):
    """Levels 1 and 2 are the same to what is shared: it is mapped again, and not read from files."""

    def __init__(self):
        super().__init__()
        self._unmapped = []  # Weights

    def suspend(self, level: int = 1) -> None:
        try:
            for weights in [shared.weights for shared in _loader.alive if shared.weights is not None]:
                if all(weights is not one for one in self._unmapped):
                    weights.unmap()
                    self._unmapped.append(weights)
        except BaseException:
            self._map()  # the engine goes on
            raise
        super().suspend(level)

    def resume(self, tags: list[str] | None = None) -> None:
        if tags is None or "weights" in tags:
            self._map()
        super().resume(tags)

    def _map(self):
        while self._unmapped:
            if not self._unmapped[-1].closed:  # the model may have got another version, which is mapped
                self._unmapped[-1].map()
            self._unmapped.pop()
