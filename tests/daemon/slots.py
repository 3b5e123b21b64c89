# SPDX-License-Identifier: Apache-2.0
"""Pages of timelines, and brackets, for a client that speaks the wire by hand (raw.py): see
docs/PROTOCOL.md, "Synchronisation".

What a stream would store, the test stores by its own mapping of the page.
"""

import ctypes
import mmap
import os
import platform

DEAD = 1 << 62
DEAD_SUBMITTED = DEAD | 0xFFFFFFFF
N_SLOTS = 16
SLOT_SIZE = 256
DONE, SUBMITTED, LANDED = 0, 64, 72
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
FUTEX_WAIT = 0

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Page:
    """The mapping; lives until close()."""

    def __init__(self, number, fd, size, writable):
        self.number, self.size = number, size
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.address = libc.mmap(None, size, prot, mmap.MAP_SHARED, fd, 0)
        if self.address == ctypes.c_void_p(-1).value:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def close(self):
        libc.munmap(self.address, self.size)

    def word(self, slot, offset):
        return ctypes.c_uint64.from_address(self.address + slot * SLOT_SIZE + offset)

    def get(self, slot=0):
        """(done, submitted)"""
        return self.word(slot, DONE).value, self.word(slot, SUBMITTED).value

    def landed(self, slot=0):
        return self.word(slot, LANDED).value

    def submit(self, value, slot=0):
        self.word(slot, SUBMITTED).value = value

    def land(self, value, slot=0):
        self.word(slot, DONE).value = value

    def is_dead(self, slot=0):
        return self.get(slot) == (DEAD, DEAD_SUBMITTED)

    def wait_submitted(self, seen, slot=0):
        """Sleeps until somebody wakes who waits for `submitted`."""
        address = ctypes.c_void_p(self.address + slot * SLOT_SIZE + SUBMITTED)
        libc.syscall(SYS_FUTEX, address, FUTEX_WAIT, ctypes.c_uint32(seen & 0xFFFFFFFF), None, None, 0)


def pages(client, reply, writable=False):
    """Those that the client's last packet brought, mapped."""
    return [
        Page(record["page"], client.fds[record["fd"]], record["size"], writable) for record in reply["pages"]
    ]


def own_page(client):
    (page,) = pages(client, client.call("page"), writable=True)
    return page


def named(client, name, **params):
    """A page that is a timeline."""
    page = own_page(client)
    client.call("timeline", name=name, page=page.number, **params)
    return page


def give_up(client, *its_pages):
    """Else pages of a client that hangs up stay until its process has exited."""
    client.notify("drop_pages", pages=[page.number for page in its_pages])
    client.call("ping")


# ---- brackets ----


def create(client, name=None, **params):
    if name:
        params["name"] = name
    return client.call("create", typestr="|u1", shape=[1000], **params)["arrays"][0]["lease"]


def open_(client, name, mode="r", **params):
    return client.call("open", names=[name], mode=mode, **params)["arrays"][0]["lease"]


def ask(client, bracket, read=(), write=(), thread=0, **params):
    """A begin that is not waited for."""
    params.update(bracket=bracket, read=list(read), write=list(write), thread=thread)
    return client.request("begin", **params)


def begin(client, *args, **params):
    return client.response(ask(client, *args, **params))


def fences(reply):
    return [(fence["page"], fence["slot"], fence["value"]) for fence in reply.get("fences", [])]


def signal(client, bracket, page, value, slot=0, landed=False, **params):
    """Ends a bracket whose work is under way, or has landed already."""
    page.submit(value, slot)
    if landed:
        page.land(value, slot)
    client.notify("end", bracket=bracket, page=page.number, slot=slot, value=value, **params)


def end(client, bracket, **params):
    """Ends one whose work is done."""
    client.notify("end", bracket=bracket, **params)


def entry(client, name="x"):
    return client.call("show", name=name)["entries"][0]


def is_waiting(client):
    """Whether what the client has asked before is not answered: a later ping overtakes it."""
    ping = client.request("ping")
    number, _ = client.any_response()
    return number == ping
