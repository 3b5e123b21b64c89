# SPDX-License-Identifier: Apache-2.0
"""caidctl against the built daemon: what it prints, --json, exit status. Which keys, figures and heads there are:
test_golden.py."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket as socketlib
import subprocess
import sys

import pytest

from cli import CAIDCTL, Client, caidctl, read_json, run_daemon, wait_until
import raw
from slots import give_up, named, pages


@pytest.fixture
def socket(tmp_path):
    config = tmp_path / "conf"
    config.write_text("[user-pools]\nlegacy = yes\n")
    with run_daemon(tmp_path / "s", config):
        yield tmp_path / "s"


@pytest.fixture
def client(socket):
    client = Client(socket)
    yield client
    client.close()


HOLD = """
import sys
sys.path.insert(0, sys.argv[1])
import cli
client = cli.Client(sys.argv[2], name="holder")
client.open(sys.argv[3])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(socket):
    """hold(name): a process that opens an array and keeps it."""
    processes = []

    def start(name):
        # pylint: disable-next=consider-using-with
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(pathlib.Path(__file__).parent), str(socket), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=60)


AGES = {"age_ns", "published_ns", "opened_ns"}


def ageless(value):
    """It without ages, by which two listings of the same differ."""
    if isinstance(value, list):
        return [ageless(v) for v in value]
    return {k: ageless(v) for k, v in value.items() if k not in AGES} if isinstance(value, dict) else value


# ---- messages as they pass ----

@contextlib.contextmanager
def monitor(socket, *args):
    """caidctl monitor, which is looking on by then."""
    with subprocess.Popen([CAIDCTL, f"--socket={socket}", "monitor", *args], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: read_json(socket, "status")["watches"] == 1)
        yield process
        process.kill()


def lines_until(process, text):
    lines = []
    while not lines or text not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1]
    return lines


def test_monitor(socket, client):
    with monitor(socket) as process:
        client.create("name \u202e", (1,))
        done = caidctl("show", "no", socket=socket)
        assert done.returncode == 2
        lines = lines_until(process, "refusal")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    head = rf"\d\d:\d\d:\d\d\.\d{{6}}  \S+  pid {os.getpid()}  \S+  #\d+\.\d+  create "
    assert sum(bool(re.match(head + r'request  name \S+  {"name": "name ', line)) for line in lines) == 1
    assert sum(bool(re.match(head + r'answer  {"pool": ', line)) for line in lines) == 1
    assert re.search(r'  pid \d+  caidctl  #\d+\.2  show refusal  {"code": 6, "text": "no array ', lines[-1])


def test_monitor_json_and_filters(socket, client):
    own = f"uid:{os.getuid()}"
    with monitor(socket, "--json", "--method=show", f"--pool={own}", "--uid=all") as process:
        client.create("a", (1,))
        caidctl("show", "a", "--pool=other", socket=socket)
        caidctl("show", "a", socket=socket)
        caidctl("show", "b", f"--pool={own}", socket=socket)
        seen = [json.loads(line) for line in lines_until(process, "refusal")]
    assert [(m["method"], m["type"]) for m in seen] == [
        ("show", "request"), ("show", "answer"), ("show", "request"), ("show", "refusal")]
    assert [m["body"].get("name") for m in seen] == ["a", None, "b", None]
    assert {(m["uid"], m["client"], m["id"]) for m in seen} == {(os.getuid(), "caidctl", 2)}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_monitor_says_names(socket, client, form):
    """Also of leases, which a message has by number."""
    client.create("x \u202e", (1,))
    with monitor(socket, "--method=begin", *form) as process:
        client.end(client.begin())
        (line,) = lines_until(process, "begin")
    if form:
        assert (json.loads(line)["names"], json.loads(line)["more_names"]) == (["x \u202e"], 0)
    else:
        assert r'  begin request  x \xe2\x80\xae  {"bracket": 1, ' in line
    with monitor(socket, "--method=open", *form) as process:
        with pytest.raises(raw.Refused):
            client.call("open", names=list("abcdefghij"), mode="r")
        lines = lines_until(process, "refusal")
    if form:
        seen = [json.loads(line) for line in lines]
        assert [(m["names"], m["more_names"]) for m in seen] == [(list("abcdefgh"), 2), ([], 0)]
    else:
        assert '  open request  a, b, c, d, e, f, g, h, 2 more  {"names": ' in lines[0]
        assert '  open refusal  {"code": ' in lines[1]


def test_watch(socket, client):
    client.create("w", (1,))
    with subprocess.Popen([CAIDCTL, f"--socket={socket}", "watch", "w", "-c3", "--json"], stdout=subprocess.PIPE,
                          text=True) as process:
        wait_until(lambda: read_json(socket, "status")["watches"] == 1)
        client.call("unlink", name="w")
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        last = client.publish("w")
        lines.append(json.loads(process.stdout.read()))
    assert process.returncode == 0
    assert lines == [{"name": "w", "generation": n} for n in (lines[0]["generation"], 0, last)] and 0 < lines[0]["generation"] < last
    assert caidctl("watch", "w", "-c1", socket=socket).stdout == f"w: generation {last}\n"
    client.create("x", (1,))
    assert caidctl("watch", "--prefix=w", "-c1", socket=socket).stdout == f"w: generation {last}\n"
    for wrong in ["n" * 256], ["w", "--pool=missing"]:
        assert caidctl("watch", *wrong, socket=socket).returncode == 2
    for wrong in [], ["w", "x"], ["w", "--all"], ["w", "--prefix=w"], ["--prefix="]:
        assert caidctl("watch", *wrong, socket=socket).returncode == 1


def test_monitor_when_the_daemon_ends(tmp_path):
    with run_daemon(tmp_path / "s") as daemon, monitor(tmp_path / "s") as process:
        daemon.terminate()
        assert daemon.wait(60) == 0  # a second signal could kill it
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert err.startswith("caidctl: monitor: ")


