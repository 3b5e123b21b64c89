# SPDX-License-Identifier: Apache-2.0
"""What is built on clients: functions by Numba's names, references, adapters of allocators."""
