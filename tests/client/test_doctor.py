# SPDX-License-Identifier: Apache-2.0
"""caidctl doctor: a test for each line that it can print. What a device lacks is the software
driver's setting, what the daemon does is caid.conf's; the rest says a fake daemon."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import socket as sockets
import subprocess

import pytest

from cli import BUILD, CAIDCTL, Client, caidctl, read_json, run_daemon, wait_until
from fake_daemon import HELLO, STATUS, fake_daemon

pytestmark = pytest.mark.skipif(os.environ.get("CAID_CUDA_DRIVER", "soft") != "soft",
                                reason="drives the software driver")

NOBODY = 65534


def parse(done):
    """The lines by their id; a device's by (id, device). What holds for every report is checked."""
    assert done.stderr == ""
    report = json.loads(done.stdout)
    levels = [line["level"] for line in report["checks"]]
    assert set(levels) <= {"ok", "warning", "problem"}
    assert report["problems"] == levels.count("problem")
    assert report["warnings"] == levels.count("warning")
    assert done.returncode == (1 if report["problems"] else 0)
    lines = {}
    for line in report["checks"]:
        assert set(line) == {"check", "device", "id", "level", "found", "remedy"}
        assert line["found"] and (line["remedy"] is None) == (line["level"] == "ok")
        lines.setdefault(line["id"], line)
        lines[line["id"], line["device"]] = line
    return lines


def doctor(socket, **env):
    """With a variable that is None unset."""
    environment = {**os.environ, **env}
    return parse(caidctl("doctor", "--json", socket=socket,
                         env={k: v for k, v in environment.items() if v is not None}))


def expect(lines, ident, level, found, remedy=None):
    """A line of that level; found and remedy are regular expressions for a part of it."""
    assert ident in lines, sorted(k for k in lines if isinstance(k, str))
    line = lines[ident]
    assert line["level"] == level
    assert re.search(found, line["found"]), line["found"]
    if level != "ok":
        assert re.search(remedy, line["remedy"]), line["remedy"]
    return line


@contextlib.contextmanager
def daemon(tmp_path, config=None, **env):
    path = tmp_path / "caid.conf"
    path.write_text(config or "")
    with run_daemon(tmp_path / "s", config=path, **env):
        yield tmp_path / "s"


@pytest.fixture
def fine(tmp_path):
    with daemon(tmp_path) as socket:
        yield socket


# ---- as a whole ----

def test_nothing_is_wrong(fine):
    lines = doctor(fine)
    bad = {k for k, line in lines.items() if isinstance(k, str) and line["level"] != "ok"}
    assert bad == {"driver_soft", "mps_off"}, "what a software device cannot have"
    done = caidctl("doctor", socket=fine)
    assert done.returncode == 0
    text = done.stdout.splitlines()
    assert re.match(r"ok +socket +\S", text[0])
    assert any(re.match(r"warning +device 0: MPS +off: ", line) for line in text)
    assert any(re.match(r" +-> .*nvidia-cuda-mps-control -d", line) for line in text)
    assert text[-2:] == ["", "0 problems, 2 warnings"]


def test_problems_are_an_exit_status(tmp_path):
    done = caidctl("doctor", socket=tmp_path / "none")
    assert done.returncode == 1 and done.stderr == ""
    assert re.match(r"problem +socket +.*no such socket\n +-> start ", done.stdout)
    assert re.search(r"\n\n2 problems, \d warnings?\n\Z", done.stdout)


def test_every_line_has_a_test():
    tools = pathlib.Path(__file__).parents[2] / "client" / "tools"
    source = "".join(path.read_text() for path in tools.glob("doctor*.c"))
    idents = set(re.findall(r'finding_(?:ok|warning|problem)\(\s*ret,\s*"(\w+)"', source))
    assert len(idents) > 40
    own = pathlib.Path(__file__).read_text()
    assert not [ident for ident in idents if f'"{ident}"' not in own]
    # Each finding with what to do about it, unless there is nothing to be done.
    assert len(re.findall(r"finding_remedy\(\s*ret,", source)) == len(
        re.findall(r"finding_(?:warning|problem)\(\s*ret,", source))


