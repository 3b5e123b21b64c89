# SPDX-License-Identifier: Apache-2.0
"""Clients of a CUDA driver alone, for memory that no daemon knows. They are the process's, not the user's
to close; a forked child gets its own."""

from __future__ import annotations

import os
from typing import Any

from .. import _caid

_drivers: dict = {}  # (process id, driver): client


def driver_client(client: Any = None) -> _caid.Client:
    """A client of the driver alone: of this process's, or of the one that `client` uses."""
    driver = None if client is None else os.fspath(client._driver)
    key = os.getpid(), driver
    if key not in _drivers:
        _drivers[key] = _caid.Client._local(driver)
    return _drivers[key]
