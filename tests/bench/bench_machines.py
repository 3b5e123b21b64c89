# SPDX-License-Identifier: Apache-2.0
"""Jobs on many machines, simulated in this process without memory: what goes by reference and what by
value, and that nothing is left. Prints the table of docs/SCALING.md.

A worker that asks for an array gets it of one of its own machine, where one has it (as Dask and
caid.mpi choose), by reference where that can be opened, else by value; then its daemon has it. By value alone, as
without caid, each worker that asks gets the bytes. test_reference.py runs the same jobs on daemons, by caid.Reference.
"""

import collections
import itertools
import sys

GIB = 1 << 30


class Machine:
    """A daemon, its arrays, and who holds each."""

    def __init__(self):
        self.holders = collections.defaultdict(set)  # by key

    def hold(self, worker, key):
        """One that the worker has made."""
        self.holders[key].add(worker)

    def take(self, worker, key, machine):
        """One that is at that machine. Whether it came by reference."""
        self.hold(worker, key)
        return machine is self

    def end(self, worker):
        """It lets go of all that it has, or dies."""
        for key, holders in list(self.holders.items()):
            holders.discard(worker)
            if not holders:
                del self.holders[key]


class Job:
    """Its workers, several to a machine; counts what is sent."""

    def __init__(self, n_machines, n_each, machine=Machine):
        self.machines = [machine() for _ in range(n_machines)]
        self.of = [machine for machine in self.machines for _ in range(n_each)]
        self.references = self.network = self.local = self.by_value = self.peak = self.peak_by_value = 0

    def make(self, worker, key):
        self.of[worker].hold(worker, key)

    def fetch(self, worker, key, source, nbytes):
        """The worker gets what `source` has made."""
        here, there = self.of[worker], self.of[source]
        if here.take(worker, key, here if key in here.holders else there):
            self.references += 1
        else:
            self.network += nbytes
        self.by_value += nbytes if here is not there else 0
        self.local += nbytes if here is there else 0

    def measure(self, nbytes):
        """Memory, as of now: arrays of the daemons, and those of each worker by itself."""
        held = [sum(map(bool, m.holders.values())) for m in self.machines]
        self.peak = max(self.peak, max(held) * nbytes)
        copies = [sum(map(len, m.holders.values())) for m in self.machines]
        self.peak_by_value = max(self.peak_by_value, max(copies) * nbytes)

    def end(self):
        for worker, machine in enumerate(self.of):
            machine.end(worker)
        assert not any(machine.holders for machine in self.machines)


def broadcast(job, nbytes):
    job.make(0, "x")
    for worker in range(1, len(job.of)):
        job.fetch(worker, "x", 0, nbytes)
    job.measure(nbytes)


def shuffle(job, nbytes):
    """Each worker has an equal part for every other one."""
    n = len(job.of)
    part = nbytes // n
    for source, worker in itertools.permutations(range(n), 2):
        job.make(source, (source, worker))
        job.fetch(worker, (source, worker), source, part)
    job.measure(part)


def halo(job, nbytes):
    """A periodic grid in three dimensions, a cube of it on each machine; nbytes: of one face."""
    side = round(len(job.of) ** (1 / 3))
    cube = round((len(job.of) / len(job.machines)) ** (1 / 3))
    points = list(itertools.product(range(side), repeat=3))
    points.sort(key=lambda p: (tuple(c // cube for c in p), p))  # those of a machine come together
    rank = {p: i for i, p in enumerate(points)}
    for p, axis, step in itertools.product(points, range(3), (-1, 1)):
        neighbour = *p[:axis], (p[axis] + step) % side, *p[axis + 1 :]
        key = p, axis, step
        job.make(rank[p], key)
        job.fetch(rank[neighbour], key, rank[p], nbytes)
    job.measure(nbytes)


JOBS = {  # bytes of each worker's array, or face
    "broadcast of 1 GiB": (broadcast, GIB),
    "shuffle of 1 GiB a worker": (shuffle, GIB),
    "halo exchange, faces of 8 MiB": (halo, 8 << 20),
}


def run(pattern, nbytes, n_machines=64, n_each=8, machine=Machine):
    job = Job(n_machines, n_each, machine)
    pattern(job, nbytes)
    job.end()
    return job


def main():
    print("| job | by value: network; within machines; memory of one | caid: network; memory of one | references |")
    print("| --- | --- | --- | --- |")
    for name, (pattern, nbytes) in JOBS.items():
        job = run(pattern, nbytes)
        figures = job.by_value, job.local, job.peak_by_value, job.network, job.peak
        sizes = (f"{n / GIB:,.1f}" for n in figures)
        print("| {} | {}; {}; {} GiB | {}; {} GiB | {:,} |".format(name, *sizes, job.references))


if __name__ == "__main__":
    sys.exit(main())
