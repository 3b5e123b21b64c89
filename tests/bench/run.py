# SPDX-License-Identifier: Apache-2.0
"""Runs every benchmark, those of the daemon on one of their own, and prints one line for each.

usage: run.py DIR, where DIR holds the compiled benchmarks.
"""

import os
import subprocess
import sys

import caid


def main(programs):
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([os.path.join(programs, "bench_soft")], check=True)
    with caid.LocalDaemon() as daemon:
        with daemon.connect() as client:
            print(f"driver: {client.status().driver}, {client.devices[0].name}", flush=True)
        subprocess.run([os.path.join(programs, "bench_open"), daemon.address], check=True)
        subprocess.run([sys.executable, os.path.join(here, "bench_open.py"), daemon.address,
                        os.path.join(programs, "bench_floor")], check=True)
    subprocess.run([sys.executable, os.path.join(here, "bench_daemon.py")], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
