# SPDX-License-Identifier: Apache-2.0
"""What an Array has that has arrived, where its memory could not be opened: an exception while something is
unpickled would end the thread in which multiprocessing reads results, and nobody would be told."""

from __future__ import annotations

import copy

from . import _array


class Missing:
    """Memory as Array wants it: what asks for it is told why it is not there."""

    __slots__ = ("pool", "name", "generation", "error", "sent")

    client = memory = metadata = uid = pending = None
    device = mapped_device = mapped_ordinal = -1
    created = closed = _live = False

    def __init__(self, pool, name, generation, error, sent):
        self.pool = pool
        self.name = name
        self.generation = generation
        self.error = copy.copy(error)  # without its traceback, which keeps what its frames have
        self.sent = sent  # what it is pickled as: where that arrives, it is tried again

    def check(self):
        raise copy.copy(self.error)

    def close(self, _stream=None):
        pass


def array(reference, error, sent):
    """The Array that a reference tells of, without its memory."""
    readonly = reference.mode == "r"
    layout = _array.Layout(0, reference.shape, reference.strides, reference._element(), readonly)
    memory = Missing(reference.pool, reference.name, reference.generation, error, sent)
    return _array.make(memory, layout, root=False)


def why(array):
    """The error of an Array whose memory is missing; None of another."""
    return getattr(array._memory, "error", None)
