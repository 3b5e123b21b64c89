# SPDX-License-Identifier: Apache-2.0
"""xarray's DataArrays have the data interface, from when both xarray and caid.storage are imported."""

from __future__ import annotations

from typing import Any

from .._errors import invalid
from .._imports import when_imported
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


def install() -> None:
    when_imported("xarray", register)
