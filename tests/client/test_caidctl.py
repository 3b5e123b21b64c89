# SPDX-License-Identifier: Apache-2.0
"""caidctl against the built daemon: output, --json, exit status. Arrays are made through
libcaid.so by ctypes, so that nothing but the C library is needed."""

import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

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
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("ndim", ctypes.c_uint32)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("cuda_result", ctypes.c_int32),
                ("message", ctypes.c_char * 504)]


class Client:
    """As much of libcaid as these tests need."""

    def __init__(self, socket, name="maker"):
        self.lib = ctypes.CDLL(str(BUILD / "lib" / "libcaid.so"))
        self.lib.caid_client_close.argtypes = [ctypes.c_void_p]
        self.lib.caid_array_close.argtypes = [ctypes.c_void_p]
        self.handle = ctypes.c_void_p()
        self.arrays = []
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), os.fsencode(socket), name.encode())
        self.call(self.lib.caid_connect, ctypes.byref(self.handle), ctypes.byref(options))

    def call(self, function, *args):
        error = Error()
        assert function(*args, ctypes.byref(error)) >= 0, error.message

    def create(self, name, shape, typestr="<f4", strides=None, descr=None):
        dims = ctypes.c_int64 * len(shape)
        options = CreateOptions(
            struct_size=ctypes.sizeof(CreateOptions), name=name and name.encode(),
            typestr=typestr.encode(), descr=descr and descr.encode(), shape=dims(*shape),
            strides=dims(*strides) if strides else None, ndim=len(shape))
        array = ctypes.c_void_p()
        self.call(self.lib.caid_array_create, self.handle, ctypes.byref(array),
                  ctypes.byref(options))
        self.arrays.append(array)

    def close(self):
        for array in self.arrays:
            self.lib.caid_array_close(array)
        self.lib.caid_client_close(self.handle)


def caidctl(*args, socket=None, env=None):
    command = [str(CAIDCTL), *([f"--socket={socket}"] if socket else []), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env,
                          check=False)


@pytest.fixture
def socket(tmp_path):
    path = tmp_path / "s"
    command = [str(BUILD / "bin" / "caid"), "--foreground", f"--socket={path}",
               f"--driver={os.environ.get('CAID_CUDA_DRIVER', 'soft')}", "--config=/dev/null",
               "--log-level=warning"]
    with subprocess.Popen(command) as daemon:
        while caidctl("ping", "-c1", socket=path).returncode != 0:
            assert daemon.poll() is None, "the daemon has ended"
            time.sleep(0.01)
        yield path
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0


@pytest.fixture
def client(socket):
    client = Client(socket)
    yield client
    client.close()


def read_json(socket, *args):
    done = caidctl("--json", *args, socket=socket)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- the daemon as a whole ----

def test_status_is_the_default(socket):
    done = caidctl(socket=socket)
    assert done.returncode == 0 and done.stderr == ""
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert lines["server"].startswith("caid ")
    assert lines["socket"] == str(socket)
    assert {"driver", "device 0", "your pool", "holds", "serves"} <= lines.keys()
    if lines["driver"].startswith("soft"):
        assert "no GPU is used" in lines["driver"]


def test_status_json(socket, client):
    client.create("x", (3, 4))
    status = read_json(socket, "status")
    assert status["socket"] == str(socket)
    assert (status["names"], status["arrays"], status["leases"]) == (1, 1, 1)
    assert status["connections"] == 2
    assert status["driver"] in ("soft", "cuda")
    assert status["devices"][0]["uuid"].startswith("GPU-")
    assert set(status) == {
        "server", "pid", "uptime_ns", "socket", "driver", "driver_path", "driver_version",
        "pool", "connections", "pools", "blocks", "arrays", "names", "leases", "jobs",
        "release_errors", "devices"}


def test_info(socket, client):
    before = read_json(socket, "info")["devices"]
    client.create(None, (64, 1 << 20))
    after = read_json(socket, "info")["devices"]
    assert set(after[0]) == {"index", "uuid", "name", "total", "free", "used", "blocks", "arrays"}
    assert after[0]["used"] - before[0]["used"] >= 256 << 20
    assert after[0]["arrays"] == 1
    assert read_json(socket, "info", "0")["devices"] == after[:1]
    assert read_json(socket, "info", after[0]["uuid"])["devices"] == after[:1]

    table = caidctl("info", socket=socket).stdout.splitlines()
    assert table[0].split() == ["DEVICE", "NAME", "TOTAL", "FREE", "CAID", "BLOCKS", "ARRAYS",
                                "UUID"]
    assert "256.0 MiB" in table[1] and after[0]["uuid"] in table[1]
    assert str(256 << 20) in caidctl("info", "--bytes", socket=socket).stdout
    for device in ("7", "-1x", "GPU-none"):
        done = caidctl("info", "--", device, socket=socket)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.startswith(f"caidctl: {device}: no such device")