# ---- the socket ----

def test_the_socket(fine):
    expect(doctor(fine), "socket_ok", "ok", re.escape(str(fine)))


def test_no_socket(tmp_path):
    lines = doctor(tmp_path / "none")
    expect(lines, "socket_missing", "problem", "none: no such socket", "start caid.socket")
    expect(lines, "daemon_out_of_reach", "problem", "not asked", '"socket"')
    expect(lines, "driver_unknown", "warning", "no daemon answers", '"daemon"')
    assert "device_ok" not in lines and "usage_ok" not in lines
    done = caidctl("doctor", "--json", env={**os.environ, "CAID_SOCKET": str(tmp_path / "none")})
    expect(parse(done), "socket_missing", "problem", r"none \(from \$CAID_SOCKET\): no", "start")


def test_what_is_no_socket(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    expect(doctor(path), "socket_other", "problem", "file: not a socket", r"\$CAID_SOCKET")
    expect(doctor(path / "s"), "socket_bad", "problem", "s: Not a directory", "--socket")
    expect(doctor(tmp_path / ("x" * 200)), "socket_too_long", "problem", "at most 107 bytes",
           "--socket")


def doctor_as_nobody(path):
    """As somebody whom file modes stop: root is not. They may stop them above the build, too."""
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    with CAIDCTL.open("rb") as program:
        fd = program.fileno()
        return parse(subprocess.run([f"/proc/self/fd/{fd}", f"--socket={path}", "doctor", "--json"], pass_fds=[fd],
                                    capture_output=True, text=True, timeout=60, check=False, **who))


@pytest.fixture
def open_folder():
    """One that nobody may enter, unlike pytest's."""
    path = pathlib.Path("/tmp") / f"caid-doctor-{os.getpid()}"
    path.mkdir()
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def test_a_socket_without_permission(open_folder):
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET) as listener:
        listener.bind(str(open_folder / "s"))
        (open_folder / "s").chmod(0)
        expect(doctor_as_nobody(open_folder / "s"), "socket_no_access", "problem",
               r"no permission to connect: ---------, \w+:\w+", "socket_mode in caid.conf")
    open_folder.chmod(0)
    expect(doctor_as_nobody(open_folder / "s"), "socket_hidden", "problem", "no permission to look",
           "folders above it")


# ---- the daemon ----

def test_the_daemon(fine):
    expect(doctor(fine), "daemon_ok", "ok", r"^caid \d+\.\d+\.\d+, pid \d+, up ")


def test_nobody_listens(tmp_path):
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET) as left:
        left.bind(str(tmp_path / "s"))
    expect(doctor(tmp_path / "s"), "daemon_none", "problem", "nobody listens", "systemctl restart")


def test_a_daemon_that_says_nothing(tmp_path):
    with fake_daemon(tmp_path / "s", silent=True):
        expect(doctor(tmp_path / "s"), "daemon_silent", "problem", "within 5 seconds", "restart it")


def test_a_daemon_of_another_version(tmp_path):
    with fake_daemon(tmp_path / "s", hello=(2, "no common protocol version")):
        expect(doctor(tmp_path / "s"), "daemon_version", "problem", "no common protocol version",
               "of one version")
    with fake_daemon(tmp_path / "t", status={**STATUS, "server": "caid 0.0.1"}):
        expect(doctor(tmp_path / "t"), "daemon_other_version", "warning",
               r"^caid 0\.0\.1, and this caidctl is of caid ", "both of one version")


def test_a_daemon_that_refuses(tmp_path):
    with fake_daemon(tmp_path / "s", hello=(10, "1 connections are as many as uid 0 may have")):
        expect(doctor(tmp_path / "s"), "daemon_error", "problem", "as many as", "log")
    with fake_daemon(tmp_path / "u", hello=(22, "caid is not ready, try again: no driver answers")):
        expect(doctor(tmp_path / "u"), "daemon_not_ready", "problem", "no driver answers", "systemctl edit caid.service")
    with fake_daemon(tmp_path / "t", status=(14, "the daemon is stopping")):
        lines = doctor(tmp_path / "t")
        expect(lines, "daemon_error", "problem", "stopping", "log")
        assert "device_ok" not in lines


