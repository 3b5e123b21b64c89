# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks, those of the daemon on one of their own, and prints their figures.

usage: run.py DIR [NAME...], where DIR holds the compiled ones; NAME: soft, open, create, many,
million, daemon; without one, all of them.

open, create and daemon are for the GPU, where there is one. The others measure the daemon and
libcaid alone, so they are on the software driver everywhere.
"""

import os
import subprocess
import sys

import caid

HERE = os.path.dirname(os.path.abspath(__file__))


def program(folder, name, *args):
    subprocess.run([os.path.join(folder, name), *args], check=True)


def script(name, *args):
    subprocess.run([sys.executable, os.path.join(HERE, name), *args], check=True)


def bench_soft(folder):
    program(folder, "bench_soft")


def bench_open(folder):
    with caid.LocalDaemon() as daemon:
        program(folder, "bench_open", daemon.address)
        script("bench_open.py", daemon.address, os.path.join(folder, "bench_floor"))


def bench_create(folder):
    with caid.LocalDaemon() as daemon:
        program(folder, "bench_create", daemon.address)
        script("bench_create.py", daemon.address)


def bench_many(folder):
    with caid.LocalDaemon(driver="soft") as daemon:
        program(folder, "bench_many", daemon.address)
        script("bench_many.py", daemon.address)


def bench_million(folder):
    with caid.LocalDaemon(driver="soft", memory="4G") as daemon:
        program(folder, "bench_million", daemon.address)


def bench_daemon(_folder):
    script("bench_daemon.py")


BENCHES = {"soft": bench_soft, "open": bench_open, "create": bench_create, "many": bench_many,
           "million": bench_million, "daemon": bench_daemon}


def main(folder, *names):
    unknown = set(names) - set(BENCHES)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        print(f"driver: {client.status().driver}, {client.devices[0].name}; "
              f"{len(os.sched_getaffinity(0))} CPUs", flush=True)
    for name in names or BENCHES:
        BENCHES[name](folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
