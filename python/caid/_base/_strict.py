# SPDX-License-Identifier: Apache-2.0
"""Strict device memory of the software driver: the host's access to it is refused, as a GPU's memory refuses
it."""

from __future__ import annotations

import contextlib
import os

from .. import _caid


def is_asked() -> bool:
    """Whether the environment asks for it, for new clients."""
    return os.environ.get("CAID_SOFTCUDA_STRICT", "") not in ("", "0")


def strict_device() -> contextlib.AbstractContextManager[object]:
    """Has the software driver's device memory be out of the host's reach, as a GPU's is: for tests of
    programs that are to run on one.

    ``numpy.asarray(a)``, ``numpy.add(a, 1)``, ``numpy.save(f, a)`` and the like of an array of "device"
    or "legacy" memory raise TypeError, as they do with a GPU; its ``__array_interface__`` AttributeError,
    and ``__dlpack__`` to the host with ``copy=False`` BufferError; its `host_ptr` is None, and
    :attr:`caid.Client.host_accessible` False. Copies are as ever. Arrays that are there already are no
    exception, but what sees their memory by then goes on seeing it.

    Called, it is so from then on, in all threads, for all clients. As a context manager
    (``with caid.strict_device():``) it is so within the block. With a GPU nothing changes. The
    environment's ``CAID_SOFTCUDA_STRICT=1``, which is read when a client connects, does the same for
    good for the client's arrays.

    Returns
    -------
    context manager
        Its end restores what was so before.
    """
    undo = contextlib.ExitStack()
    undo.callback(_caid.set_strict, _caid.set_strict(True))
    return undo
