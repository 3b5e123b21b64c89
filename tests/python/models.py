# SPDX-License-Identifier: Apache-2.0
"""Safetensors files as the format's page has them, and what runs in the other processes of test_weights_swap.py,
which import little."""

import contextlib
import ctypes
import itertools
import json
import os
import struct
import sys

import caid
import caid.weights
import numpy
from own_torch import OWN, bytes_of

SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
N, KEYS = 1000, [f"layer.{i}" for i in range(12)]  # of what is swapped


def write_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write(path, tensors, metadata=None):
    """tensors: {key: (type, shape, bytes)}; they lie in the order of the dict."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for key, (word, shape, some) in tensors.items():
        offsets = [len(data), len(data) + len(some)]
        header[key] = {"dtype": word, "shape": list(shape), "data_offsets": offsets}
        data += some
    return write_header(path, header, data)


def read(path):
    """(tensors, metadata), as write() has them."""
    text = path.read_bytes()
    (n,) = struct.unpack("<Q", text[:8])
    header, data = json.loads(text[8 : 8 + n]), text[8 + n :]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for key, told in header.items():
        start, end = told["data_offsets"]
        tensors[key] = told["dtype"], tuple(told["shape"]), data[start:end]
    assert sum(len(some) for *_, some in tensors.values()) == len(data)
    return tensors, metadata


def write_version(path, value):
    """A model of which each element, and its metadata, tell the version."""
    some = numpy.full(N, value, "<i4").tobytes()
    return write(path, {key: ("I32", (N,), some) for key in KEYS}, {"value": str(value)})


def value_of(weights):
    """The version that its metadata and each of its tensors tell."""
    arrays = [array.copy_to_host() for array in weights.values()]
    found = {int(n) for array in arrays for n in (array.min(), array.max())}
    (value,) = found | {int(weights.file_metadata.get("value", weights.metadata))}
    assert list(weights) == sorted(KEYS)
    return value


# --- processes: each works until its end of a pipe hangs up ------------------------------------


NOT_THERE = (caid.DisconnectedError, caid.NoDaemonError, caid.NotReadyError, caid.ShutdownError)


def run(pipe, socket, work, *args):
    os.environ["CAID_SOCKET"] = socket  # the server that forks us is as old as the first daemon
    connected = False
    while not connected:  # the daemon may be killed now
        with contextlib.suppress(*NOT_THERE):
            connected = caid.default_client() is not None
    work(pipe, *args)


def _until_the_end(pipe, work, end=lambda: None):
    with contextlib.suppress(EOFError, ConnectionResetError):
        pipe.send(os.getpid())
        while not pipe.poll():
            work()
        pipe.recv()
    end()
    caid.default_client().close()
    os._exit(0)


def values_of(pid):
    """Those that no other process has, of few."""
    return range((pid & 0xFFFFF) << 10, ((pid & 0xFFFFF) + 1) << 10)


def load(pipe, folder):
    values = itertools.cycle(values_of(os.getpid()))
    path = folder / f"{os.getpid()}"
    _until_the_end(pipe, lambda: caid.weights.load(write_version(path, next(values)), "m"))


def publish(pipe):
    values = itertools.cycle(values_of(os.getpid()))

    def work():
        client, value = caid.default_client(), next(values)
        with contextlib.ExitStack() as stack:
            arrays = {key: stack.enter_context(client.full(N, value, "<i4")) for key in KEYS}
            told = {"safetensors": {"value": str(value)}}
            client.publish_many("m/", arrays, metadata=told)

    _until_the_end(pipe, work)


LIKE = {key: ((N,), "<i4") for key in KEYS}


def publisher(pipe):
    """As a trainer does, on a stream whose work takes its time; now and then it fails in the midst."""
    values = itertools.cycle(values_of(os.getpid()))
    stack = contextlib.ExitStack()
    made = []

    def make():
        if driver := caid.softcuda_path():
            ctypes.CDLL(driver).caid_softcuda_control(b"delay 300", ctypes.create_string_buffer(64), 64)
        stream = stack.enter_context(caid.default_client().stream(non_blocking=True))
        made[:] = stream, stack.enter_context(caid.weights.publisher("m", LIKE))

    def work():
        if not made:
            make()
        (stream, p), value = made, next(values)
        with contextlib.suppress(ZeroDivisionError), p.version(stream=stream, metadata=value) as w:
            for i, array in enumerate(w.values()):
                array.fill(value, stream)
                1 / (value % 7 != 5 or i < 3)
        if value % 3 == 0:
            p.wait()

    _until_the_end(pipe, work, stack.close)


def tensors_of(weights):
    """As DLPack has them, by which they keep the version."""
    sys.modules["torch"] = OWN
    return list(weights.torch().values())


def tensors_value(tensors):
    """That which all of them have, read as a kernel reads it: where they are."""
    (value,) = {int(n) for tensor in tensors for n in numpy.frombuffer(bytes_of(OWN, tensor), "<i4")}
    return value


def advance(pipe, notes):
    """As an engine does whose graphs have the addresses: what they show is the newer version, as a whole. Where that
    lies otherwise, it takes it with other addresses."""
    noted = os.open(notes, os.O_WRONLY | os.O_APPEND)
    weights = caid.weights.open("m")
    value, tensors = value_of(weights), tensors_of(weights)

    def work():
        nonlocal weights, value, tensors
        assert tensors_value(tensors) == value
        version = weights.version
        try:
            how = b"advance" if weights.advance() else b""
        except (caid.InvalidError, caid.UnsupportedError):
            assert weights.version == version and tensors_value(tensors) == value
            newer, how = weights.newer(), b"newer"
            if newer is None:
                return
            tensors = tensors_of(newer)
            weights.close()
            weights = newer
        if how:
            assert weights.version > version
            value = tensors_value(tensors)
            assert value_of(weights) == value
            os.write(noted, b"%d %d %s\n" % (weights.version, value, how))

    _until_the_end(pipe, work)


def keep(pipe, notes):
    """Tensors of some versions, though these are closed and others published."""
    noted = os.open(notes, os.O_WRONLY | os.O_APPEND)
    kept = []

    def work():
        with caid.weights.open("m") as weights:
            kept.append((value_of(weights), tensors_of(weights)))
            os.write(noted, b"%d %d keep\n" % (weights.version, kept[-1][0]))
        for value, tensors in kept:
            assert tensors_value(tensors) == value
        del kept[:-2]

    _until_the_end(pipe, work, kept.clear)


def serve(pipe, watches, notes=os.devnull):
    """As a worker does: the newer version between two requests. What it has does not change. It notes what it sees."""
    noted = os.open(notes, os.O_WRONLY | os.O_APPEND)
    weights = caid.weights.open("m")
    watch = weights.watch() if watches else None
    value = value_of(weights)

    def work():
        nonlocal weights, value
        assert value_of(weights) == value
        if watch is not None:
            with contextlib.suppress(caid.TimedOutError):
                watch.get(0.05)
        newer = weights.newer()
        if newer is not None:
            assert newer.version > weights.version and value_of(weights) == value
            weights.close()
            weights, value = newer, value_of(newer)
            os.write(noted, b"%d %d newer\n" % (weights.version, value))

    _until_the_end(pipe, work)
