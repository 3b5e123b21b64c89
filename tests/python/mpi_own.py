# SPDX-License-Identifier: Apache-2.0
"""mpi4py's own tests with caid's arrays. usage: mpirun python mpi_own.py FOLDER MODULE..., where FOLDER is `test`
of mpi4py's sources; caid.mpi has no part in it."""

import sys
import unittest

sys.path.insert(0, sys.argv[1])

import arrayimpl  # noqa: E402

import caid  # noqa: E402
import numpy  # noqa: E402

KINDS = (arrayimpl.TypeMapBool, arrayimpl.TypeMapInteger, arrayimpl.TypeMapUnsigned, arrayimpl.TypeMapFloat,
         arrayimpl.TypeMapComplex)


class ArrayCaid(arrayimpl.BaseArray):
    backend = "caid"
    TypeMap = {code: kind for kinds in KINDS for code, kind in kinds.items() if code not in "gG"}

    def __init__(self, arg, typecode, shape=None, readonly=False):
        twin = arrayimpl.ArrayNumPy(arg, typecode, shape).array
        self.array = caid.default_client().empty(twin.shape, twin.dtype)
        self.array.copy_from_host(twin)

    address = property(lambda self: self.array.ptr)
    typecode = property(lambda self: self.array.dtype.char)
    itemsize = property(lambda self: self.array.itemsize)
    size = property(lambda self: self.array.size)
    flat = property(lambda self: numpy.asarray(self.array).reshape(-1))  # the host sees the software driver's memory

    def __getitem__(self, i):
        return self.flat[i]

    def __setitem__(self, i, value):
        self.flat[i] = value


arrayimpl.ArrayBackends[:] = [ArrayCaid]
suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:])
sys.exit(not unittest.TextTestRunner(verbosity=0).run(suite).wasSuccessful())
