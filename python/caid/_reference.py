# SPDX-License-Identifier: Apache-2.0
"""The functions that pickles name. Those of other releases name them here, by these names, so here they stay,
with the arguments that they have."""

from ._interfaces._reference import _arrived, _open_at, _unsent

for _function in (_arrived, _open_at, _unsent):
    _function.__module__ = __name__
