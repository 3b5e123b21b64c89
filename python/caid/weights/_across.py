# SPDX-License-Identifier: Apache-2.0
"""Loads on several machines: one rank reads the files, and one on each machine makes the arrays."""

from __future__ import annotations

import contextlib
from typing import Callable

from .. import mpi
from .._interfaces import _staging
from .._session import _default
from . import _load, _plan


def load(
    comm, client, make_plan: Callable[[], _plan.Plan], prefix: str, *, pool, device, progress: Callable
) -> int:
    """Loads a model, and returns the set's generation on this rank's machine. If a rank fails before all have
    all bytes, no machine has the name; if a publish fails, the other machines have it all the same."""
    with contextlib.ExitStack() as stack:
        with mpi.Phase(comm) as phase:
            client = client or _default.default_client()
            device = client._index_of(device)
            phase.value = mpi.place(client), make_plan() if comm.rank == 0 else None
        machines = mpi.Machines([place for place, _ in phase.values], 0)
        plan = phase.values[0][1]
        with mpi.Phase(comm):
            if machines.leads(comm.rank):
                loading = _load.Loading(stack, client, plan, prefix, pool=pool, device=device)
                lane = stack.enter_context(_staging.Lane(client, device, mpi.CHUNK))
        with mpi.Phase(comm):
            if comm.rank == 0:
                _load.fill(client, plan, [device], lambda: [loading], progress)
            elif machines.leads(comm.rank):
                loading.make_arrays()
        with mpi.Phase(comm) as phase, machines.between(comm) as leaders:
            if leaders:
                mpi.send(phase, leaders, lane, loading.whole)
        with mpi.Phase(comm) as phase:
            if machines.leads(comm.rank):
                phase.value = loading.publish()
        return phase.values[machines.leader_of(comm.rank)]
