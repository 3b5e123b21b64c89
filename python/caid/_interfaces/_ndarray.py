# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays whose memory a device reaches. This module imports NumPy, so it is imported on first use."""

from __future__ import annotations

from typing import Any

import numpy

from .._base._typestr import named
from .._handoff import _any_stream
from .._memory import _export


class DeviceReachable(numpy.ndarray):
    """A NumPy array over memory that kernels reach: what mapped_array() and managed_array() give.

    It and its views have a ``__cuda_array_interface__``. What NumPy computes from it lies in
    ordinary memory and has none. The memory is freed with the last array that sees it; who hands
    it to the GPU keeps the array, and waits for the GPU before reading it.
    """

    _reach = None  # (host address, bytes, device address) of the memory
    _bound = None  # the _stream.Bound that it was made with

    def __array_finalize__(self, obj):
        self._reach = getattr(obj, "_reach", None)
        self._bound = getattr(obj, "_bound", None)

    @property
    def device_ptr(self) -> int:
        """int: device address of the first element. AttributeError for an array in ordinary
        memory."""
        address = self.__array_interface__["data"][0]
        if self._reach is not None:
            host, nbytes, device = self._reach
            if host <= address < host + nbytes or (self.size == 0 and address == host + nbytes):
                return address - host + device
        raise AttributeError("the device does not reach this array's memory")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """dict: version 3 of the interface, or 2 with CAID_CAI_EXPORT_VERSION=2. ``stream`` is
        the one that the array was made with, or None: what NumPy wrote is written."""
        interface = self.__array_interface__
        pointer = self.device_ptr if self.size else 0
        descr = {} if self.dtype.names is None else {"descr": self.dtype.descr}
        return _export.on_stream(
            _any_stream.live(self._bound),
            shape=self.shape,
            typestr=getattr(named(self.dtype.name), "typestr", self.dtype.str),
            strides=None if self.flags.c_contiguous else self.strides,
            data=(pointer, interface["data"][1]),
            **descr,
        )


def over(buffer, shape, dtype, strides, order):
    """A plain NumPy array over a buffer, which it keeps."""
    return numpy.ndarray(shape, dtype, buffer, strides=strides, order=order)


def reachable(array, nbytes, device_ptr, stream):
    """A DeviceReachable over an array whose memory a device reaches at `device_ptr`. What is on the stream
    counts as work on it."""
    seen = array.view(DeviceReachable)
    seen._reach = (array.__array_interface__["data"][0], nbytes, device_ptr)
    seen._bound = None if _any_stream.is_default(stream) else _any_stream.Bound(stream)
    return seen
