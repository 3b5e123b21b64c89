# SPDX-License-Identifier: Apache-2.0
"""One array, four processes: ``python -m caid.demo``, or ``./dev demo`` in the source tree.

A private daemon is started. This process creates a named array and fills it; three others open
it by its name, check every byte, and write the row that is theirs; this one reads all of it.
Then everything is closed, and the memory has to be back. Exits with 1 if anything is not so.
"""

import os
import subprocess
import sys
import time
import uuid

import caid

NAME = "demo/rows"
N_WORKERS = 3
N_ROWS = N_WORKERS + 1
ROW_BYTES = 4 << 20
PATTERN = bytes(range(251))  # of prime length: no power of two shifts it onto itself


def row(i, writer):
    """What `writer` puts into row i."""
    start = (17 * i + 59 * writer) % len(PATTERN)
    return (PATTERN * (ROW_BYTES // len(PATTERN) + 2))[start : start + ROW_BYTES]


def check(array, writers):
    """Compares every byte with what the writer of each row has put there."""
    seen = array.copy_to_host(bytearray(array.nbytes))
    for i, writer in enumerate(writers):
        if seen[i * ROW_BYTES : (i + 1) * ROW_BYTES] != row(i, writer):
            raise SystemExit(f"row {i} is not as process {writer} wrote it")


def say(who, what, pid=None):
    print(f"{who:>9} {pid or os.getpid():>8}  {what}", flush=True)


def say_memory(when, info):
    say("memory", f"free {info.free:>15,}  used by caid {info.used:>12,}", when)


# The three others: a step ends with a line on stdout, and the next begins with one on stdin.


def step_done(what):
    print(what, flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the first process has gone")


def worker(me):
    with caid.connect(name=f"worker {me}") as client, client.open(NAME, mode="rw") as array:
        check(array, [0] * N_ROWS)
        say(f"worker {me}", f"opened it at {array.ptr:#x}, {array.nbytes:,} bytes are right")
        step_done("checked")
        array[me].copy_from_host(row(me, writer=me))
        say(f"worker {me}", f"wrote row {me}")
        step_done("written")


def start_worker(me, env):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "caid.demo", str(me)]
    return subprocess.Popen(command, env={**os.environ, **env}, **pipes)


def await_step(workers, done):
    """Passes on what each worker says until its step is done."""
    for process in workers:
        for line in process.stdout:
            if line == f"{done}\n":
                break
            print(line, end="", flush=True)
        else:
            raise SystemExit(f"worker {process.pid} ended with status {process.wait()}")


def start_step(workers):
    for process in workers:
        print(file=process.stdin, flush=True)


def share(client, env, workers):
    """The array's life, from its creation to the last close."""
    with client.create(NAME, (N_ROWS, ROW_BYTES), "|u1") as array:
        array.copy_from_host(b"".join(row(i, writer=0) for i in range(N_ROWS)))
        say("creator", f"created {NAME!r} at {array.ptr:#x}, filled {array.nbytes:,} bytes")
        workers += [start_worker(i + 1, env) for i in range(N_WORKERS)]
        await_step(workers, "checked")
        start_step(workers)
        await_step(workers, "written")
        check(array, range(N_ROWS))
        say("creator", "sees every row as its writer left it: it is the same memory")
        holders = sorted(client.show(NAME).holders, key=lambda holder: holder.client)
        for h in holders:
            say(h.client, f"has it mapped, {'read-only' if h.readonly else 'read-write'}", h.pid)
        if {h.pid for h in holders} != {os.getpid(), *(process.pid for process in workers)}:
            raise SystemExit("the daemon tells of other holders than these four processes")
        say_memory("during", client.memory_info())
        client.unlink(NAME)
    start_step(workers)
    if any(process.wait() != 0 for process in workers):
        raise SystemExit("a worker failed")


def await_given_back(client):
    """The daemon keeps freed memory for a while, for the next who wants some: flush() asks for it.
    What GPU work or an ending process may still use, it frees afterwards: up to ten seconds."""
    for _ in range(1000):
        client.flush()
        if client.memory_info().blocks == 0:
            break
        time.sleep(0.01)
    return client.memory_info()


def held(info):
    """The figures of what caid has, without those of what it has done."""
    return info.used, info.blocks, info.arrays, info.pending_bytes, info.reserve


def run(client, env):
    soft = client.status().driver == "soft"
    gpu = f"On the GPU: {client.devices[0].name} ({client.devices[0].uuid})."
    print("No GPU here: caid's software driver, in host memory." if soft else gpu, flush=True)
    before, workers = client.memory_info(), []
    say_memory("before", before)
    try:
        share(client, env, workers)
    finally:
        for process in workers:  # they have ended where all went well
            process.kill()
            process.communicate()
    after = await_given_back(client)
    say_memory("after", after)
    # A GPU's free memory is also the business of CUDA contexts and of other processes.
    if held(after) != held(before) or (soft and after.free != before.free):
        raise SystemExit("not all of it was given back")
    print("All of it was given back.")


def main():
    if len(sys.argv) > 1:
        return worker(int(sys.argv[1]))
    # A software device of our own: on a shared one, others' memory would be in the figures.
    os.environ.setdefault("CAID_SOFTCUDA_UUID", str(uuid.uuid4()))
    with caid.LocalDaemon() as daemon, daemon.connect(name="creator") as client:
        run(client, daemon.env)


if __name__ == "__main__":
    main()
