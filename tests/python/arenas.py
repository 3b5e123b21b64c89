# SPDX-License-Identifier: Apache-2.0
"""What tests of arenas share: arrays of other libraries in the memory of one."""

import numpy as np
import pytest
from conftest import PATIENCE_S, in_thread

import caid

MIB = 1 << 20


class Foreign:
    """Another library's array, at the start of an allocation."""

    def __init__(self, memory, shape, typestr="<i4", **more):
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (memory.ptr, False),
            "version": 3,
            **more,
        }


class ByDlpack:
    """One that has no other interface."""

    def __init__(self, array):
        self.array = array
        self.asked = []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        return self.array.__dlpack__(**asked)


def fill(client, x, values):
    client.as_array(x).copy_from_host(np.asarray(values).view("u1"))


def seen(client, name):
    with client.open(name) as a:
        return a.copy_to_host()


def seen_behind(client, stream, publish, name="x"):
    """What is under a name, published by a call that waits for the work on a held stream, and for no other."""
    thread, ended = in_thread(publish)
    thread.join(0.05)  # whether it waits is shown by what it gives, not by the time
    with pytest.raises(caid.NotFoundError):
        client.open(name)
    stream.gate.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for a stream that has nothing to do with it"
    with client.open(name) as a:
        assert ended == [a.generation]
        return a.copy_to_host()


def client_bytes(client, x):
    return client.as_array(x).copy_to_host()
