# SPDX-License-Identifier: Apache-2.0
"""In a child made by fork() all that was inherited raises ForkedError where it would reach memory, the
driver or the daemon, while what is known of it stays known; and it ends there without a word."""

import asyncio
import contextlib
import gc
import inspect
import itertools
import os
import signal
import sys
import traceback
import warnings

import numpy
import pytest
from conftest import PATIENCE_S

import caid

DESC = {"shape": (1,), "typestr": "<f4", "data": (1 << 30, False), "version": 3}

# What members are called with, where they need something.
ARGS = {
    "__eq__": [None], "__getitem__": [0], "__setitem__": [0, 1], "add_callback": [print], "allocate": [1], "as_array": [DESC],
    "copy_from": [bytes(48)], "copy_from_host": [bytes(48)], "copy_to": [bytearray(48)],
    "copy_to_device": [bytes(48)], "create": ["x", 1], "empty": [1], "empty_like": [numpy.zeros(1)],
    "elapsed": [None], "fill": [1], "find": [1], "full": [1, 1], "ones": [1], "from_cuda_array_interface": [DESC],
    "from_dlpack": [numpy.zeros(1)], "from_handle": [1], "from_ipc_handle": [bytes(64)],
    "open": ["a"], "open_many": [["a"]], "open_timeline": ["t"], "reshape": [6], "set_limits": [1, 0.5],
    "swapaxes": [0, 0], "zeros": [1], "open_set": ["s/"], "publish_many": ["s/", {}],
    "show": ["a"], "signal": [None, 1], "timeline": ["u"], "unlink": ["a"], "watch": ["a"],
    "__contains__": ["a"], "exists": ["a"], "rename": ["a", "b"], "expire": ["a", 1], "reserve": [1 << 20],
}  # fmt: skip
ARGS_OF = {
    (caid.Arena, "ipc_handle"): [1],
    (caid.Arena, "publish"): ["x", numpy.zeros(1)],
    (caid.Array, "publish"): ["x"],
    (caid.Timeline, "wait"): [None, 1],
    (caid.Set, "__getitem__"): ["a"],
    (caid.Set, "open"): [["a"]],
}

# What stays: it does in the child what it does before. All else raises ForkedError.
STAYS = {
    caid.Array: """
        __array__ __bool__ __copy__ __deepcopy__ __enter__ __len__ __repr__ access alloc_size closed device dtype flags generation
        is_c_contiguous is_f_contiguous itemsize mapped_ordinal memory metadata name nbytes ndim pool readonly
        shape size strides typestr uid created""",
    caid.Client: "__enter__ __repr__ closed daemon_id host_accessible machine_id on_reconnect",
    caid.Stream: "__enter__ __eq__ __hash__ __repr__ closed device",
    caid.Event: "__repr__ closed device",
    caid.Timeline: "__enter__ __repr__ closed name pool",
    caid.Watch: "__aiter__ __enter__ __iter__ __repr__ closed name pool",
    caid.Arena: "__enter__ __repr__ closed device memory pool",
    caid.Allocation: "__enter__ __repr__ closed nbytes",
    caid.Bracket: "__repr__ is_open stream",
    caid.Set: "__enter__ __eq__ __hash__ __len__ __repr__ closed generation metadata name pool readonly",
}
ENDS = {"close", "__exit__", "__del__"}
OF_CLASSES = {
    "__abstractmethods__", "__annotations__", "__doc__", "__init__", "__module__", "__new__", "__orig_bases__", "__parameters__",
    "__reduce__", "__slots__", "__weakref__"
}  # fmt: skip

names = (f"n{i}" for i in itertools.count())


def begun(bracket):
    bracket.begin()
    return bracket


def made_set(client, array):
    client.publish_many("s/", {"a": array})
    return client.open_set("s/")


# What is inherited: its class, how it is made, and members that stay for it besides.
THINGS = {
    "array": (caid.Array, lambda c, a: c.open("a", "rw"), ""),
    "view": (caid.Array, lambda c, a: a.view(), ""),
    "foreign": (caid.Array, lambda c, a: caid.from_cuda_array_interface(a.__cuda_array_interface__, a, client=c), ""),
    "client": (caid.Client, lambda c, a: c, ""),
    "stream": (caid.Stream, lambda c, a: c.stream(), ""),
    "event": (caid.Event, lambda c, a: c.event(ipc=True), ""),
    "timeline": (caid.Timeline, lambda c, a: c.timeline(next(names)), ""),
    "watch": (caid.Watch, lambda c, a: c.watch("a"), ""),
    "arena": (caid.Arena, lambda c, a: c.arena(), ""),
    "allocation": (caid.Allocation, lambda c, a: c.arena().allocate(8), ""),
    "set": (caid.Set, made_set, ""),
    "bracket": (caid.Bracket, lambda c, a: a.read(), "__exit__ abandon check end"),
    "open bracket": (caid.Bracket, lambda c, a: begun(a.read()), "__enter__ begin"),
}


