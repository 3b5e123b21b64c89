# SPDX-License-Identifier: Apache-2.0
"""All that the package's objects have, for tests of what each of it does: what it gives, or raises."""

import contextlib
import inspect
import itertools

import numpy

import caid
from caid import weights

DESC = {"shape": (1,), "typestr": "<f4", "data": (1 << 30, False), "version": 3}

# What members are called with, where they need something.
ARGS = {
    "__eq__": [None], "__getitem__": [0], "__setitem__": [0, 1], "add_callback": [print], "allocate": [1], "array": [[1]], "as_array": [DESC],
    "copy_from": [bytes(48)], "copy_from_host": [bytes(48)], "copy_to": [bytearray(48)],
    "copy_to_device": [bytes(48)], "create": ["x", 1], "empty": [1], "empty_like": [numpy.zeros(1)],
    "elapsed": [None], "fill": [1], "find": [1], "full": [1, 1], "ones": [1], "from_cuda_array_interface": [DESC],
    "from_dlpack": [numpy.zeros(1)], "from_handle": [1], "from_ipc_handle": [bytes(64)],
    "async_open": ["a"], "async_open_set": ["s/"], "async_open_timeline": ["t"],
    "async_channel": ["c", 1], "async_open_channel": ["c"],
    "open": ["a"], "open_many": [["a"]], "open_timeline": ["t"], "reshape": [6], "set_limits": [1, 0.5],
    "swapaxes": [0, 0], "zeros": [1], "open_set": ["s/"], "publish_many": ["s/", {}],
    "show": ["a"], "signal": [None, 1], "timeline": ["u"], "unlink": ["a"], "watch": ["a"],
    "__contains__": ["a"], "exists": ["a"], "rename": ["a", "b"], "expire": ["a", 1], "reserve": [1 << 20],
    "kick": [1], "getitem": [0], "item": [0], "setitem": [0, 1], "split": [1],
}  # fmt: skip
BINARY = {
    f"__{side}{name}__"
    for name in "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or".split()
    for side in ("", "r")
} | {"__lt__", "__le__", "__gt__", "__ge__"}
ARGS.update(dict.fromkeys(BINARY, [1]))
ARGS_OF = {
    (caid.Arena, "ipc_handle"): [1],
    (caid.Arena, "publish"): ["x", numpy.zeros(1)],
    (caid.Array, "publish"): ["x"],
    (caid.Timeline, "wait"): [None, 1],
    (caid.Timeline, "async_wait"): [None, 1],
    (caid.Set, "__getitem__"): ["a"],
    (caid.Client, "channel"): ["k", 4],
    (caid.Client, "open_channel"): ["k"],
    (caid.Set, "open"): [["a"]],
    (weights.Publisher, "publish"): [{"a": numpy.zeros(1, "<f4")}],
}

# What stays: it does in the child what it does before. All else raises ForkedError.
STAYS = {
    caid.Array: """
        __bool__ __copy__ __deepcopy__ __enter__ __eq__ __hash__ __len__ __repr__ alloc_size closed device dtype flags generation
        is_c_contiguous is_f_contiguous itemsize mapped_ordinal memory metadata name nbytes ndim pool readonly
        shape size strides typestr uid created __abs__ __invert__ __neg__ __pos__ __complex__ __float__ __int__ split """
    + " ".join(BINARY),
    caid.Client: "__enter__ __repr__ closed daemon_id host_accessible machine_id on_reconnect",
    caid.Stream: "__enter__ __eq__ __hash__ __repr__ closed device",
    caid.Event: "__repr__ closed device",
    caid.Timeline: "__enter__ __repr__ closed name pool",
    caid.Watch: "__aiter__ __enter__ __iter__ __repr__ closed name pool",
    caid.Arena: "__enter__ __repr__ closed device memory pool",
    caid.Allocation: "__enter__ __repr__ closed nbytes",
    caid.Bracket: "__repr__ is_open stream",
    caid.Channel: "__aiter__ __enter__ __iter__ __repr__ closed device dtype frames memory mode name pool produces shape slots",
    caid.Frame: "__len__ __repr__ array info is_open missed sequence stream",
    caid.Set: "__enter__ __eq__ __hash__ __len__ __repr__ closed generation layout metadata name pool readonly",
    weights.Publisher: "__enter__ __eq__ __hash__ __repr__ client closed device name nbytes pool",
}
ENDS = {"close", "__exit__", "__aexit__", "__del__"}
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


def made_frame(client, array):
    with client.channel(next(names), 4) as channel:
        return channel.put()


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
    "channel": (caid.Channel, lambda c, a: c.channel(next(names), 4), ""),
    "frame": (caid.Frame, made_frame, ""),
    "publisher": (weights.Publisher, lambda c, a: weights.publisher(next(names), {"a": ((1,), "<f4")}, client=c), ""),
    "bracket": (caid.Bracket, lambda c, a: a.read(), "__exit__ abandon check end"),
    "open bracket": (caid.Bracket, lambda c, a: begun(a.read()), "__aenter__ __enter__ begin"),
}


def members(cls):
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "caid"]
    found = {name for base in own for name in vars(base)}
    private = {name for name in found if name.startswith("_") and not name.endswith("__")}
    return sorted(found - private - ENDS - OF_CLASSES)


async def outcome(cls, thing, name):
    """What it gave, or raised; of an attribute, why."""
    args = ARGS_OF.get((cls, name), ARGS.get(name, []))
    try:
        value = getattr(thing, name)
    except AttributeError as e:
        return f"{type(e.__cause__ or e).__name__}: {e}"
    try:
        value = value(*args) if callable(value) else value
        if inspect.isawaitable(value):
            value = await value
        elif isinstance(value, contextlib._GeneratorContextManager):
            with value:
                pass
        elif inspect.isgenerator(value):
            value = next(value)
        elif isinstance(value, memoryview):
            value = bytes(value)
        return repr(value)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