# ---- drivers ----

def test_the_daemon_s_driver(tmp_path, fine):
    expect(doctor(fine), "driver_soft", "warning", "no GPU is used", "--driver=cuda")
    with fake_daemon(tmp_path / "f"):
        expect(doctor(tmp_path / "f"), "driver_ok", "ok", r"^cuda, CUDA 13\.0, /lib/libcuda")


def test_the_driver_here(fine):
    expect(doctor(fine), "here_ok", "ok", r"^soft, CUDA 13\.0, /.*libcaid-softcuda.so$")
    expect(doctor(fine, CAID_CUDA_DRIVER=None), "here_ok", "ok", "^soft")
    lines = doctor(fine, CAID_CUDA_DRIVER="/nonexistent/libcuda.so")
    expect(lines, "here_none", "problem", "/nonexistent/libcuda.so", "container")
    lines = doctor(fine, CUDA_VISIBLE_DEVICES="")
    expect(lines, "here_hidden", "problem", "hides every device", "unset")
    assert lines["seen_hidden"]["level"] == "warning"
    other = str(BUILD / "tests" / "fake-cuda.so")
    lines = doctor(fine, CAID_CUDA_DRIVER=other)
    expect(lines, "here_other", "problem", "^cuda, and the daemon's is soft",
           f'CAID_CUDA_DRIVER, which is "{re.escape(other)}"')


def test_the_software_driver_instead_of_one(tmp_path):
    """auto, on a machine with a GPU or without: none is visible."""
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("with a CUDA driver, auto does not fall back")
    except OSError:
        pass
    expect(doctor(tmp_path / "none", CAID_CUDA_DRIVER=None), "here_soft", "warning",
           "^soft, since no real one works: .*libcuda", "NVIDIA's driver")


def test_a_device_node_without_permission(tmp_path):
    script = ("mount -t tmpfs none /dev && touch /dev/nvidiactl && chmod 0 /dev/nvidiactl && "
              'exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"')
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(CAIDCTL),
               f"--socket={tmp_path}/none", "doctor", "--json"]
    if os.getuid() != 0 or subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none",
                                           "/dev"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "CAID_CUDA_DRIVER": "/nonexistent/libcuda.so"})
    expect(parse(done), "here_no_access", "problem", "^/dev/nvidiactl: Permission denied",
           "ls -l /dev/nvidia")


def test_open_files(fine):
    expect(doctor(fine), "files_ok", "ok", "^[0-9]+ at once|^without limit")
    done = subprocess.run(["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", str(CAIDCTL),
                           f"--socket={fine}", "doctor", "--json"],
                          capture_output=True, text=True, timeout=60, check=False)
    expect(parse(done), "files_few", "warning", "^256 at once", "ulimit -n 4096")


# ---- devices ----

def test_a_device(fine):
    lines = doctor(fine)
    expect(lines, "device_ok", "ok", r"software device, GPU-\S+, .* of 4\.0 GiB free")
    expect(lines, "seen_ok", "ok", "^device 0 of this process$")


def test_a_device_that_is_lost(tmp_path):
    with daemon(tmp_path, CAID_SOFTCUDA_FAIL="nvmlDeviceGetMemoryInfo@2+=15") as socket:
        wait_until(lambda: caidctl("info", socket=socket).returncode != 0)
        lines = doctor(socket)
        expect(lines, "device_lost", "problem", "GPU-.*NVML error 15", "dmesg")
        expect(lines, "no_answer", "problem", "NVML error 15", "log")


def test_devices_that_this_process_does_not_see(tmp_path):
    with daemon(tmp_path, CAID_SOFTCUDA_DEVICES="2") as socket:
        lines = doctor(socket, CAID_SOFTCUDA_DEVICES="2", CUDA_VISIBLE_DEVICES="1")
        uuid = lines["device_ok", 0]["found"].split(", ")[1]
        line = expect(lines, "seen_hidden", "warning", "CUDA_VISIBLE_DEVICES=1", f"add {uuid}")
        assert line["device"] == 0
        assert lines["seen_ok", 1]["found"] == "device 0 of this process"
        lines = doctor(socket, CUDA_VISIBLE_DEVICES=None)
        line = expect(lines, "seen_not", "problem", "does not have it", "pass this GPU")
        assert line["device"] == 1
        assert lines["seen_ok", 0]["level"] == "ok"