def test_monitor_of_nobody(socket):
    done = caidctl("monitor", "--uid=nobody of that name", socket=socket)
    assert (done.returncode, done.stderr) == (1, "caidctl: nobody of that name: no such user\n")


# ---- the daemon as a whole ----

def test_status_is_the_default(socket):
    done = caidctl(socket=socket)
    assert done.returncode == 0 and done.stderr == ""
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert lines["server"].startswith("caid ")
    assert lines["socket"] == str(socket)
    assert {"driver", "device 0", "your pool", "holds", "serves"} <= lines.keys()
    assert lines["keeper"] == "none: arrays end with the daemon"
    if lines["driver"].startswith("soft"):
        assert "no GPU is used" in lines["driver"]


def test_tickets(socket, client):
    client.create("x", (4,))
    client.send_array()
    client.send_array(many=True)
    own, of = Client(socket), ["pid", "name", "nbytes", "many", "gone"]
    own.open("x")
    own.send_array()
    own.close()
    wait_until(lambda: read_json(socket, "show", "--tickets")["tickets"][2]["gone"])
    tickets = read_json(socket, "show", "--tickets")["tickets"]
    assert [[t[key] for key in of] for t in tickets] == [
        [os.getpid(), "x", 16, many, gone] for many, gone in ((False, False), (True, False), (False, True))]
    assert [t["ttl_ns"] // (60 * 10**9) for t in tickets] == [0, 0, 9]
    assert caidctl("show", "--tickets", socket=socket).stdout.count("16 B") == 3
    assert read_json(socket, "withdraw", "--gone", "--pid=1") == {"withdrawn": 0}
    assert caidctl("withdraw", "--gone", socket=socket).stdout == "1 withdrawn\n"
    assert read_json(socket, "withdraw", f"--pid={os.getpid()}") == {"withdrawn": 2}
    for wrong in [], ["--pid=0"], ["--pid=x"]:
        assert caidctl("withdraw", *wrong, socket=socket).returncode == 1
    for wrong in ["x"], ["--unnamed"], ["--pool=a"]:
        assert caidctl("show", "--tickets", *wrong, socket=socket).returncode == 1


def kick(socket, who):
    """Its exit status, and what it prints."""
    done = caidctl("kick", who, socket=socket)
    return done.returncode, done.stdout + done.stderr


def test_kick(socket, client, hold):
    client.create("a", (4,))
    held = hold("a")
    of = {c["client"]: c for c in read_json(socket, "connections")["connections"]}
    assert {name: of[name]["pid"] for name in ("maker", "holder")} == {"maker": os.getpid(), "holder": held.pid}
    assert re.search(rf"^ *{of['holder']['conn']} +{held.pid} .* holder +no +no$", caidctl("connections", socket=socket).stdout, re.M)
    assert kick(socket, "holder") == (0, "1 connection ended\n")
    wait_until(lambda: [c["client"] for c in read_json(socket, "connections")["connections"] if c["hung_up"]] == ["holder"])
    assert kick(socket, "holder") == (1, "caidctl: holder: no client with that pid or name: see caidctl connections\n")
    assert "hung up" in caidctl("show", "a", socket=socket).stdout  # its memory waits

    others = [raw.Client(socket, hello=False) for _ in range(2)]
    for other in others:
        other.call("hello", version_min=1, version_max=1, client="holder", features=["told"])
    hold("a")
    assert kick(socket, "holder") == (1, "caidctl: holder: several processes call themselves so: say which by its pid\n")
    client.call("ping")
    client.hang_up()  # before this process is kicked
    assert len(read_json(socket, "kick", str(os.getpid()))["kicked"]) == 2
    for other in others:
        with pytest.raises(raw.Refused, match=f"uid {os.getuid()} has ended this connection"):
            other.response()
        with pytest.raises(raw.Closed):
            other.response()
        other.close()
    assert kick(socket, "0")[0] == kick(socket, "")[0] == 1


def test_nothing_is_lost(socket):
    assert read_json(socket, "list", "--lost") == {"lost": []}
    assert caidctl("show", "--lost", socket=socket).returncode == 1


LEFT = r"caidctl: drain: arrays are left: \S+ {} of 4.0 MiB\n"


@contextlib.contextmanager
def draining(socket):
    """caidctl drain, which waits, and what it says first."""
    with subprocess.Popen([CAIDCTL, f"--socket={socket}", "drain"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        yield process, process.stderr.readline()
        process.kill()


def assert_drained(socket, client):
    with pytest.raises(raw.Refused, match="no new arrays.*caidctl drain"):
        client.create("new", (1,))
    assert read_json(socket, "status")["draining"]


def test_drain_waits_for_the_last_array(socket, client, hold):
    client.create("x", (1 << 20,))
    client.close_array()
    client.create(None, (4,))
    with draining(socket) as (drain, line):
        assert re.fullmatch(LEFT.format(2), line)
        assert_drained(socket, client)
        holder = hold("x")
        client.publish("y")
        for name in "xy":
            client.unlink(name)
        client.close_array()
        assert re.fullmatch(LEFT.format(1), drain.stderr.readline())
        holder.kill()
        out, err = drain.communicate(timeout=60)
        assert (drain.returncode, out, err) == (0, "no array is left\n", "")
    assert_drained(socket, client)
    assert read_json(socket, "info")["devices"][0]["blocks"] == 0
    assert read_json(socket, "drain") == {"drained": True, "arrays": 0, "bytes": 0, "unnamed": []}


def test_drain_goes_on_until_it_is_undone(socket, client):
    client.create("x", (4,))
    with draining(socket) as (drain, _):
        drain.send_signal(signal.SIGINT)
        assert drain.wait(60) == -signal.SIGINT
    assert_drained(socket, client)
    assert re.search("^ *drain +no new arrays", caidctl("status", socket=socket).stdout, re.M)
    assert read_json(socket, "drain", "--undo") == {"drained": False}
    assert not read_json(socket, "status")["draining"]
    client.create("new", (1,))


def test_drain_by_force(socket, client, hold):
    for name in "xyz":
        client.create(name, (1 << 20,))
        client.close_array()
    holder = hold("y")
    done = caidctl("drain", "--force", "--json", socket=socket)
    left = json.loads(done.stdout)
    assert (done.returncode, left["drained"], left["arrays"], left["bytes"]) == (2, False, 1, 4 << 20)
    assert [(a["name"], [h["pid"] for h in a["holders"]]) for a in left["unnamed"]] == [("y", [holder.pid])]
    assert re.fullmatch(LEFT.format(1), done.stderr)
    assert read_json(socket, "list", "--all") == {"arrays": []}
    assert f"{holder.pid}" in caidctl("drain", "--force", socket=socket).stdout
    holder.kill()
    wait_until(lambda: caidctl("drain", "--force", socket=socket).returncode == 0)


@pytest.mark.skipif(os.environ.get("CAID_CUDA_DRIVER", "soft") != "soft", reason="sets attributes")
def test_status_tells_how_hand_offs_are_done(tmp_path):
    for attributes, mode in (("", "memops"), ("122=0", "host")):
        with run_daemon(tmp_path / "s", CAID_SOFTCUDA_ATTRIBUTES=attributes,
                        CAID_SOFTCUDA_FAIL="nvmlDeviceGetPersistenceMode=3"):
            device = read_json(tmp_path / "s", "status")["devices"][0]
            assert device["handoff"] == mode and device["memops"] == (mode == "memops")
            assert device["persistence"] is None and device["kinds"] == "device legacy pinned"
            text = caidctl(socket=tmp_path / "s").stdout
            assert re.search(rf"^device 0 +.*, hand-off by {mode}$", text, re.M)


def test_info(socket, client):
    before = read_json(socket, "info")["devices"]
    client.create(None, (64, 1 << 20))
    after = read_json(socket, "info")["devices"]
    assert after[0]["used"] - before[0]["used"] >= 256 << 20
    assert read_json(socket, "info", "0")["devices"] == after[:1]
    assert read_json(socket, "info", after[0]["uuid"])["devices"] == after[:1]

    table = caidctl("info", socket=socket).stdout.splitlines()
    assert "256.0 MiB" in table[1] and after[0]["uuid"] in table[1]
    assert str(256 << 20) in caidctl("info", "--bytes", socket=socket).stdout
    for device in ("7", "-1x", "GPU-none"):
        done = caidctl("info", "--", device, socket=socket)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.startswith(f"caidctl: {device}: no such device")


def test_info_counts_other_kinds(socket, client):
    client.create("host", (1 << 20,), "|u1", memory="pinned")
    assert not read_json(socket, "info", "0")["devices"][0]["context"]
    client.create("legacy", (1 << 20,), "|u1", memory="legacy")
    assert read_json(socket, "info", "0")["devices"][0]["context"]
    assert re.search(r"^contexts +1, for legacy handles$", caidctl(socket=socket).stdout, re.M)


def test_flush(socket, client):
    client.defer()  # so that it waits until it is looked at
    client.create(None, (8 << 20,), "|u1")
    client.close_array()
    wait_until(lambda: read_json(socket, "status")["pending"] == 1)
    assert read_json(socket, "flush") == {"entries": 0, "blocks": 0, "bytes": 0}, "held back"
    client.close()
    wait_until(lambda: read_json(socket, "status")["connections"] == 1)
    read_json(socket, "flush", "--device=0")
    device = read_json(socket, "info")["devices"][0]
    assert (device["used"], device["pending"], device["reserve"]) == (0, 0, 0)
    assert re.fullmatch(r"0 entries freed, 0 blocks of 0 B given back to the driver\n",
                        caidctl("flush", socket=socket).stdout)
    done = caidctl("flush", "--device=GPU-none", socket=socket)
    assert done.returncode == 1 and done.stderr.startswith("caidctl: GPU-none: no such device")


@pytest.mark.skipif(os.environ.get("CAID_CUDA_DRIVER", "soft") != "soft", reason="injects a fault")
def test_a_daemon_that_does_not_answer(tmp_path):
    with run_daemon(tmp_path / "s") as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            done = caidctl("status", socket=tmp_path / "s",
                           env={**os.environ, "CAID_TIMEOUT": "0.2"})
            assert done.returncode == 1
            assert f": {tmp_path / 's'}: the daemon did not answer in 0.2 s" in done.stderr
        finally:
            os.kill(daemon.pid, signal.SIGCONT)


def test_a_daemon_that_waits_for_its_driver(tmp_path):
    command = [str(CAIDCTL.parent / "caid"), "--foreground", f"--socket={tmp_path / 's'}",
               "--driver=cuda", "--config=/dev/null"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "NOTIFY_SOCKET": "@caid-test-nobody"}
    with open(os.devnull, "wb") as log, socketlib.socket(socketlib.AF_UNIX,
                                                         socketlib.SOCK_DGRAM) as manager:
        manager.bind("\0caid-test-nobody")
        with subprocess.Popen(command, env=env, stderr=log) as daemon:
            def refusal():
                return caidctl("status", socket=tmp_path / "s")
            wait_until(lambda: "not ready" in refusal().stderr)
            assert refusal().returncode == 2
            assert "no driver answers: " in refusal().stderr and "CAID_CUDA_DRIVER=soft" in refusal().stderr
            daemon.terminate()
            assert daemon.wait(60) == 0


def test_a_block_that_the_driver_does_not_take_back(tmp_path):
    socket = tmp_path / "s"
    with run_daemon(socket, CAID_SOFTCUDA_FAIL="cuMemRelease@1=UNKNOWN"):
        client = Client(socket)
        client.create(None, (8 << 20,), "|u1")
        client.close()
        wait_until(lambda: read_json(socket, "show")["unnamed"] == [])
        caidctl("flush", socket=socket)  # refused with the driver's error, unless age came first
        wait_until(lambda: read_json(socket, "info")["devices"][0]["quarantined"] == 1)
        device = read_json(socket, "info")["devices"][0]
        assert device["quarantined_bytes"] == 8 << 20 and device["used"] == 0
        assert "8.0 MiB" in caidctl("info", socket=socket).stdout.splitlines()[1]
        assert read_json(socket, "status")["release_errors"] == 1
        assert re.search(r"^lost +1 blocks", caidctl(socket=socket).stdout, re.M)


def test_ping(socket):
    figures = read_json(socket, "ping", "-c", "25")
    assert figures["count"] == 25
    assert 0 < figures["min_ns"] <= figures["median_ns"] <= figures["p99_ns"] <= figures["max_ns"]
    assert caidctl("ping", socket=socket).stdout.startswith("10 round trips, min ")


def test_stat(socket, client):
    client.create("a", (1 << 20,), "|u1")
    command = [CAIDCTL, f"--socket={socket}", "--json", "stat", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [json.loads(process.stdout.readline())]
        for _ in range(50):
            client.open("a")
        while sum(line["opens_per_s"] for line in lines) == 0 or lines[-1]["leases"] < 51:
            lines.append(json.loads(process.stdout.readline()))
        process.terminate()
    device = read_json(socket, "info")["devices"][0]
    assert [line["time_ns"] for line in lines] == sorted(line["time_ns"] for line in lines)
    assert {line["hand_offs_per_s"] for line in lines} == {0}
    for line in lines:
        assert (line["device"], line["device_uuid"]) == (0, device["uuid"])
        assert (line["used"], line["total"], line["arrays"]) == (device["used"], device["total"], 1)
    head, *rows = caidctl("stat", "0.1", "--count=2", "--bytes", socket=socket).stdout.splitlines()
    assert head.split() == "TIME DEVICE CLIENTS ARRAYS LEASES OPENS/S HAND-OFFS/S CAID FREE PENDING".split()
    assert [[row.split()[i] for i in (1, 3, 4, 5, 6)] for row in rows] == [["0", "1", "51", "0.0", "0.0"]] * 2
    assert all(row.split()[7] == str(device["used"]) and len(row) == len(head) for row in rows)
    for bad in ("0", "x", "", "3601", "nan"):
        done = caidctl("stat", bad, socket=socket)
        assert (done.returncode, done.stdout) == (1, "") and "from 0.1 to 3600" in done.stderr


def test_stat_when_the_daemon_ends(tmp_path):
    socket = tmp_path / "s"
    command = [CAIDCTL, f"--socket={socket}", "stat", "0.1"]
    with run_daemon(socket) as daemon:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            for _ in range(2):
                process.stdout.readline()
            os.kill(daemon.pid, signal.SIGTERM)
            assert "caidctl: " in process.communicate(timeout=60)[1]
            assert process.returncode == 1


# ---- names ----

def test_list_is_aligned(socket, client):
    client.create("weights", (1024, 768))
    client.create("größe/ü", (), "<f8")
    client.create("z", (0,), "|u1")
    done = caidctl("list", socket=socket)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len({line.index(c) for line, c in zip(lines, ("TYPE", "<f8", "<f4", "|u1"))}) == 1
    assert [line.split()[0] for line in lines[1:]] == ["größe/ü", "weights", "z"]
    assert "1024x768" in lines[2] and "3.0 MiB" in lines[2] and re.search(r" 1  -$", lines[2])
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
    assert [a["name"] for a in read_json(socket, "list", "a/")["arrays"]] == ["a/1", "a/2"]
    assert ageless(read_json(socket, "list", "--all")["arrays"]) == ageless(arrays)
    assert ageless(read_json(socket, "list", f"--pool={first['pool']}")["arrays"]) == ageless(arrays)
    assert read_json(socket, "list", "nothing")["arrays"] == []
    for pattern, names in {"*": ["a/1", "a/2", "b"], "a*": ["a/1", "a/2"], "?/[!1]": ["a/2"], "*b": ["b"], "a?": []}.items():
        assert [a["name"] for a in read_json(socket, "list", pattern)["arrays"]] == names
        assert read_json(socket, "list", "--lost", pattern) == {"lost": []}
    assert caidctl("show", "a*", socket=socket).stderr.endswith("in a name * is a letter, not a pattern\n")
    assert caidctl("list", "--all", socket=socket).stdout.startswith("POOL ")


@pytest.mark.parametrize("name", ['quote"d', "back\\slash", "sp ace", "日本語", "a/b", "\u00a0", "%s"])
def test_names_survive_json(socket, client, name):
    client.create(name, (1,))
    assert read_json(socket, "list")["arrays"][0]["name"] == name
    assert read_json(socket, "show", name)["name"] == name
    assert read_json(socket, "unlink", name)["unlinked"] == [name]


def first_column(socket, *args):
    return [line.split()[0] for line in caidctl("list", *args, socket=socket).stdout.splitlines()[1:]]


def test_ages_and_order(socket, client):
    for name, n in ("a", 1), ("b", 1000), ("c", 2):
        client.create(name, (n,))
    client.open("c")
    assert first_column(socket, "--sort=size") == ["b", "c", "a"]
    assert first_column(socket, "--sort=leases") == ["c", "a", "b"]
    for key in "age", "published", "opened":
        assert sorted(first_column(socket, f"--sort={key}", "[ab]")) == ["a", "b"]
    shown = read_json(socket, "show", "a")
    assert all(0 < shown[key] < 600 * 10**9 for key in ("age_ns", "published_ns", "opened_ns"))
    assert 0 < shown["holders"][0]["age_ns"] < 600 * 10**9
    text = caidctl("show", "a", socket=socket).stdout
    assert re.search(r"^created +\d+s ago\npublished +\d+s ago\nopened +\d+s ago$", text, re.M)
    for name in "a", "b":
        caidctl("unlink", name, socket=socket)
    rows = caidctl("show", "--unnamed", "--sort=size", socket=socket).stdout.splitlines()
    assert [re.search(r" rw +\S+ +(\w) .* \d+\.\d+ s$", row)[1] for row in rows[1:]] == ["b", "a"]
    assert caidctl("show", "--unnamed", "--sort=held", socket=socket).stdout.splitlines()[0] == rows[0]
    for wrong in ["list", "--sort=held"], ["list", "--sort=x"], ["list", "--sort=size", "--json"], ["show", "--sort=size"], \
            ["list", "--lost", "--sort=size"], ["top", "--sort=size"]:
        assert caidctl(*wrong, socket=socket).returncode == 1


def test_show(socket, client):
    client.create("x", (2, 3), "|V12", strides=(12, 24), descr='[["a", "<f4"], ["b", "<i8"]]')
    shown = read_json(socket, "show", "x")
    assert shown["strides"] == [12, 24]
    assert json.loads(shown["descr"]) == [["a", "<f4"], ["b", "<i8"]]
    assert shown["metadata"] is None and [h["client"] for h in shown["holders"]] == ["maker"]
    text = caidctl("show", "x", socket=socket).stdout
    assert re.search(r"^strides +\(12, 24\)$", text, re.M)
    assert re.search(rf"^held by +pid {os.getpid()} of \S+, rw for \d+s, maker$", text, re.M)
    assert "metadata" not in text
    client.create("plain", (2,), metadata='{"step": 7}\n')
    shown = read_json(socket, "show", "plain")
    assert shown["strides"] is None and shown["metadata"] == '{"step": 7}\n'
    text = caidctl("show", "plain", socket=socket).stdout
    assert re.search(r'^metadata +\{"step": 7\}\\x0a$', text, re.M), "controls are escaped"
    client.create("evil", (2,), metadata='\x1b[2J\x9b2J\x7f\u00e9')
    assert read_json(socket, "show", "evil")["metadata"] == '\x1b[2J\x9b2J\x7f\u00e9'
    for form in [], ["--json"]:
        text = caidctl("show", "evil", *form, socket=socket).stdout
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) and "\u00e9" in text


def test_show_pool(socket, client):
    client.create("x", (1 << 20,))
    pool = read_json(socket, "status")["pool"]
    shown = read_json(socket, "show", f"--pool={pool}")
    assert shown["name"] == pool and shown["allocated"] == 4 << 20
    assert read_json(socket, "pools") == {"pools": [shown]}
    text = caidctl("show", f"--pool={pool}", socket=socket).stdout
    assert re.search(r"^legacy +yes$", text, re.M)
    assert "rw-------" in text and re.search(r"^allocated +4.0 MiB$", text, re.M)
    assert caidctl("pools", socket=socket).stdout.splitlines()[1].split()[0] == pool


def test_fragmentation(socket, client):
    client.defer()
    for i in range(3):
        client.create(str(i), (64 << 10,), "|u1")
    pool = f"uid:{os.getuid()}"
    whole = read_json(socket, "show", f"--pool={pool}")
    assert whole["holes"] == whole["largest"] == whole["used"] - (192 << 10)
    assert whole["fragmentation"] == 0
    client.unlink("1")
    client.close_array(1)
    wait_until(lambda: read_json(socket, "show", f"--pool={pool}")["pending"] == 64 << 10)
    client.close()  # which ends its deferral
    caidctl("flush", socket=socket)
    split = read_json(socket, "show", f"--pool={pool}")
    assert split["largest"] == whole["largest"]
    assert split["holes"] == whole["holes"] + (64 << 10)
    assert split["fragmentation"] == pytest.approx(1 - split["largest"] / split["holes"], abs=1e-4)


def test_overview(socket, client):
    client.create("x", (1 << 20,))
    client.create("host", (1 << 20,), "|u1", memory="pinned")
    client.create(None, (3,))
    shown = read_json(socket, "show")
    user = next(u for u in shown["users"] if u["uid"] == os.getuid())
    assert (user["arrays"], user["names"], user["leases"]) == (3, 2, 3)
    assert [u["name"] for u in shown["unnamed"]] == [None]

    text = caidctl("show", socket=socket).stdout
    tables = [table.splitlines() for table in text.split("\n\n")]
    assert [table[0].split()[0] for table in tables] == ["DEVICE", "POOL", "USER", "Memory"]
    assert "FRAGMENTED" in tables[1][0] and tables[1][1].startswith(f"uid:{os.getuid()} ")
    assert tables[3][1].split()[:3] == ["PID", "USER", "CLIENT"]
    assert str(os.getpid()) in tables[3][2]
    assert f" {user['bytes']} " in caidctl("show", "-b", socket=socket).stdout


# ---- memory whose name is gone ----

def test_unnamed(socket, client):
    assert read_json(socket, "show", "--unnamed") == {"unnamed": []}
    client.create(None, (256,))
    client.create("named", (256,))
    (entry,) = read_json(socket, "show", "--unnamed")["unnamed"]
    assert entry["name"] is None and entry["nbytes"] == 1024
    _, line = caidctl("show", "-u", socket=socket).stdout.splitlines()
    cells = re.split(r"\s{2,}", line.strip())
    assert cells[0] == str(os.getpid()) and cells[2:4] == ["maker", "rw"]
    assert cells[4:-1] == [f"uid:{os.getuid()}", "-", "0", "device", "1", "1.0 KiB"]
    assert ageless(read_json(socket, "show", "--unnamed", f"--pool=uid:{os.getuid()}")["unnamed"]) == ageless([entry])
    done = caidctl("show", "--unnamed", "--pool=missing", socket=socket)
    assert done.returncode == 2 and done.stdout == ""


def test_a_line_for_all_that_a_process_keeps_without_a_name(socket, client):
    """As it does of the tensors of a set; what has another last name, or another mode, has a line of its own."""
    for n in 256, 512, 768:
        client.create(None, (n,))
    client.create("x", (1,))
    client.open("x")
    client.unlink("x")
    rows = [line.split() for line in caidctl("show", "--unnamed", socket=socket).stdout.splitlines()[1:]]
    assert [(row[3], row[5], row[8:11]) for row in rows] == [
        ("rw", "-", ["3", "6.0", "KiB"]), ("r", "x", ["1", "4", "B"]), ("rw", "x", ["1", "4", "B"])]
    assert len(read_json(socket, "show", "--unnamed")["unnamed"]) == 4
    rows = caidctl("show", "--unnamed", "--sort=leases", socket=socket).stdout.splitlines()[1:]
    assert " - " in rows[2]


def test_a_holder_that_hung_up(socket):
    client = Client(socket)
    client.create("x", (256,))
    client.create(None, (512,))
    client.hang_up()
    wait_until(lambda: read_json(socket, "show", "x")["holders"][0]["hung_up"])
    assert re.search(rf"^held by +pid {os.getpid()} of \S+, rw for \d+s, maker, hung up and not exited$",
                     caidctl("show", "x", socket=socket).stdout, re.M)
    (entry,) = read_json(socket, "show", "--unnamed")["unnamed"]
    assert entry["holders"][0]["hung_up"] and entry["leases"] == 1
    line = caidctl("show", "--unnamed", socket=socket).stdout.splitlines()[1]
    assert re.split(r"\s{2,}", line.strip())[2:4] == ["maker", "gone"]


def test_who_pins_memory_whose_name_is_gone(socket, client, hold):
    client.create("weights", (16 << 20,), "|u1")
    first = read_json(socket, "show", "weights")["generation"]
    holder = hold("weights")
    assert read_json(socket, "show", "--unnamed")["unnamed"] == []

    client.unlink("weights")
    client.create(None, (32,))
    second = client.publish("weights")
    assert second > first
    client.close_array(0)  # the maker's own lease on the old one
    wait_until(lambda: read_json(socket, "show", "--unnamed")["unnamed"][0]["leases"] == 1)

    (entry,) = read_json(socket, "show", "--unnamed")["unnamed"]
    assert (entry["name"], entry["generation"]) == ("weights", first)
    assert [(h["pid"], h["client"], h["readonly"]) for h in entry["holders"]] == [(holder.pid, "holder", True)]
    assert ageless(read_json(socket, "show")["unnamed"]) == ageless([entry])
    line = caidctl("show", "--unnamed", socket=socket).stdout.splitlines()[1]
    assert line.split()[0] == str(holder.pid) and "holder" in line and "weights" in line
    assert "16.0 MiB" in line

    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    wait_until(lambda: read_json(socket, "show", "--unnamed")["unnamed"] == [])


def test_a_time_to_live(socket, client):
    client.create("w", (4,))
    assert "unlinked in" not in caidctl("show", "w", socket=socket).stdout
    client.expire("w", 7300)
    assert re.search(r"^unlinked in +2h 01m$", caidctl("show", "w", socket=socket).stdout,
                     re.MULTILINE)
    assert 7000e9 < read_json(socket, "show", "w")["ttl_ns"] <= 7300e9
    assert [a["ttl_ns"] > 0 for a in read_json(socket, "list")["arrays"]] == [True]


# ---- parts ----

def test_parts(socket, client):
    client.create("w", (1000,), "|u1")
    assert "parts" not in caidctl("show", "w", socket=socket).stdout
    client.publish_part(100, 50, "p")
    client.publish_part(200, 60, "q")
    shown, part = read_json(socket, "show", "w"), read_json(socket, "show", "p")
    assert (shown["parts"], part["parts"]) == (2, 0)
    assert (part["block"], part["offset"]) == (shown["block"], shown["offset"] + 100)
    assert part["nbytes"] == 50 and part["leases"] == 0
    assert [a["parts"] for a in read_json(socket, "list")["arrays"]] == [0, 0, 2]
    assert re.search(r"^parts +2 published of it$", caidctl("show", "w", socket=socket).stdout,
                     re.M)
    long = caidctl("list", "-l", socket=socket).stdout.splitlines()[1:]
    assert [line.split()[12] for line in long] == ["0", "0", "2"]
    client.unlink("q")
    assert read_json(socket, "show", "w")["parts"] == 1


def test_who_pins_memory_that_only_a_part_keeps(socket, client):
    client.create("w", (1000,), "|u1")
    client.publish_part(100, 50, "p")
    client.unlink("w")
    lines = caidctl("show", "--unnamed", socket=socket).stdout.splitlines()[1:]
    assert [re.split(r"\s{2,}", line.strip())[2] for line in lines] == ["maker", "1 part"]
    client.close_array()
    (entry,) = read_json(socket, "show", "--unnamed")["unnamed"]
    assert (entry["name"], entry["parts"], entry["leases"]) == ("w", 1, 0)
    assert entry["holders"] == []
    (line,) = caidctl("show", "--unnamed", socket=socket).stdout.splitlines()[1:]
    cells = re.split(r"\s{2,}", line.strip())
    assert cells[0] == "-" and cells[2:4] == ["1 part", "-"] and cells[5] == "w"
    client.unlink("p")
    assert caidctl("show", "--unnamed", socket=socket).stdout.splitlines()[1:] == []


# ---- hand-off ----

def use(socket, name="x"):
    """What the three forms of a listing say of an array."""
    entry = next(a for a in read_json(socket, "list")["arrays"] if a["name"] == name)
    line = next(line for line in caidctl("list", socket=socket).stdout.splitlines()
                if line.startswith(name))
    long = next(line for line in caidctl("list", "-l", socket=socket).stdout.splitlines()
                if f" {name} " in line).split()
    numbers = [entry["readers"], entry["writers"], entry["waiting"]]
    assert [int(cell) for cell in long[8:11]] == numbers
    assert long[11] == ("abandoned" if entry["abandoned"] else "-")
    return re.split(r"\s{2,}", line)[-1]


def test_brackets(socket, client):
    client.create("x", (256,))
    assert use(socket) == "-"
    reads = [client.begin(), client.begin()]
    assert use(socket) == "2 read"
    other = Client(socket, name="other")
    other.open("x", "rw")
    waits = other.begin(write=True, wait=False)
    wait_until(lambda: use(socket) == "2 read, 1 wait")
    holders = {(h["client"], h["reading"], h["writing"], h["waiting"])
               for h in read_json(socket, "show", "x")["holders"]}
    assert holders == {("maker", 2, 0, 0), ("other", 0, 0, 1)}
    text = caidctl("show", "x", socket=socket).stdout
    assert re.search(r"^use +2 read, 1 wait$", text, re.M)
    assert re.search(r"^held by .*, rw for .*, maker, brackets: 2 read$", text, re.M)
    assert re.search(r"^held by .*, rw for .*, other, brackets: 1 wait$", text, re.M)
    assert read_json(socket, "status")["brackets"] == 3
    assert re.search(r"^serves .*, 3 brackets, ", caidctl(socket=socket).stdout, re.M)
    assert read_json(socket, "show")["users"][0]["brackets"] == 3
    for bracket in reads:
        client.end(bracket)
    wait_until(lambda: use(socket) == "1 write")
    other.response()
    other.end(waits, abandon=True)
    assert use(socket) == "abandoned"
    assert re.search(r"^use +abandoned$", caidctl("show", "x", socket=socket).stdout, re.M)
    client.end(client.begin(write=True))
    assert use(socket) == "-", "a new write heals it"
    other.close()


def test_timelines(socket, client):
    assert read_json(socket, "timelines") == {"timelines": []}
    frames = named(client, "frames")
    frames.submit(7)
    frames.land(7)
    other = Client(socket, name="other")
    (opened,) = pages(other, other.call("open_timeline", name="frames"))
    (entry,) = read_json(socket, "timelines")["timelines"]
    assert entry == {"pool": f"uid:{os.getuid()}", "name": "frames", "value": 7, "submitted": 7,
                     "holders": 1, "pid": os.getpid(), "uid": os.getuid(), "client": "maker"}
    assert read_json(socket, "timelines", "--all")["timelines"] == [entry]
    assert read_json(socket, "timelines", f"--pool=uid:{os.getuid()}")["timelines"] == [entry]
    head, line = caidctl("timelines", socket=socket).stdout.splitlines()
    assert head.split() == ["POOL", "NAME", "VALUE", "SUBMITTED", "OPEN", "PID", "USER", "CLIENT"]
    assert line.split()[1:6] == ["frames", "7", "7", "1", str(os.getpid())]
    assert line.split()[-1] == "maker"
    status = read_json(socket, "status")
    assert (status["timelines"], status["pages"]) == (1, 1)
    assert re.search(r"^holds .*, 1 timelines$", caidctl(socket=socket).stdout, re.M)
    assert read_json(socket, "show")["users"][0]["pages"] >= 1
    give_up(other, opened)
    other.close()
    give_up(client, frames)
    wait_until(lambda: read_json(socket, "timelines")["timelines"] == [])


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


def test_unlink_what_starts_alike(socket, client):
    names = [f"run/{i:04}" + "x" * 200 for i in range(1000)]  # more than a page of a list
    for name in (*names, "runs", "ru"):
        client.create(name, (1,), "|u1")
    done = caidctl("--json", "unlink", "--prefix=run/", socket=socket)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"unlinked": names}
    done = caidctl("unlink", "--prefix=run/", socket=socket)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 names removed\n", ""), "none is no failure"
    assert [a["name"] for a in read_json(socket, "list")["arrays"]] == ["ru", "runs"]
    done = caidctl("unlink", "--prefix=ru", "--socket", str(socket))
    assert (done.returncode, done.stdout) == (0, "2 names removed\n")
    client.create("runs", (1,))
    done = caidctl("--json", "unlink", "-f", "missing", "runs", socket=socket)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"unlinked": ["runs"]})
    assert caidctl("unlink", "-f", "n" * 256, socket=socket).returncode == 2


