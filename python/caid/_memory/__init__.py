# SPDX-License-Identifier: Apache-2.0
"""Arrays: their memory, copies, names, sets, arenas, and what they are to other libraries."""