def test_devices_that_the_daemon_does_not_have(fine):
    expect(doctor(fine), "left_out_none", "ok", "all that this process sees")
    lines = doctor(fine, CAID_SOFTCUDA_DEVICES="3")
    expect(lines, "left_out_some", "warning", r"^2 that .*: GPU-\S+, GPU-\S+$", "log")


def test_kinds_of_memory(tmp_path):
    with daemon(tmp_path) as socket:
        expect(doctor(socket), "kinds_ok", "ok", "^device legacy pinned$")
    with daemon(tmp_path, CAID_SOFTCUDA_ATTRIBUTES="125=0") as socket:
        expect(doctor(socket), "kinds_some", "warning", "^device pinned: not all of", "memory=")
    with fake_daemon(tmp_path / "f", device={"kinds": []}):
        expect(doctor(tmp_path / "f"), "kinds_none", "problem", "no array", "virtual memory")


@pytest.mark.parametrize(("attribute", "ident", "found", "remedy"), [
    ("122=0", "memops_none", "none of 64 bits", "newer driver"),
    ("113=0", "readonly_none", "cannot be registered", "newer driver"),
])
def test_what_hand_offs_need(tmp_path, attribute, ident, found, remedy):
    with daemon(tmp_path, CAID_SOFTCUDA_ATTRIBUTES=attribute) as socket:
        lines = doctor(socket)
        expect(lines, ident, "warning", found, remedy)
        expect(lines, "handoff_host", "warning", "the host waits", "lacks what memops needs")
        assert len({"memops_ok", "readonly_ok"} & lines.keys()) == 1, "the other one"


def test_hand_offs(tmp_path):
    with daemon(tmp_path) as socket:
        lines = doctor(socket)
        expect(lines, "memops_ok", "ok", "64 bits")
        expect(lines, "readonly_ok", "ok", "can be registered")
        expect(lines, "handoff_memops", "ok", "^memops: ")
    with daemon(tmp_path, "[handoff]\nmode = host\n") as socket:
        expect(doctor(socket), "handoff_host_chosen", "warning", "^host: ", "mode = auto")


@pytest.mark.parametrize(("attributes", "remedy"), [("", "mode = auto"), ("122=0", "mode = host")])
def test_hand_offs_by_events(tmp_path, attributes, remedy):
    with daemon(tmp_path, "[handoff]\nmode = events\n",
                CAID_SOFTCUDA_ATTRIBUTES=attributes) as socket:
        expect(doctor(socket), "handoff_events", "warning", "killed hangs", remedy)


def test_mps(tmp_path):
    """What this process sees counts; of a device that it does not see, what the daemon does."""
    with daemon(tmp_path) as socket:
        expect(doctor(socket), "mps_off", "warning", "290 us", "nvidia-cuda-mps-control")
        expect(doctor(socket, CAID_SOFTCUDA_ATTRIBUTES="133=1"), "mps_on", "ok", "17 us")
    with fake_daemon(tmp_path / "f", device={"mps": True}):
        expect(doctor(tmp_path / "f"), "mps_on", "ok", "^on: ")


def test_rdma(tmp_path):
    can, cards = {"CAID_SOFTCUDA_ATTRIBUTES": "110=1"}, os.path.exists("/sys/class/infiniband")
    with daemon(tmp_path, **can) as socket:
        expect(doctor(socket), "rdma_ok", "ok", "not tried.* UCX cannot")
    with daemon(tmp_path, config="[memory]\nrdma = no\n", **can) as socket:
        expect(doctor(socket, **can), "rdma_off", "warning", "rdma = no", "rdma = auto costs nothing")
    with daemon(tmp_path) as socket:
        if cards:
            expect(doctor(socket), "rdma_not", "warning", "cannot give", "through the host")
        else:
            expect(doctor(socket), "rdma_none", "ok", "no card here")


