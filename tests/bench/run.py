# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks, those of the daemon on one of their own, and prints their figures.

usage: run.py DIR [NAME...], where DIR holds the compiled ones; NAME: soft, open, monitor, create, many,
million, sets, handoff, channel, deaths, arena, allocators, storage, sending, weights, mpi, daemon, restart, metrics,
attack, crowd, machines, dask; without one, all of them.

open, create, handoff, arena, allocators, storage, sending, weights, mpi, daemon and restart are for the GPU, where
there is one. The others measure the daemon and libcaid alone, so they are on the software driver everywhere.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile

import caid
import picture

HANDOFFS = 2000
HERE = os.path.dirname(os.path.abspath(__file__))


def program(folder, name, *args, env=None):
    command = [os.path.join(folder, name), *args]
    subprocess.run(command, check=True, env={**os.environ, **(env or {})})


def script(name, *args):
    subprocess.run([sys.executable, os.path.join(HERE, name), *args], check=True)


def bench_soft(folder):
    program(folder, "bench_soft")


def bench_open(folder):
    with caid.LocalDaemon() as daemon:
        program(folder, "bench_open", daemon.address)
        script("bench_open.py", daemon.address, os.path.join(folder, "bench_floor"))


def bench_monitor(folder):
    with caid.LocalDaemon(driver="soft") as daemon:
        script("bench_monitor.py", daemon.address, os.path.join(folder, os.pardir, "bin", "caidctl"))


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


def bench_sets(_folder):
    with caid.LocalDaemon(driver="soft", memory="4G") as daemon:
        script("bench_sets.py", daemon.address)
    script("bench_sets.py")


@contextlib.contextmanager
def mps():
    """A control daemon of NVIDIA's Multi-Process Service, by itself: what its clients want in their
    environment. None where there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="caid-mps-", ignore_cleanup_errors=True) as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        options = {"env": {**os.environ, **env}, "check": True, "timeout": 60}
        subprocess.run([control, "-d"], **options)
        try:
            yield env
        finally:
            subprocess.run([control], input=b"quit\n", stdout=subprocess.DEVNULL, **options)


def handoff(folder, what, env):
    with caid.LocalDaemon(env=env) as daemon, tempfile.NamedTemporaryFile("r") as figures:
        print(f"hand-offs, {what}:", flush=True)
        program(folder, "bench_handoff", daemon.address, str(HANDOFFS), figures.name, env=env)
        named = [line.split(":") for line in figures]
    rows = [(name, [int(ns) / 1e3 for ns in all_ns.split()]) for name, all_ns in named]
    picture.save(os.path.join(folder, "handoff.svg"), f"1 MiB from kernel to kernel, {what}, us", rows)


def bench_handoff(folder):
    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        soft = client.status().driver == "soft"
    if soft:
        handoff(folder, "software driver (these figures say nothing of a GPU)", {})
        return
    handoff(folder, "without MPS", {})
    with mps() as env:
        if env is None:
            print("hand-offs under MPS: left out, there is no nvidia-cuda-mps-control here")
        else:
            handoff(folder, "under MPS", env)


def bench_channel(folder):
    """Frames of the host; those of a GPU are in "handoff"."""
    with caid.LocalDaemon(driver="soft") as daemon:
        program(folder, "bench_channel", daemon.address)
        script("bench_channel.py", daemon.address, os.path.join(folder, "channel.svg"))


def bench_deaths(folder):
    """Of who takes part in a channel."""
    with caid.LocalDaemon(driver="soft") as daemon:
        program(folder, "bench_deaths", daemon.address)


def bench_arena(folder):
    with caid.LocalDaemon() as daemon:
        program(folder, "bench_arena", daemon.address)


def bench_allocators(_folder):
    with caid.LocalDaemon() as daemon:
        script("bench_allocators.py", daemon.address)


def bench_storage(_folder):
    with caid.LocalDaemon() as daemon:
        script("bench_storage.py", daemon.address)


def bench_sending(_folder):
    with caid.LocalDaemon() as daemon:
        for name in "bench_sending.py", "bench_updates.py":
            subprocess.run([sys.executable, os.path.join(HERE, name)], check=True, env={**os.environ, **daemon.env})


def bench_weights(_folder):
    with caid.LocalDaemon(memory="4G") as daemon:
        script("bench_weights.py", daemon.address)
    with caid.LocalDaemon(memory="4G") as daemon:
        script("bench_publisher.py", daemon.address)


def bench_mpi(_folder):
    command = [sys.executable, "-c", "import mpi4py.MPI"]
    if shutil.which("mpirun") is None or subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0:
        print("an array for all ranks: left out, mpirun or mpi4py is not here")
        return
    with caid.LocalDaemon(memory="8G") as daemon:
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4"]
        subprocess.run([*mpirun, sys.executable, "-m", "mpi4py", os.path.join(HERE, "bench_mpi.py")], check=True,
                       env={**os.environ, **daemon.env})


@contextlib.contextmanager
def open_to_all(fds):
    """A daemon that other uids may connect to, with so many file descriptors, or as many as may be:
    yields its address and that number."""
    _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, fds), most))
    with caid.LocalDaemon(driver="soft", memory="64G") as daemon:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.chmod(os.path.dirname(daemon.address), 0o711)
        os.chmod(daemon.address, 0o666)
        yield daemon.address, min(most, fds)


def bench_attack(folder):
    """What a uid feels of what another one does."""
    with open_to_all(20000) as (address, _):
        program(folder, "attack", address, "2000", "1000")


def bench_crowd(folder):
    """An open beside many connections. Each takes two of the file descriptors that clients may have,
    half of the daemon's; and the last of ten uids may have half of what the others have left."""
    with open_to_all(100000) as (address, fds):
        most = fds // 50 * 10
        for connections, active in ((10, 10), (most, 1000), (10, 10), (most, 1000)):
            program(folder, "crowd", address, "5000", str(connections), str(active))


def bench_daemon(_folder):
    script("bench_daemon.py")


def bench_restart(_folder):
    script("bench_restart.py")


def bench_metrics(_folder):
    with caid.LocalDaemon(driver="soft") as daemon:
        script("bench_metrics.py", daemon.address)


BENCHES = {"soft": bench_soft, "open": bench_open, "monitor": bench_monitor, "create": bench_create, "many": bench_many,
           "million": bench_million, "sets": bench_sets, "handoff": bench_handoff, "channel": bench_channel,
           "deaths": bench_deaths,
           "arena": bench_arena, "allocators": bench_allocators, "storage": bench_storage,
           "sending": bench_sending, "weights": bench_weights, "mpi": bench_mpi, "daemon": bench_daemon,
           "restart": bench_restart, "metrics": bench_metrics, "attack": bench_attack, "crowd": bench_crowd,
           "machines": lambda _folder: script("bench_machines.py"), "dask": lambda _folder: script("bench_dask.py")}
AS_ROOT = {"attack", "crowd"}


def main(folder, *names):
    unknown = set(names) - set(BENCHES)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    with caid.LocalDaemon() as daemon, daemon.connect() as client:
        print(f"driver: {client.status().driver}, {client.devices[0].name}; "
              f"{len(os.sched_getaffinity(0))} CPUs", flush=True)
    for name in names or BENCHES:
        if name in AS_ROOT and os.geteuid() != 0:
            print(f"{name}: left out, only root can take other uids")
        else:
            BENCHES[name](folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
