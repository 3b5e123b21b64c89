# SPDX-License-Identifier: Apache-2.0
"""What tests of brackets share. They are on an array "shared", which two clients have open."""

import threading

from conftest import PATIENCE_S, in_thread


def entry(client, name="shared"):
    return client.show(name).entry


def figures(client, name="shared"):
    e = entry(client, name)
    return e.readers, e.writers, e.waiting, e.abandoned


def begins(bracket):
    """A thread that begins a bracket, and ends it when it is told to."""
    begun, go_on = threading.Event(), threading.Event()

    def work():
        with bracket:
            begun.set()
            assert go_on.wait(PATIENCE_S)

    thread, ended = in_thread(work)
    thread.begun, thread.go_on, thread.ended = begun, go_on, ended
    return thread


def ends(thread):
    thread.go_on.set()
    thread.join(PATIENCE_S)
    assert thread.ended == [None]


def filled(value):
    return value.to_bytes(4, "little") * 1000


def contents(array):
    return bytes(array.copy_to_host(bytearray(array.nbytes)))
