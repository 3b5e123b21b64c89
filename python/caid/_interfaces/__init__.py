# SPDX-License-Identifier: Apache-2.0
"""Interfaces on top of clients: functions by Numba's names, references, adapters of allocators."""
