# SPDX-License-Identifier: Apache-2.0
"""Frames of the host from one process to another, through a channel in "pinned" memory: what a small one takes of the
CPU; and one of 4 MiB beside iceoryx2's, where its package is there (pip install iceoryx2), by its public interface: a
sample of publish-subscribe, and an event that wakes who waits. Their latencies are drawn.

usage: bench_channel.py ADDRESS PICTURE: of a daemon, and an SVG to be written
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
import picture

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


class OfFifo:
    name, mode, slots = "caid, fifo", "fifo", 2

    def __init__(self, address, produces):
        self.client = caid.connect(address)
        if produces:
            self.ch = self.client.channel(self.mode, LARGE, slots=self.slots, mode=self.mode, memory="pinned")
        else:
            self.ch = self.client.open_channel(self.mode, wait=True)

    def put(self, byte):
        with self.ch.put() as frame:
            ctypes.memset(numpy.asarray(frame).ctypes.data, byte, LARGE)
            frame.info = struct.pack("d", time.monotonic())

    def get(self):
        with self.ch.get() as frame:
            now = time.monotonic()
            look(numpy.asarray(frame))
            return now - struct.unpack_from("d", frame.info)[0], frame.sequence

    def end(self):
        self.ch.close()
        self.client.close()


class OfLatest(OfFifo):
    name, mode, slots = "caid, latest", "latest", 8


class OfIceoryx:
    name, n = "iceoryx2", 0

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
        self.n += 1
        return now - then, self.n

    def end(self):
        pass


def look(pixels):
    assert pixels[0] == pixels[-1]


def take_large(way, address, ready, results):
    side = way(address, False)
    ready.set()
    _, number = side.get()
    latencies, before = [], cpu_s()
    while number < N_LARGE:
        latency, number = side.get()
        latencies.append(latency)
    results.put((cpu_s() - before, latencies))
    side.end()


def large(way, address, spawn):
    """(latencies, CPU of a frame), in us"""
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
    return [1e6 * s for s in latencies], 1e6 * (cpu + spent) / N_LARGE


def main(address, path):
    spawn = multiprocessing.get_context("spawn")
    small(address, spawn)
    all_us, cpu = {}, {}
    for way in (OfFifo, OfLatest, OfIceoryx) * 2:
        try:
            found_us, found_cpu = large(way, address, spawn)
        except ImportError:
            print("iceoryx2: left out, it is not installed")
            continue
        all_us.setdefault(way.name, []).extend(found_us)
        cpu.setdefault(way.name, []).append(found_cpu)
    median = {name: statistics.median(us) for name, us in all_us.items()}
    for name, us in all_us.items():
        most, mean = statistics.quantiles(us, n=100)[-1], statistics.mean(cpu[name])
        print(f"a frame of 4 MiB by {name}: median {median[name]:.1f} us, 99 % within {most:.1f} us; CPU {mean:.1f} us with its filling")
    if OfIceoryx.name in median:
        for way in OfFifo, OfLatest:
            latency = median[way.name] / median[OfIceoryx.name]
            print(f"{way.name} / iceoryx2: latency {latency:.2f}, CPU {sum(cpu[way.name]) / sum(cpu[OfIceoryx.name]):.2f} (goal: 1.0)")
    picture.save(path, "A frame of 4 MiB in host memory, from its put to the reader, us", all_us.items())


if __name__ == "__main__":
    main(*sys.argv[1:])
