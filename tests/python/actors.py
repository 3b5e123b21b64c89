# SPDX-License-Identifier: Apache-2.0
"""The actors of test_ray.py."""

import functools
import importlib

import caid
import caid.ray
import numpy
import ray
from engines import n_copies

TYPES = ["?", "i1", "<u2", ">i4", "<f8", "<c16", "<M8[ns]", [("a", "<i2"), ("b", "<f8", (2,))]]


def twin(seed):
    """(whole, part): NumPy arrays, the same everywhere, of some type and layout."""
    chance = numpy.random.default_rng(seed)
    dtype = numpy.dtype(TYPES[seed % len(TYPES)])
    shape = tuple(chance.integers(0 if seed % 7 == 0 else 1, 9, seed % 4))
    raw = numpy.frombuffer(chance.bytes(int(numpy.prod(shape)) * dtype.itemsize), "u1")
    whole = (raw & 1 if dtype == "?" else raw).view(dtype).reshape(shape)
    return whole, part_of(whole, seed)


def part_of(a, seed):
    if not a.ndim:
        return a.view()
    return a[:: -1 if seed % 2 else 2].transpose(*reversed(range(a.ndim)))


@ray.remote(enable_tensor_transport=True, num_cpus=0)
class Actor:
    def __init__(self):
        self.client, self.n_served, serve = caid.default_client(), 0, caid.ray._serve

        @functools.wraps(serve)
        def counted(actor, *args):
            values = serve(actor, *args)
            actor.n_served += sum(value.nbytes for value in values)
            return values

        caid.ray._serve = counted

    def served(self):
        """Bytes that have left this actor."""
        return self.n_served

    def copies(self, _array=None):
        """That the driver of this actor has made by now: the array has come before."""
        return n_copies()

    @ray.method(tensor_transport="caid")
    def make(self, seed):
        with self.client.empty(*(lambda a: (a.shape, a.dtype))(twin(seed)[0])) as whole:
            whole.copy_from_host(twin(seed)[0])
            return {"seed": seed, "array": part_of(whole, seed)}

    @ray.method(tensor_transport="caid")
    def full(self, n, value):
        with self.client.full(n, value, "<i8") as a:
            return a.view()

    def put(self, n, value):
        with self.client.full(n, value, "<i8") as a:
            return [caid.ray.put(a)]  # a ref within a list stays one

    def put_of_an_older_ray(self, n, value):
        """Without tensor transports."""
        import ray.experimental as experimental

        register = experimental.__dict__.pop("register_tensor_transport")
        try:
            older = importlib.reload(caid.ray)
        finally:
            experimental.register_tensor_transport = register
        with self.client.full(n, value, "<i8") as a:
            return [older.put(a)]

    def is_right(self, got):
        with got["array"] as a:
            return a.copy_to_host().tobytes() == twin(got["seed"])[1].tobytes()

    def first(self, a, write=None):
        with a:
            value = int(a[0].copy_to_host())
            if write is not None:
                a.copy_from_host(numpy.full(a.shape, write))
            return value
