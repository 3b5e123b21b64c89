# SPDX-License-Identifier: Apache-2.0
"""caidctl, the built daemon, and as much of libcaid.so, by ctypes, as tests of them need: nothing
but the C library."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import time

BUILD = pathlib.Path(os.environ["CAID_BUILD_DIR"])
CAIDCTL = BUILD / "bin" / "caidctl"


class ConnectOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("socket", ctypes.c_char_p),
                ("name", ctypes.c_char_p), ("driver", ctypes.c_char_p)]


class CreateOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p),
                ("pool", ctypes.c_char_p), ("device", ctypes.c_int32),
                ("flags", ctypes.c_uint32), ("typestr", ctypes.c_char_p),
                ("descr", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("ndim", ctypes.c_uint32),
                ("memory", ctypes.c_char_p), ("alignment", ctypes.c_uint64),
                ("metadata", ctypes.c_char_p)]


class OpenOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("pool", ctypes.c_char_p),
                ("mode", ctypes.c_char_p), ("generation", ctypes.c_uint64),
                ("device_uuid", ctypes.c_char_p)]


class BracketOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("reads", ctypes.POINTER(ctypes.c_void_p)),
                ("n_reads", ctypes.c_size_t), ("writes", ctypes.POINTER(ctypes.c_void_p)),
                ("n_writes", ctypes.c_size_t), ("stream", ctypes.c_uint64),
                ("timeout_ns", ctypes.c_uint64), ("nowait", ctypes.c_bool)]


class PartOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("typestr", ctypes.c_char_p),
                ("descr", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("ndim", ctypes.c_uint32),
                ("metadata", ctypes.c_char_p), ("stream", ctypes.c_uint64),
                ("gone", ctypes.c_void_p), ("userdata", ctypes.c_void_p)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("cuda_result", ctypes.c_int32),
                ("message", ctypes.c_char * 504)]


class Client:
    """As much of libcaid as these tests need."""

    def __init__(self, socket, name="maker"):
        self.lib = ctypes.CDLL(str(BUILD / "lib" / "libcaid.so"))
        self.lib.caid_client_close.argtypes = [ctypes.c_void_p]
        self.lib.caid_array_close.argtypes = [ctypes.c_void_p]
        self.lib.caid_bracket_free.argtypes = [ctypes.c_void_p]
        self.lib.caid_timeline_close.argtypes = [ctypes.c_void_p]
        self.handle = ctypes.c_void_p()
        self.arrays = []
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), os.fsencode(socket), name.encode())
        self.call(self.lib.caid_connect, ctypes.byref(self.handle), ctypes.byref(options))

    def call(self, function, *args):
        error = Error()
        assert function(*args, ctypes.byref(error)) >= 0, error.message

    def create(self, name, shape, typestr="<f4", strides=None, descr=None, memory=None,
               metadata=None):
        dims = ctypes.c_int64 * len(shape)
        options = CreateOptions(
            struct_size=ctypes.sizeof(CreateOptions), name=name and name.encode(),
            typestr=typestr.encode(), descr=descr and descr.encode(), shape=dims(*shape),
            strides=dims(*strides) if strides else None, ndim=len(shape),
            memory=memory and memory.encode(), metadata=metadata and metadata.encode())
        array = ctypes.c_void_p()
        self.call(self.lib.caid_array_create, self.handle, ctypes.byref(array),
                  ctypes.byref(options))
        self.arrays.append(array)

    def open(self, name):
        array = ctypes.c_void_p()
        self.call(self.lib.caid_array_open, self.handle, ctypes.byref(array), name.encode(), None)
        self.arrays.append(array)

    def publish(self, name):
        """The last array."""
        generation = ctypes.c_uint64()
        self.call(self.lib.caid_array_publish, self.arrays[-1], name.encode(), None,
                  ctypes.byref(generation))
        return generation.value

    def publish_part(self, offset, n, name):
        """So many bytes of the last array."""
        generation = ctypes.c_uint64()
        options = PartOptions(struct_size=ctypes.sizeof(PartOptions), typestr=b"|u1",
                              shape=(ctypes.c_int64 * 1)(n), ndim=1)
        self.call(self.lib.caid_array_publish_part, self.arrays[-1], ctypes.c_uint64(offset),
                  name.encode(), ctypes.byref(options), ctypes.byref(generation))
        return generation.value

    def begin(self, write=False, wait=True):
        """A bracket on the last array, for the host. Without wait: one that has only asked."""
        bracket = ctypes.c_void_p()
        arrays = (ctypes.c_void_p * 1)(self.arrays[-1])
        options = BracketOptions(struct_size=ctypes.sizeof(BracketOptions))
        if write:
            options.writes, options.n_writes = arrays, 1
        else:
            options.reads, options.n_reads = arrays, 1
        start = self.lib.caid_bracket_begin if wait else self.lib.caid_bracket_start
        self.call(start, self.handle, ctypes.byref(bracket), ctypes.byref(options))
        self.call(self.lib.caid_client_ping, self.handle)
        return bracket

    def end(self, bracket, abandon=False):
        self.call(self.lib.caid_bracket_abandon if abandon else self.lib.caid_bracket_end, bracket)
        self.lib.caid_bracket_free(bracket)
        self.call(self.lib.caid_client_ping, self.handle)

    def timeline(self, name, create=True):
        timeline = ctypes.c_void_p()
        self.call(self.lib.caid_timeline_create if create else self.lib.caid_timeline_open,
                  self.handle, ctypes.byref(timeline), name.encode(), None)
        return timeline

    def signal(self, timeline, value):
        self.call(self.lib.caid_timeline_signal, timeline, ctypes.c_uint64(0),
                  ctypes.c_uint64(value))

    def send(self, many=False):
        """The last array."""
        send = self.lib.caid_array_refer if many else self.lib.caid_array_send
        self.call(send, self.arrays[-1], ctypes.create_string_buffer(16))

    def unlink(self, name):
        self.call(self.lib.caid_unlink, self.handle, name.encode(), None)

    def expire(self, name, ttl_s):
        self.call(self.lib.caid_expire, self.handle, name.encode(), None, ctypes.c_uint64(0),
                  ctypes.c_uint64(ttl_s * 10**9), None)

    def defer(self):
        self.call(self.lib.caid_defer_begin, self.handle)

    def close_array(self):
        """The last one. The round trip orders what the library told the daemon."""
        self.lib.caid_array_close(self.arrays.pop())
        self.call(self.lib.caid_client_ping, self.handle)

    def close(self):
        while self.arrays:
            self.lib.caid_array_close(self.arrays.pop())
        self.lib.caid_client_close(self.handle)
        self.handle = None


def caidctl(*args, socket=None, env=None):
    command = [str(CAIDCTL), *([f"--socket={socket}"] if socket else []), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env,
                          check=False)


@contextlib.contextmanager
def run_daemon(path, config="/dev/null", mode="--foreground", **env):
    command = [str(BUILD / "bin" / "caid"), mode, f"--socket={path}",
               f"--driver={os.environ.get('CAID_CUDA_DRIVER', 'soft')}", f"--config={config}",
               "--log-level=warning"]
    with subprocess.Popen(command, env={**os.environ, **env}) as daemon:
        while caidctl("ping", "-c1", socket=path).returncode != 0:
            assert daemon.poll() is None, "the daemon has ended"
            time.sleep(0.01)
        yield daemon
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0


def wait_until(condition):
    """Until it is true; the test's own time limit ends what never is."""
    while not condition():
        time.sleep(0.01)


def read_json(socket, *args):
    done = caidctl("--json", *args, socket=socket)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