def members(cls):
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "caid"]
    found = {name for base in own for name in vars(base)}
    private = {name for name in found if name.startswith("_") and not name.endswith("__")}
    return sorted(found - private - ENDS - OF_CLASSES)


async def outcome(cls, thing, name):
    """What it gave, or raised."""
    args = ARGS_OF.get((cls, name), ARGS.get(name, []))
    try:
        value = getattr(thing, name)
        value = value(*args) if callable(value) else value
        if inspect.isawaitable(value):
            value = await value
        elif isinstance(value, contextlib._GeneratorContextManager):
            with value:
                pass
        elif inspect.isgenerator(value):
            value = next(value)
        return repr(value)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def in_child(work):
    """What work(), which gives a text, gave in a forked child; it is given a time, and waited for."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE_S)
        try:
            text = work()
        except BaseException:
            text = traceback.format_exc()
        os.write(writes, text.encode()[:60000])
        os._exit(0)
    os.close(writes)
    with open(reads) as said:
        text = said.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def ended_quietly(things):
    """What was said while they were closed, or collected."""
    said = []
    sys.unraisablehook = lambda unraisable: said.append(repr(unraisable.exc_value))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i, thing in enumerate(things.values()):
            if i % 2 and hasattr(thing, "close"):
                thing.close()
        del thing
        things.clear()
        gc.collect()
    return "\n".join(said)


def end(thing, client):
    if isinstance(thing, caid.Bracket) and thing.is_open:
        thing.end()
    elif hasattr(thing, "close") and thing is not client:
        thing.close()


@pytest.mark.parametrize("what", THINGS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_a_child_everything_inherited_is_refused_and_ends_quietly(client, what):
    cls, make, stays_too = THINGS[what]
    with client.create("a", (2, 3)) as a:
        a.copy_from_host(numpy.arange(6.0).reshape(2, 3))
        stays = {*STAYS[cls].split(), *stays_too.split()} - ENDS
        things = {name: make(client, a) for name in members(cls)}
        assert stays <= set(things)
        before = {name: asyncio.run(outcome(cls, things[name], name)) for name in stays}
        leases = client.status().leases

        def work():
            wrong = []
            for name, thing in things.items():
                got = asyncio.run(outcome(cls, thing, name))
                if got != before[name] if name in stays else not got.startswith("ForkedError: "):
                    wrong.append(f"{cls.__name__}.{name}: {got}")
            del thing
            return "\n".join(wrong) + ended_quietly(things)

        try:
            assert in_child(work) == ""
            assert client.status().leases == leases and not a.closed
            assert a.copy_to_host().sum() == 15
        finally:
            while things:
                end(things.popitem()[1], client)


def test_no_library_reaches_an_inherited_array(client, soft):
    """numpy.asarray() was a SIGSEGV."""
    with client.create("a", (2, 3)) as a:
        view = a.__array_interface__["data"]
        uses = [
            lambda: numpy.asarray(a),
            lambda: numpy.add(a, 1),
            lambda: numpy.from_dlpack(a),
            lambda: memoryview(view),
            lambda: caid.as_array(a),
            lambda: caid.from_dlpack(a),
        ]

        def work():
            for use in uses:
                with pytest.raises(caid.ForkedError, match="after fork"):
                    use()
            return ""

        assert in_child(work) == ""


def test_closing_on_a_stream_is_quiet_in_a_child(client):
    with client.create("a", 4) as a, client.stream() as s:

        def work():
            a.close(s)
            return "" if a.closed and not client.closed else "it is not closed"

        assert in_child(work) == ""
        assert not a.closed


def test_a_daemon_of_the_parents_is_collected_quietly():
    with caid.LocalDaemon() as daemon:
        things = {"daemon": daemon}
        del daemon
        with things["daemon"].connect():
            assert in_child(lambda: ended_quietly(things)) == ""
        with things["daemon"].connect() as c:
            c.ping()


# --- CUDA in a child of a process that has used it ------------------------------------------

CUDA = {
    "create": lambda c: c.create("b", 1),
    "open": lambda c: c.open("a"),
    "stream": lambda c: c.stream(),
    "a helper": lambda c: caid.pinned_array(1),
    "another's stream": lambda c: caid.Stream.from_handle(1),
}


@pytest.mark.parametrize("use", CUDA.values(), ids=CUDA)
def test_a_new_client_in_a_child_says_what_to_do(daemon, client, use):
    with client.create("a", 4):

        def work():
            with daemon.connect() as c:
                c.ping()  # the daemon is as near as ever
                with pytest.raises(caid.ForkedError, match="use spawn or forkserver") as raised:
                    use(c)
                assert raised.value.cuda_result == 3 and "NOT_INITIALIZED (3)" in str(raised.value)
                return ""

        assert in_child(work) == ""
