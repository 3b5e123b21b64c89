# SPDX-License-Identifier: Apache-2.0
"""Parts: arrays of their own in the memory of another array, as which views are published."""

from __future__ import annotations

import contextlib

from .._base import _geometry
from .._base._errors import Error, invalid


def strides_of(shape, strides, itemsize):
    """The strides of a part as libcaid takes them: None for C order. InvalidError: negative ones."""
    if _geometry.is_c_contiguous(shape, strides, itemsize):
        return None
    # The step of a dimension of one element is never taken.
    strides = tuple(abs(step) if n == 1 else step for n, step in zip(shape, strides))
    if min(strides) < 0:
        raise invalid(
            f"strides {strides}: an array with negative ones is not published; publish it the other way round, "
            "which readers turn, or a copy"
        )
    return strides


def taken(client, ticket):
    """The Lease of an array for which this client has made a ticket of its own."""
    try:
        return client._take(ticket, "rw", None, False)
    except BaseException:  # Ctrl-C, perhaps: the ticket would keep the memory
        with contextlib.suppress(Error):
            client._take(ticket, "r", None, False).close()
        raise


def of_view(view, stream):
    """A Lease of a view's elements as an array without a name, after the work on a stream (0: of the device's
    context). A view of no elements is of no memory: one like it is made."""
    memory, layout = view._memory, view._layout
    element, client = layout.element, memory.client
    if 0 in layout.shape:
        return client._create_lease(
            None, layout.shape, element, None, memory.pool, memory.device, False, memory.memory, 0, None
        )
    strides = strides_of(layout.shape, layout.strides, element.itemsize)
    offset = layout.ptr - memory.ptr
    return taken(
        client, memory.part(offset, element.type_name, element.descr, layout.shape, strides, stream)
    )
