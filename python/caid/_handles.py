# SPDX-License-Identifier: Apache-2.0
"""What the classes of things that end by ``close()`` have in common."""

from __future__ import annotations

from typing import TypeVar

_Self = TypeVar("_Self")


class OfProcess:
    """Made by others, and by these alone; of one process."""

    __slots__ = ()

    _comes_from: str
    _no_copy = "it is of one process"

    def __new__(cls, *_args, **_kwargs):
        raise TypeError(f"caid.{cls.__name__} comes from {cls._comes_from}")

    def __reduce__(self):
        what = f"a caid.{type(self).__name__} cannot be copied or pickled"
        raise TypeError(f"{what}: {self._no_copy}")


class Closing:
    """A context manager that ends with close()."""

    __slots__ = ()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()  # type: ignore[attr-defined]
