# SPDX-License-Identifier: Apache-2.0
"""Metadata of arrays: any object that JSON can tell, kept by the daemon as JSON text."""

import json

from ._errors import invalid


def encode(value):
    """JSON text; None of None, which stands for no metadata.

    Raises
    ------
    TypeError
        Something that JSON has not: a set, a NumPy array, ...
    InvalidError
        A number that is none, or an object that holds itself.
    """
    if value is None:
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as e:
        raise invalid(f"metadata: {e}") from None


def decode(text):
    """A fresh object each time. Text that is no JSON (a program in C may have put it there) is
    given as it is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