def test_fabric_handles(tmp_path):
    with daemon(tmp_path) as socket:
        expect(doctor(socket), "fabric_none", "ok", "^no$")
        has = {"CAID_SOFTCUDA_ATTRIBUTES": "128=1"}
        expect(doctor(socket, **has), "fabric_ok", "ok", "other hosts")
        has["CAID_SOFTCUDA_FAIL"] = "cuMemCreate=NOT_PERMITTED"  # as without IMEX channels
        expect(doctor(socket, **has), "fabric_refused", "ok", "cuMemCreate.*NOT_PERMITTED")


def test_persistence_mode(tmp_path):
    with daemon(tmp_path) as socket:
        expect(doctor(socket), "persistence_on", "ok", "^on$")
    with daemon(tmp_path, CAID_SOFTCUDA_PERSISTENCE="0") as socket:
        expect(doctor(socket), "persistence_off", "warning", "^off: ", "nvidia-persistenced")
    with daemon(tmp_path, CAID_SOFTCUDA_FAIL="nvmlDeviceGetPersistenceMode=3") as socket:
        expect(doctor(socket), "persistence_unknown", "warning", "NVML does not tell",
               "libnvidia-ml")


@pytest.mark.parametrize(("mode", "here", "ident", "level", "remedy"), [
    ("20=0", "", "compute_default", "ok", None),
    ("20=3", "", "compute_exclusive", "problem", "nvidia-smi -c DEFAULT, or MPS"),
    ("20=3", "133=1", "compute_exclusive_mps", "ok", None),
    ("20=2", "", "compute_prohibited", "problem", "nvidia-smi -c DEFAULT"),
    ("20=9", "", "compute_unknown", "warning", "nvidia-smi -q"),
])
def test_compute_mode(tmp_path, mode, here, ident, level, remedy):
    with daemon(tmp_path, CAID_SOFTCUDA_ATTRIBUTES=mode) as socket:
        expect(doctor(socket, CAID_SOFTCUDA_ATTRIBUTES=here), ident, level, ".", remedy)


def test_quarantine(tmp_path):
    with daemon(tmp_path, CAID_SOFTCUDA_FAIL="cuMemRelease@1=UNKNOWN") as socket:
        expect(doctor(socket), "quarantine_none", "ok", "no block")
        client = Client(socket)
        client.create(None, (8 << 20,), "|u1")
        client.close()
        wait_until(lambda: read_json(socket, "show")["unnamed"] == [])
        caidctl("flush", socket=socket)
        wait_until(lambda: read_json(socket, "info")["devices"][0]["quarantined"] == 1)
        expect(doctor(socket), "quarantine_some", "warning", r"^1 blocks of 8\.0 MiB", "restart")


# ---- the daemon's state ----

def test_usage(fine):
    client = Client(fine)
    client.create("x", (3,))
    expect(doctor(fine), "usage_ok", "ok", r"^2 connections, 1 arrays, 1 leases, 0 brackets, \d+ p")
    client.defer()
    expect(doctor(fine), "usage_deferred", "warning", "^1 of your connections", "defer_cleanup")
    client.close()


def test_pools(tmp_path):
    with daemon(tmp_path, "[user-pools]\nquota = 64M\n") as socket:
        expect(doctor(socket), "pools_ok", "ok", "none")
        client = Client(socket)
        client.create("x", (60 << 20,), "|u1")
        expect(doctor(socket), "pools_full", "warning", rf"^1 with .*: uid:{os.getuid()}$",
               "caid.conf")
        client.close()


def test_abandoned_arrays(fine):
    client = Client(fine)
    expect(doctor(fine), "abandoned_none", "ok", "none")
    for name in "abcd":
        client.create(name, (3,))
        client.end(client.begin(write=True), abandon=True)
    expect(doctor(fine), "abandoned_some", "warning",
           r"^4 whose writer died or gave up: a, b, c, \.\.\.$", "discard")
    client.close()


def test_no_answer(tmp_path):
    with fake_daemon(tmp_path / "s", hello={**HELLO, "devices": []}):
        lines = doctor(tmp_path / "s")
        expect(lines, "no_answer", "problem", "stopping", "log")
        assert lines["no_answer"]["check"] == "your use"
