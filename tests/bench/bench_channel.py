# SPDX-License-Identifier: Apache-2.0
"""Frames of the host from one process to another, through a channel in "pinned" memory: what a small one takes of the
CPU; and one of 4 MiB beside iceoryx2's, where its package is there (pip install iceoryx2), by its public interface: a
sample of publish-subscribe, and an event that wakes who waits.

usage: bench_channel.py ADDRESS, of a daemon
"""

import ctypes
import multiprocessing
import resource
import statistics
import struct
import sys
import time

import numpy

import caid

N, GOAL_US = 100_000, 8.0
N_LARGE, LARGE, PAUSE_S = 500, 4 << 20, 0.005


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- small frames, as fast as they come -------------------------------------------------------


def take(address, ready, results):
    with caid.connect(address) as client, client.open_channel("small", wait=True) as ch:
        ready.set()
        with ch.get():
            before = cpu_s()
        for _ in range(N - 1):
            with ch.get():
                pass
        results.put(cpu_s() - before)


def small(address, spawn):
    ready, results = spawn.Event(), spawn.SimpleQueue()
    with caid.connect(address) as client, client.channel("small", 64, mode="fifo", slots=64, memory="pinned") as ch:
        reader = spawn.Process(target=take, args=(address, ready, results))
        reader.start()
        ready.wait()
        before = cpu_s()
        for _ in range(N):
            with ch.put():
                pass
        put_us, got_us = (cpu_s() - before) * 1e6 / N, results.get() * 1e6 / N
        reader.join()
        client.unlink("small")
    print(f"{N} frames in Python: CPU {put_us:.2f} us to put, {got_us:.2f} us to get; together {put_us + got_us:.2f} us (goal: {GOAL_US:g})")


# --- 4 MiB, one at a time ---------------------------------------------------------------------


class OfCaid:
    name = "caid"

    def __init__(self, address, produces):
        self.client = caid.connect(address)
        if produces:
            self.ch = self.client.channel("large", LARGE, slots=2, mode="fifo", memory="pinned")
        else:
            self.ch = self.client.open_channel("large", wait=True)

    def put(self, byte):
        with self.ch.put() as frame:
            ctypes.memset(numpy.asarray(frame).ctypes.data, byte, LARGE)
            frame.info = struct.pack("d", time.monotonic())

    def get(self):
        with self.ch.get() as frame:
            now = time.monotonic()
            look(numpy.asarray(frame))
            return now - struct.unpack_from("d", frame.info)[0]

    def end(self):
        self.ch.close()
        self.client.close()


class OfIceoryx:
    name = "iceoryx2"

    def __init__(self, _address, produces):
        import iceoryx2

        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self.node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        name = iceoryx2.ServiceName.new("caid/bench")
        frames = self.node.service_builder(name).publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
        frames = frames.subscriber_max_buffer_size(8).open_or_create()
        events = self.node.service_builder(name).event().open_or_create()
        if produces:
            self.out = frames.publisher_builder().initial_max_slice_len(8 + LARGE).create()
            self.wake = events.notifier_builder().create()
        else:
            self.inbox = frames.subscriber_builder().create()
            self.events = events.listener_builder().create()

    def put(self, byte):
        sample = self.out.loan_slice_uninit(8 + LARGE)
        ctypes.memset(sample.payload_ptr + 8, byte, LARGE)
        ctypes.c_double.from_address(sample.payload_ptr).value = time.monotonic()
        sample.assume_init().send()
        self.wake.notify()

    def get(self):
        while True:
            sample = self.inbox.receive()
            if sample is not None:
                break
            self.events.blocking_wait()
        now = time.monotonic()
        at = sample.payload_ptr
        look(numpy.ctypeslib.as_array((ctypes.c_uint8 * LARGE).from_address(at + 8)))
        then = ctypes.c_double.from_address(at).value
        sample.delete()
        return now - then

    def end(self):
        pass


def look(pixels):
    assert pixels[0] == pixels[-1]


def take_large(way, address, ready, results):
    side = way(address, False)
    ready.set()
    latencies = [side.get()]
    before = cpu_s()
    latencies = [side.get() for _ in range(N_LARGE - 1)]
    results.put((cpu_s() - before, latencies))
    side.end()


def large(way, address, spawn):
    """(median latency, 99th of 100, CPU of a frame), in us"""
    ready, results = spawn.Event(), spawn.SimpleQueue()
    side = way(address, True)
    reader = spawn.Process(target=take_large, args=(way, address, ready, results))
    reader.start()
    ready.wait()
    before = cpu_s()
    for i in range(N_LARGE):
        side.put(i % 256)
        time.sleep(PAUSE_S)
    spent = cpu_s() - before
    cpu, latencies = results.get()
    reader.join()
    side.end()
    latencies.sort()
    us = [statistics.median(latencies), latencies[len(latencies) * 99 // 100], (cpu + spent) / N_LARGE]
    return [1e6 * s for s in us]


def main(address):
    spawn = multiprocessing.get_context("spawn")
    small(address, spawn)
    found = {}
    for way in (OfCaid, OfIceoryx) * 2:
        try:
            median, most, cpu = large(way, address, spawn)
        except ImportError:
            print("iceoryx2: left out, it is not installed")
            continue
        print(f"a frame of 4 MiB by {way.name}: median {median:.1f} us, 99 % within {most:.1f} us; CPU {cpu:.1f} us with its filling")
        found.setdefault(way.name, []).append((median, cpu))
    if len(found) == 2:
        latency, cpu = (sum(ours) / sum(theirs) for ours, theirs in zip(zip(*found["caid"]), zip(*found["iceoryx2"])))
        print(f"caid / iceoryx2: latency {latency:.2f}, CPU {cpu:.2f} (goal: 1.0)")


if __name__ == "__main__":
    main(sys.argv[1])
