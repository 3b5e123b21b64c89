# SPDX-License-Identifier: Apache-2.0
"""Storages: fields on the host and on a device, with a halo, a layout and an alignment. A side is brought up
to date before it is used (GDP-3 of GT4Py; docs/STORAGE.md).

>>> import caid.storage
>>> u = caid.storage.zeros((128, 128, 80), halo=(3, 3, 0), defaults="gt:gpu")
>>> u.to_numpy()[...] = 1.0                               # on the host
>>> with caid.storage.fields(write=[u], device="gpu") as (u_,):
...     kernel[grid, block](u_)                           # on the device, after a copy
>>> u[3, 3, 0]                                            # and back

Needs NumPy. If CuPy is installed, it sets elements by advanced indexing on a device.
"""

try:
    import numpy  # noqa: F401
except ImportError as e:
    raise ImportError("caid.storage needs NumPy: pip install 'caid[numpy]'", name="numpy") from e

from . import _create, _types
from ._create import *  # noqa: F403
from ._interface import Fields, fields
from ._layout import register_defaults
from ._sync import SyncState
from ._types import *  # noqa: F403

__all__ = [*_create.__all__, *_types.__all__, "Fields", "SyncState", "fields", "register_defaults"]
