# SPDX-License-Identifier: Apache-2.0
"""Metadata of arrays: any object that JSON can tell, kept by the daemon as JSON text."""

import contextlib

from ._errors import invalid


def encode(value):
    """The JSON text of a value; None for None, which stands for no metadata.

    Raises
    ------
    TypeError
        Something that JSON has not: a set, a NumPy array, ...
    InvalidError
        A number that is none, or an object that holds itself. Both say where it is.
    """
    if value is None:
        return None
    try:
        return _dump(value)
    except (TypeError, ValueError, RecursionError) as e:
        at, why = "metadata", e
        with contextlib.suppress(RecursionError):
            at, why = _misfit(value, at, why)
        error = TypeError if isinstance(why, TypeError) else invalid
        raise error(f"{at}: {why}") from None


def _dump(value):
    import json

    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _misfit(value, at, why):
    """(path, error) of the innermost part that JSON cannot represent."""
    parts = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    for key, part in parts:
        try:
            _dump(part)
        except (TypeError, ValueError) as e:
            return _misfit(part, f"{at}[{key!r}]", e)
    return at, ValueError(f"{value!r} is no number of JSON") if isinstance(value, float) else why


def decode(text):
    """The value of a JSON text, a new object each time. Text that is no JSON, which a program in C may have
    written, is returned as it is."""
    if text is None:
        return None
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
