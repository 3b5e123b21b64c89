# SPDX-License-Identifier: Apache-2.0
"""In a child made by fork() all that was inherited raises ForkedError where it would reach memory, the
driver or the daemon, while what is known of it stays known; and it ends there without a word."""

import asyncio
import gc
import os
import pathlib
import re
import signal
import sys
import traceback
import warnings

import numpy
import pytest
from conftest import PATIENCE_S
from members import ENDS, STAYS, THINGS, members, outcome

import caid

VALUES = re.compile(r"(?<=mode='rw')(\\n|\n)? \[.*>", re.S)  # of an array, which repr() shows


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
    if isinstance(thing, (caid.Bracket, caid.Frame)) and thing.is_open:
        thing.end()
    elif hasattr(thing, "close") and thing is not client:
        thing.close()


@pytest.mark.parametrize("what", THINGS)
def test_in_a_child_everything_inherited_is_refused_and_ends_quietly(client, what):
    cls, make, stays_too = THINGS[what]
    with client.create("a", (2, 3)) as a:
        a.copy_from_host(numpy.arange(6.0).reshape(2, 3))
        stays = {*STAYS[cls].split(), *stays_too.split()} - ENDS
        things = {name: make(client, a) for name in members(cls)}
        assert stays <= set(things)
        before = {name: VALUES.sub(">", asyncio.run(outcome(cls, things[name], name))) for name in stays}
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


def test_the_page_says_what_stays_known():
    page = (pathlib.Path(__file__).parents[2] / "docs/CONSUMERS.md").read_text("utf-8")
    of_array, of_set = re.search(r"Of an array (.*?) stay known, of a set\n(.*?), but not its keys; of all `repr\(\)`", page, re.S).groups()
    for cls, told in ((caid.Array, of_array), (caid.Set, of_set)):
        names = {f"__{name[:-2]}__" if name.endswith("()") else name for name in re.findall("`(.*?)`", told)}
        assert len(names) > 4 and names <= {*STAYS[cls].split()}
    assert not {"__iter__", "keys", "__contains__"} & {*STAYS[caid.Set].split()}
    assert all("__repr__" in names for names in STAYS.values())


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
