# SPDX-License-Identifier: Apache-2.0
"""xarray's DataArrays have the data interface, from when both xarray and caid.storage are imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import Any

from .._errors import invalid
from ._interface import interface_of


def data_interface(data_array: Any) -> dict[str | None, dict[str, Any]]:
    """``DataArray.__gt_data_interface__``: that of its data, with its dims.

    Raises
    ------
    InvalidError
        The data's own dims are others.
    AttributeError
        The data has none of the interfaces.
    """
    dims = tuple(map(str, data_array.dims))
    try:
        told = interface_of(data_array.data)
    except TypeError as e:
        raise AttributeError(str(e)) from None
    for each in told.values():
        if each.get("dims") is not None and tuple(each["dims"]) != dims:
            raise invalid(f"dims {each['dims']} of the data: the DataArray has {dims}")
    return {side: {**each, "dims": dims} for side, each in told.items()}


def register(xarray: Any) -> None:
    # A property, as an accessor of xarray's own would keep the first dict. Who registers another one
    # under this name replaces it, and is warned by xarray.
    if not hasattr(xarray.DataArray, "__gt_data_interface__"):
        xarray.DataArray.__gt_data_interface__ = property(data_interface)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Has xarray register as soon as somebody imports it."""

    def find_spec(self, name, path=None, target=None):
        if name != "xarray":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module):
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                register(module)

            spec.loader.exec_module = run_and_register
        return spec


def install() -> None:
    if "xarray" in sys.modules:
        register(sys.modules["xarray"])
    else:
        sys.meta_path.insert(0, _WhenImported())