def test_ping(socket):
    figures = read_json(socket, "ping", "-c", "25")
    assert figures["count"] == 25
    assert 0 < figures["min_ns"] <= figures["median_ns"] <= figures["p99_ns"] <= figures["max_ns"]
    assert caidctl("ping", socket=socket).stdout.startswith("10 round trips, min ")


# ---- names ----

def test_list_is_aligned(socket, client):
    client.create("weights", (1024, 768))
    client.create("größe/ü", (), "<f8")
    client.create("z", (0,), "|u1")
    done = caidctl("list", socket=socket)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "TYPE", "SHAPE", "SIZE", "LEASES"]
    assert len({line.index(c) for line, c in zip(lines, ("TYPE", "<f8", "<f4", "|u1"))}) == 1
    assert [line.split()[0] for line in lines[1:]] == ["größe/ü", "weights", "z"]
    assert "1024x768" in lines[2] and "3.0 MiB" in lines[2] and lines[2].endswith(" 1")
    assert "scalar" in lines[1] and " 0 B " in lines[3]
    assert str(1024 * 768 * 4) in caidctl("list", "-b", socket=socket).stdout


def test_list_json(socket, client):
    client.create("a/1", (2, 3), "<i2")
    client.create("a/2", (5,))
    client.create("b", (5,))
    arrays = read_json(socket, "list")["arrays"]
    assert [a["name"] for a in arrays] == ["a/1", "a/2", "b"]
    first = arrays[0]
    assert first["shape"] == [2, 3] and first["typestr"] == "<i2" and first["nbytes"] == 12
    assert first["uid"] == os.getuid() and first["leases"] == 1 and first["device"] == 0
    assert set(first) == {"pool", "name", "generation", "device", "device_uuid", "typestr",
                          "shape", "nbytes", "uid", "leases"}
    assert [a["name"] for a in read_json(socket, "list", "a/")["arrays"]] == ["a/1", "a/2"]
    assert read_json(socket, "list", "--all")["arrays"] == arrays
    assert read_json(socket, "list", f"--pool={first['pool']}")["arrays"] == arrays
    assert read_json(socket, "list", "nothing")["arrays"] == []


def test_list_long(socket, client):
    client.create("x", (2,))
    head, line = caidctl("list", "--long", socket=socket).stdout.splitlines()
    assert head.split() == ["POOL", "NAME", "TYPE", "SHAPE", "SIZE", "LEASES", "DEVICE",
                            "GENERATION", "USER"]
    assert len(line.split()) == 10  # "8 B" is two
    head = caidctl("list", "--all", socket=socket).stdout.splitlines()[0]
    assert head.split()[0] == "POOL"


@pytest.mark.parametrize("name", ['quote"d', "back\\slash", "sp ace", "日本語", "a/b", "\u00a0", "%s"])
def test_names_survive_json(socket, client, name):
    client.create(name, (1,))
    assert read_json(socket, "list")["arrays"][0]["name"] == name
    assert read_json(socket, "show", name)["name"] == name
    assert read_json(socket, "unlink", name)["unlinked"] == [name]


def test_show(socket, client):
    client.create("x", (2, 3), "|V12", strides=(12, 24), descr='[["a", "<f4"], ["b", "<i8"]]')
    shown = read_json(socket, "show", "x")
    assert shown["strides"] == [12, 24]
    assert json.loads(shown["descr"]) == [["a", "<f4"], ["b", "<i8"]]
    assert shown["block_size"] >= 72 and shown["offset"] >= 0
    assert shown["holders"] == [{"pid": os.getpid(), "uid": os.getuid(), "client": "maker",
                                 "readonly": False}]
    text = caidctl("show", "x", socket=socket).stdout
    assert re.search(r"^strides +\(12, 24\)$", text, re.M)
    assert re.search(rf"^held by +pid {os.getpid()} of \S+, rw, maker$", text, re.M)
    client.create("plain", (2,))
    assert read_json(socket, "show", "plain")["strides"] is None


