# SPDX-License-Identifier: Apache-2.0
"""Models that make room: the daemon drops one that nobody has open where memory is short, and who opens it next loads
it again.

What it was loaded from stands in its set's metadata, as a **recipe**, of which the daemon has the text when the set is
gone. Whoever published the set has written it. So it is checked, and the paths in it are read only where that was this
process's own user: another's could name a file that he may not read, for others to see.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import hashlib
import os
import time
import warnings
from typing import Any, NamedTuple

from .._base import _metadata
from .._base._errors import AccessError, DroppedError, StaleError, invalid
from . import _load, _plan, _progress
from ._safetensors import read_model
from ._turn import left, turn

_OPTIONS = {  # of load(), in a recipe: whether a value is one
    "dtype": lambda value: isinstance(value, str),
    "only": lambda value: _is_texts(value),
    "shard": lambda value: isinstance(value, list) and len(value) == 4 and all(map(_is_of, value, (int, int, list, list)))
    and _is_texts(value[2] + value[3]),
    "tie": lambda value: isinstance(value, dict) and _is_texts(list(value.values())),
}


class Keep(NamedTuple):
    """How a droppable model is published."""

    recipe: dict  # without the device
    priority: int
    began: int  # of the load: time.monotonic_ns()


# --- recipes ----------------------------------------------------------------------------------


def keep_of(paths, plan, priority: int, began: int, dtype, only, shard, tie) -> Keep:
    """Of a load with these arguments."""
    paths = [os.path.abspath(path) for path in paths]
    try:
        "".join(paths).encode()
    except UnicodeEncodeError:
        raise invalid(f"{paths}: a path of a droppable model is UTF-8") from None
    options = {"dtype": dtype and _plan.float_of(dtype).type_name, "only": only, "shard": shard, "tie": tie}
    told = {key: value for key, value in options.items() if value is not None}
    return Keep({"model": paths, "files": _digest(plan.files), **told}, priority, began)


def _digest(files):
    """Of what tells whether a file is the same, and has not been written since: inode, size and mtime."""
    which = [identity[1:] for _, identity in sorted(files.items())]
    return hashlib.sha256(repr(which).encode()).hexdigest()[:32]


def _recipe_in(text):
    """The recipe in a set's metadata; None: there is none."""
    told = _metadata.decode(text)
    recipe = told.get("reload") if isinstance(told, dict) else None
    if not isinstance(recipe, dict):
        return None
    is_one = _is_texts(recipe.get("model")) and _is_texts([recipe.get("files"), recipe.get("device")])
    return recipe if is_one and all(is_it(recipe[key]) for key, is_it in _OPTIONS.items() if key in recipe) else None


def _is_texts(value):
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_of(value, kind):
    return isinstance(value, kind)


# --- opening ----------------------------------------------------------------------------------


def open_set(client, name: str, mode, pool, *, wait: bool = False, timeout: float | None = None, path: Any = None):
    """Client.open_set() of a model, which is loaded first if it was dropped."""
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        return client.open_set(name, mode, pool=pool, wait=wait, timeout=timeout if wait else None)
    except DroppedError:
        return reopen(client, name, mode, pool, left(deadline), path)


def reopen(client, name: str, mode, pool, timeout: float | None, path: Any):
    """open_set() of what was dropped: one process loads it, and others wait for that."""
    try:
        its_turn = turn(client, name[:-1], pool=pool, timeout=timeout)
    except AccessError:
        dropped = _record(client, name, pool)
        who = f"user {dropped.uid}, or another one" if dropped else "one"
        raise _refusal(name, f"{who} who may write its pool can load it again, by open()") from None
    with its_turn:
        opened = None
        while opened is None:
            try:
                opened = client.open_set(name, mode, pool=pool)
            except DroppedError:
                opened = _loaded(client, name, mode, pool, path)
        return opened


async def async_reopen(client, name: str, mode, pool, timeout: float | None, path: Any):
    """reopen() in a thread. A task that is cancelled meanwhile leaves the load, and what it opens is closed, also where
    its loop ends before."""
    done: concurrent.futures.Future = concurrent.futures.Future()

    def work():
        try:
            done.set_result(reopen(client, name, mode, pool, timeout, path))
        except BaseException as e:
            done.set_exception(e)

    asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(asyncio.wrap_future(done))
    except asyncio.CancelledError:
        done.add_done_callback(lambda done: done.exception() or done.result().close())
        raise


def _loaded(client, name, mode, pool, path):
    """Loads what was dropped, and opens it before its memory can be wanted again. None: the name has got another
    version meanwhile, which is the newer one."""
    began = time.monotonic_ns()
    dropped = _record(client, name, pool)
    if dropped is None:
        return None
    recipe = _recipe_in(dropped.metadata)
    if recipe is None:
        raise _refusal(name, "nothing tells what it was loaded from: load() it")
    if path is None and dropped.uid != _own_uid(client, pool):
        raise _refusal(name, f"user {dropped.uid} loaded it: open(path=) says from which files of yours it is loaded again")
    paths = recipe["model"] if path is None else [path] if isinstance(path, (str, os.PathLike)) else list(path)
    options = {key: recipe.get(key) for key in _OPTIONS}
    try:
        model = read_model(paths)
    except OSError as e:
        if path is not None or e.errno is None:
            raise
        why = f"{e.strerror}; {name[:-1]} was dropped as memory was short: open(path=) loads it again from other files"
        raise OSError(e.errno, why, e.filename) from None
    plan = _plan.make(model, name, **options)
    keep = keep_of(paths, plan, dropped.priority, began, **options)
    if keep.recipe["files"] != recipe["files"]:
        what = f"{name[:-1]}: files have changed since version {dropped.generation} was loaded: {', '.join(map(str, paths))}"
        warnings.warn(what, stacklevel=2)
    where = {"pool": pool, "devices": [client._index_of(recipe["device"])], "memory": "device"}
    with _load.filled(client, plan, [name], progress=_progress.none, keep=keep, **where) as (loading,):
        with contextlib.suppress(StaleError):
            loading.publish(after=dropped.generation)
            return client.open_set(name, mode, pool=pool)
    return None


def _record(client, name, pool):
    """What the daemon has of a model that it dropped; None: it has the name again, or not at all."""
    lost = (record for record in client.lost(pool=pool, prefix=name) if record.name == name and record.dropped)
    return next(lost, None)


def _own_uid(client, pool):
    """This process's user, as the daemon knows him: user namespaces have other numbers. None: he has that of all users
    whom a namespace does not know."""
    with client.empty(0, "|u1", pool=pool) as array, open("/proc/sys/kernel/overflowuid") as file:
        return None if array.uid == int(file.read()) else array.uid


def _refusal(name, why):
    return DroppedError(errno.ENOENT, f"{name[:-1]}: it was dropped as memory was short; {why}")
