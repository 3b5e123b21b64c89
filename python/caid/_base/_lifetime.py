# SPDX-License-Identifier: Apache-2.0
"""Base classes of objects that end by ``close()``."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from typing import Any, TypeVar

from ._errors import UnavailableError

_Self = TypeVar("_Self")
_Class = TypeVar("_Class", bound=type)


def attributes(cls: _Class) -> _Class:
    """A decorator of classes: properties, also those of a base in C, raise UnavailableError, an
    AttributeError, in place of any other error."""
    for name in dir(cls):
        if name.startswith("_") and not name.endswith("_interface__"):
            continue
        member = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if type(member) is property and member.fget is not None:
            get = functools.wraps(member.fget)(_attribute_of(member.fget))
            setattr(cls, name, property(get, member.fset, doc=member.__doc__))
        elif isinstance(member, types.GetSetDescriptorType):
            setattr(cls, name, property(_attribute_of(member.__get__), doc=member.__doc__))
    return cls


def _attribute_of(get):
    def attribute(self) -> Any:
        try:
            return get(self)
        except (AttributeError, Warning):
            raise
        except Exception as e:
            raise UnavailableError(str(e)) from e

    return attribute


def attribute(thing: Any, name: str) -> Any:
    """An attribute's value, for use in a method: raises the error behind an UnavailableError; None where
    there is no such attribute."""
    try:
        return getattr(thing, name)
    except UnavailableError as e:
        raise (e.__cause__ or e) from None
    except AttributeError:
        return None


class OfProcess:
    """An object of one process, which other classes' methods make: it is not constructed, copied or
    pickled."""

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


class NotCompared:
    """An object of elements that are not compared: `==` raises, but for the object itself and None."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if other is self or other is None:
            return other is self
        what = f"a caid.{type(self).__name__} compares no elements"
        raise TypeError(f"{what}: copy them to the host; `is` tells whether it is the same object")


class Named(OfProcess, Closing):
    """An object that belongs to a name and has to be closed: one that is collected without that warns."""

    __slots__ = ()

    _name: str
    _pool: str | None
    closed: bool
    _live: bool

    def __del__(self, _warn=warnings.warn):
        if self._live:
            with contextlib.suppress(AttributeError):  # it was not made yet
                _warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def _described(self, more=""):
        pool = "" if self._pool is None else f" pool={self._pool!r}"
        closed = " closed" if self.closed else ""
        return f"<caid.{type(self).__name__} {self._name!r}{pool}{more}{closed}>"

    @property
    def name(self) -> str:
        """str: what it was made by."""
        return self._name

    @property
    def pool(self) -> str | None:
        """str or None: the pool that the name is in; None for the caller's own."""
        return self._pool