def test_show_pool(socket, client):
    client.create("x", (1 << 20,))
    pool = read_json(socket, "status")["pool"]
    shown = read_json(socket, "show", f"--pool={pool}")
    assert shown["name"] == pool and shown["uid"] == os.getuid() and shown["mode"] == 0o600
    assert shown["names"] == 1 and shown["used"] >= 4 << 20
    assert read_json(socket, "pools") == {"pools": [shown]}
    text = caidctl("show", f"--pool={pool}", socket=socket).stdout
    assert "rw-------" in text and "4.0 MiB of" in text
    assert caidctl("pools", socket=socket).stdout.splitlines()[1].split()[0] == pool


def test_unlink(socket, client):
    for name in "abc":
        client.create(name, (1,))
    done = caidctl("unlink", "a", "b", socket=socket)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = caidctl("--json", "unlink", "missing", "c", socket=socket)
    assert done.returncode == 2, "the rest is done all the same"
    assert json.loads(done.stdout) == {"unlinked": ["c"]}
    assert done.stderr.startswith("caidctl: missing: ")
    assert read_json(socket, "list")["arrays"] == []


# ---- refusals and mistakes ----

@pytest.mark.parametrize("args", [
    ("show", "missing"), ("unlink", "missing"), ("list", "--pool=missing"),
    ("show", "--pool=missing"), ("show", "x", "--pool=missing"), ("unlink", "n" * 256),
    ("show", "tab\t"), ("--json", "show", "missing"), ("--json", "list", "--pool=missing"),
])
def test_refused(socket, args):
    done = caidctl(*args, socket=socket)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.match(r"caidctl: [^\x00-\x09\x0b-\x1f]+: .+\n\Z", done.stderr), done.stderr


@pytest.mark.parametrize("args", [
    ("nonsense",), ("--nonsense",), ("list", "--count=3"), ("ping", "-c", "0"), ("ping", "-c", "x"),
    ("ping", "-c", "1000001"), ("unlink",), ("show",), ("show", "a", "b"), ("status", "extra"),
    ("list", "--all", "--pool=x"), ("--socket",),
])
def test_usage(args):
    done = caidctl(*args)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(("caidctl: ", str(CAIDCTL)))
    assert done.stderr.endswith("Try 'caidctl --help'.\n")


def test_no_daemon(tmp_path):
    path = tmp_path / "nobody"
    for args in (("status",), ("--json", "list"), ("ping",)):
        done = caidctl(*args, socket=path)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr == f"caidctl: {path}: no such socket; is caid running?\n"
    done = caidctl("status", env={**os.environ, "CAID_SOCKET": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == f"caidctl: {tmp_path} (from $CAID_SOCKET): not a socket\n"


def test_no_daemon_is_needed(tmp_path):
    env = {**os.environ, "CAID_SOCKET": str(tmp_path)}
    version = caidctl("version", env=env)
    assert re.fullmatch(r"caidctl \d+\.\d+\.\d+\n", version.stdout)
    assert caidctl("--version", env=env).stdout == version.stdout
    assert json.loads(caidctl("version", "-j", env=env).stdout)["version"] in version.stdout
    assert caidctl("--help", env=env).stdout.startswith("usage: caidctl ")


def test_a_full_disk_is_an_error():
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([str(CAIDCTL), "version"], stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("caidctl: stdout: ")


# ---- completion ----

def complete(*words, env=None):
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _caidctl; ' \
             'printf "%s\\n" "${COMPREPLY[@]}"'
    source = pathlib.Path(__file__).parents[2] / "client" / "tools" / "caidctl.bash"
    done = subprocess.run(["bash", "-c", script, "bash", source, "caidctl", *words],
                          capture_output=True, text=True, timeout=60, env=env, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_completion(socket, client):
    client.create("weights/a", (1,))
    client.create("with space", (1,))
    env = {**os.environ, "PATH": f"{CAIDCTL.parent}:{os.environ['PATH']}",
           "CAID_SOCKET": str(socket)}
    assert complete("s", env=env) == ["status", "show"]
    assert complete("--js", env=env) == ["--json"]
    assert complete("show", "w", env=env) == ["weights/a", "with\\ space"]
    assert complete("--json", "unlink", "weights", env=env) == ["weights/a"]
    assert complete("info", "", env=env) == ["0"]
    assert complete("list", "--pool", "=", "", env=env) == [f"uid:{os.getuid()}"]
    assert complete("--socket", "=", "/nonexistent", "show", "", env=env) == [""]
    assert complete("ping", "--count", "=", "", env=env) == [""]
