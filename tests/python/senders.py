# SPDX-License-Identifier: Apache-2.0
"""What runs in the other processes of test_pickle.py, which import little."""

import contextlib
import ctypes
import os
import time

import caid
import numpy

N = 256  # elements of what is sent under kills


def doubled(a):
    with a:
        a.copy_from_host(2 * a.copy_to_host())
        return a.name, os.getpid()


def made(n):
    """An array of the process that runs this, which goes on after it."""
    with caid.default_client().empty(n, "<i8") as a:
        a.copy_from_host(numpy.arange(n))
        return a.view()


def answer(inbox, outbox):
    for a in iter(inbox.get, None):
        outbox.put(doubled(a))


def at_work():
    """An array of 7s, which the GPU has still to write: each operation begins late."""
    client = caid.default_client()
    a, s = client.zeros(N, "<i8"), client.stream()
    ctypes.CDLL(caid.softcuda_path()).caid_softcuda_control(b"delay 100000", ctypes.create_string_buffer(1), 1)
    a.fill(7, stream=s)
    return a, s


class Slow:
    """It holds up the thread that pickles."""

    def __reduce__(self):
        time.sleep(0.2)
        return Slow, ()


def leave_at_work(outbox):
    outbox.put(Slow())
    outbox.put(at_work()[0])


def send_on(pipe, address):
    os.environ["CAID_SOCKET"] = address
    client = caid.default_client()
    try:
        for n in range(1 << 30):
            with client.empty(N, "<i8") as a:
                a.copy_from_host(numpy.full(N, n))
                pipe.send(a)
    except OSError:  # nobody reads
        os._exit(0)


def receive(pipe, address):
    os.environ["CAID_SOCKET"] = address
    try:
        while True:
            with pipe.recv() as a, contextlib.suppress(caid.NotFoundError):  # it has run out
                values = a.copy_to_host()
                assert (values == values[0]).all()
    except (EOFError, ConnectionResetError):
        os._exit(0)