# ---- refusals and mistakes ----

@pytest.mark.parametrize("args", [
    ("show", "missing"), ("unlink", "missing"), ("list", "--pool=missing"),
    ("show", "--pool=missing"), ("show", "x", "--pool=missing"), ("unlink", "n" * 256),
    ("map", "--pool=missing"), ("map", "--pool=missing", "--json"),
    ("timelines", "--pool=missing"), ("show", "tab\t"), ("--json", "show", "missing"),
    ("--json", "list", "--pool=missing"), ("unlink", "--prefix=x", "--pool=missing"),
])
def test_refused(socket, args):
    done = caidctl(*args, socket=socket)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.match(r"caidctl: [^\x00-\x09\x0b-\x1f]+: .+\n\Z", done.stderr), done.stderr


@pytest.mark.parametrize("args", [
    ("nonsense",), ("--nonsense",), ("list", "--count=3"), ("ping", "-c", "0"), ("ping", "-c", "x"),
    ("ping", "-c", "1000001"), ("unlink",), ("show", "a", "b"), ("show", "--unnamed", "a"),
    ("list", "--unnamed"), ("info", "--device=0"), ("flush", "0"), ("--device",), ("drain", "--force", "--undo"), ("drain", "x"),
    ("flush", "--force"), ("monitor", "x"), ("monitor", "--all"), ("list", "--uid=0"), ("flush", "--method=x"),
    ("status", "extra"), ("doctor", "extra"), ("timelines", "x"), ("doctor", "--all"),
    ("list", "--all", "--pool=x"), ("--socket",), ("unlink", "--prefix=x", "a"),
    ("unlink", "--prefix="), ("list", "--prefix=x"), ("list", "-f"), ("map", "--json", "--svg=x"), ("show", "--svg=x"),
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
        assert done.stderr == f"caidctl: {path}: no such socket; start one by caid --foreground, or in Python by caid.LocalDaemon()\n"
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


def test_so_is_a_limit_of_files(tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as out:
        done = subprocess.run(["prlimit", "--fsize=0", str(CAIDCTL), "version"], stdout=out,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "caidctl: stdout: File too large\n"


# ---- completion ----

TOOLS = pathlib.Path(__file__).parents[2] / "client" / "tools"
SOURCE = (TOOLS / "caidctl.c").read_text("utf-8")
VERBS = re.findall(r'^    {"(\w+)", verb_', SOURCE, re.M)
PYTHONS = re.findall(r'"(\w+)"', re.search(r"verbs\[\] = {(.*)}", (TOOLS / "verbs_package.c").read_text("utf-8"))[1])
VERBS = [*VERBS[: VERBS.index("flush")], *PYTHONS, *VERBS[VERBS.index("flush") :]]
OPTIONS = ["--" + name for name in re.findall(r'{"([a-z-]+)", (?:no|required)_argument', SOURCE)]


def test_manuals_have_all():
    root = TOOLS.parents[1]
    caidctl_1, libcaid_3 = ((root / f"docs/man/{page}.scd").read_text("utf-8") for page in ("caidctl.1", "libcaid.3"))
    functions = re.findall(r"\bcaid_\w+", (root / "client/caid.syms").read_text("utf-8"))
    assert [word for word in VERBS + OPTIONS if f"*{word}" not in caidctl_1] == []
    assert [name for name in functions if f"*{name}*()" not in libcaid_3] == []


@pytest.fixture
def names(socket, client):
    """Two arrays; the environment of a shell."""
    client.create("weights/a", (1,))
    client.create("with space", (1,))
    return {**os.environ, "PATH": f"{CAIDCTL.parent}:{os.environ['PATH']}", "CAID_SOCKET": str(socket)}


def complete(*words, env=None):
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _caidctl; ' \
             'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", TOOLS / "caidctl.bash", "caidctl", *words],
                          capture_output=True, text=True, timeout=60, env=env, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_completion(names):
    env = names
    assert complete("", env=env) == VERBS
    assert sorted(option.rstrip("=") for option in complete("-", env=env)) == sorted(OPTIONS)
    assert complete("--sv", env=env) == ["--svg="]
    assert complete("s", env=env) == ["status", "show", "stat", "save"]
    assert complete("load", "-", env=env)[:2] == ["--name=", "--pool="]
    assert complete("--js", env=env) == ["--json"]
    assert complete("f", env=env) == ["flush"]
    assert complete("d", env=env) == ["doctor", "drain"]
    assert complete("t", env=env) == ["top", "timelines"]
    assert complete("flush", "--device", "=", "", env=env) == ["0"]
    assert complete("show", "--unn", env=env) == ["--unnamed"]
    assert complete("show", "w", env=env) == ["weights/a", "with\\ space"]
    assert complete("--json", "unlink", "weights", env=env) == ["weights/a"]
    assert complete("unlink", "--prefix", "=", "we", env=env) == ["weights/a"]
    assert complete("info", "", env=env) == ["0"]
    assert complete("kick", "", env=env) == [str(os.getpid())]
    assert complete("list", "--pool", "=", "", env=env) == [f"uid:{os.getuid()}"]
    assert complete("--socket", "=", "/nonexistent", "show", "", env=env) == [""]
    assert complete("ping", "--count", "=", "", env=env) == [""]


def test_completion_by_fish(names):
    def fish(line):
        command = f"source {TOOLS / 'caidctl.fish'}; complete -C 'caidctl {line}'"
        done = subprocess.run(["fish", "--no-config", "-c", command], capture_output=True, text=True, timeout=60,
                              env=names, check=True)
        assert done.stderr == ""
        return sorted(offer.split("\t")[0] for offer in done.stdout.splitlines())

    assert fish("") == sorted(VERBS)
    assert fish("--") == sorted(OPTIONS)
    assert fish("show ") == ["weights/a", "with space"]
    assert fish("unlink --prefix=we") == ["--prefix=weights/a"]
    assert fish("flush --device ") == ["0"]
    assert fish("kick ") == [str(os.getpid())]
    assert fish("--socket /nonexistent show ") == []


# An interactive shell on a terminal: each line of what it offers, and what the key has made of the line.
ZSHRC = """
PROMPT=; zstyle ':completion:*' list-prompt ''; fpath=($ZDOTDIR $fpath)
autoload -Uz compinit; compinit -u -D; stty cols 200 rows 100
show-line() { print -r -- "line<$BUFFER>"; exit }
zle -N show-line; bindkey '^X' show-line
"""


def test_completion_by_zsh(names, tmp_path):
    (tmp_path / "_caidctl").symlink_to(TOOLS / "caidctl.zsh")
    (tmp_path / ".zshrc").write_text(ZSHRC)

    def zsh(line):
        parent, child = os.openpty()
        os.write(parent, f"caidctl {line}\t\x18".encode())
        with subprocess.Popen(["zsh", "-d", "-i"], stdin=child, stdout=child, stderr=child, start_new_session=True,
                              env={**names, "ZDOTDIR": str(tmp_path), "TERM": "dumb"}):
            os.close(child)
            shown = b"".join(iter(lambda: read_terminal(parent), b""))
        os.close(parent)
        return re.sub(r"\x1b\[\S*", "", shown.decode())

    assert re.findall(r"^(\w+) +-- ", zsh(""), re.M) == sorted(VERBS)
    assert re.findall(r"^(--[a-z-]+) .*-- ", zsh("--"), re.M) == sorted(OPTIONS)
    assert "line<caidctl show weights/a >" in zsh("show we")
    assert "line<caidctl show with\\ space >" in zsh("show wi")
    assert "line<caidctl unlink --prefix=weights/a >" in zsh("unlink --prefix=we")
    assert "line<caidctl flush --device 0 >" in zsh("flush --device ")
    assert f"line<caidctl kick {os.getpid()} >" in zsh("kick ")
    assert "line<caidctl --socket=/nonexistent show we>" in zsh("--socket=/nonexistent show we")


def read_terminal(fd):
    """Empty when nobody has its other end open."""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
