# SPDX-License-Identifier: Apache-2.0
"""Names of before, which still work and warn: DeprecationWarning. CHANGELOG.md has all of them."""

from __future__ import annotations

import warnings
from typing import Any


def warn(old: str, new: str) -> None:
    """Warns the caller of the function that calls this one."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)


class _Renamed(property):
    """It raises what the other one does."""


def renamed(old: str, new: str) -> property:
    """What a class calls `new`, a method or a property, under its `old` name."""

    def get(self: Any) -> Any:
        name = f"caid.{type(self).__name__}"
        warn(f"{name}.{old}", f"{name}.{new}")
        return getattr(self, new)

    return _Renamed(get, doc=f"The old name of `{new}`.")
