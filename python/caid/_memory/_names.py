# SPDX-License-Identifier: Apache-2.0
"""Calls by name that take several requests, between which others may change the name."""

import contextlib
import math
import numbers
import time
from typing import NamedTuple, Optional, Tuple

from .._base import _geometry, _typestr
from .._base._errors import DroppedError, ExistsError, NotFoundError, TimedOutError, exists, invalid, timed_out

# Seconds until open_or_make() tries again. A name that is being created can be neither opened nor created,
# and where its creation fails, no news of it comes.
_RETRY_S = 0.02


# A longer time is cut to this, 570 years: the daemon counts nanoseconds in 64 bits.
_TTL_MAX_S = 1.8e10


def ttl_ns(ttl):
    """A `ttl` of seconds as the daemon takes it, in nanoseconds; 0 for None."""
    if ttl is None:
        return 0
    if isinstance(ttl, bool) or not isinstance(ttl, numbers.Real) or not 0 < ttl < math.inf:
        raise invalid(f"ttl {ttl!r}: seconds, more than 0, or None")
    return max(1, int(min(ttl, _TTL_MAX_S) * 1e9))


def open_when_there(client, name, mode, pool, device, timeout):
    """The Array of Client.open(wait=True). The watch comes first, so that no news is missed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    array = None
    with client.watch(name, pool=pool) as watch, _said(name, timeout):
        while array is None:
            watch.get(None if deadline is None else max(0.0, deadline - time.monotonic()))
            array = _open_now(client, name, mode, pool, device)
    return array


async def async_open_when_there(client, name, mode, pool, device, timeout):
    """The same for asyncio."""
    deadline = None if timeout is None else time.monotonic() + timeout
    array = _open_now(client, name, mode, pool, device)
    if array is not None:
        return array
    with client.watch(name, pool=pool) as watch, _said(name, timeout):
        while array is None:
            await watch.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            array = _open_now(client, name, mode, pool, device)
    return array


def _open_now(client, name, mode, pool, device):
    """None where it is gone again. What was dropped does not come by itself."""
    try:
        return client.open(name, mode, pool=pool, device=device)
    except DroppedError:
        raise
    except NotFoundError:
        return None


@contextlib.contextmanager
def _said(name, timeout):
    try:
        yield
    except TimedOutError:
        if timeout is None:  # the client's own
            raise
        raise timed_out(f"no array {name!r} came in {timeout:g} s") from None


def starting_with(client, prefix, pool):
    """The names that Client.unlink(prefix=) is to remove."""
    if not prefix:
        raise invalid("prefix: all names of a pool start with an empty one; unlink what list() has")
    return [e.name for e in client.list(prefix=prefix, pool=pool) if not e.of_set]


# --- one array for all that ask -------------------------------------------------------------


class Wanted(NamedTuple):
    """What create(exist_ok=True) asks for."""

    shape: Tuple[int, ...]
    element: _typestr.Element
    strides: Optional[Tuple[int, ...]]  # None: C order
    memory: str
    device: int
    alignment: int


def open_or_make(client, name, pool, wanted, make):
    """The Array of Client.create(exist_ok=True). Opening is tried first, since it needs no quota."""
    while True:
        with contextlib.suppress(NotFoundError):
            return _checked(client.open(name, "rw", pool=pool), wanted)
        with contextlib.suppress(ExistsError):
            return make()
        with client.watch(name, pool=pool) as watch, contextlib.suppress(TimedOutError):
            watch.get(_RETRY_S)


def _checked(array, wanted):
    different = ", ".join(_differences(array, wanted))
    if not different:
        return array
    array.close()
    raise exists(f"array {array.name!r} exists, and is another one: {different}")


def _differences(a, wanted):
    """How an array differs from what is wanted, in words."""
    has, wants = a._layout.element, wanted.element
    strides = wanted.strides or _geometry.c_strides(wanted.shape, wants.itemsize)
    alike = has.type_name == wants.type_name and (has.descr is None) == (wants.descr is None)
    if a.shape != wanted.shape:
        yield f"shape {a.shape}, not {wanted.shape}"
    if not (alike and _typestr.same(has, wants)):
        yield f"type {has.descr or has.type_name}, not {wants.descr or wants.type_name}"
    elif a.shape == wanted.shape and not _geometry.is_contiguous(a.shape, a.strides, strides):
        yield f"strides {a.strides}, not {strides}"
    if a.memory != wanted.memory:
        yield f"memory {a.memory!r}, not {wanted.memory!r}"
    if a.device != wanted.device:
        yield f"device {a.device}, not {wanted.device}"
    if a.ptr % wanted.alignment:
        yield f"aligned to {a.ptr & -a.ptr} bytes, not {wanted.alignment}"
