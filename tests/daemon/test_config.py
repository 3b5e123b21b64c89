# SPDX-License-Identifier: Apache-2.0
"""caid.conf(5): what is in force, and what is said of mistakes."""

import os
import pathlib
import re

import pytest
from conftest import run_caid

SHIPPED = pathlib.Path(__file__).parents[2] / "daemon" / "caid.conf"
DEFAULTS = """\
[daemon]
socket =
socket_mode = 0666
driver = auto
log_level = info
hello_timeout = 2s
machine_id =
[limits]
connections = 4096
arrays = 2000000
names = 1000000
leases = 1000000
watches = 4096
jobs = 4096
brackets = 8192
pages = 4096
bytes = 0
pinned_bytes = 0
host_bytes = 1G
total_host_bytes = 2560M
[memory]
block_size = 32M
shared_max = 4M
blocks = 65536
reserve = 256M
max_pending_count = 10
max_pending_ratio = 0.2
max_pending_age = 2s
rdma = auto
ticket_ttl = 600s
ticket_age = none
[handoff]
mode = auto
spin_us = 1000
[user-pools]
mode = 0600
quota = 0
legacy = no
"""


@pytest.fixture
def check(tmp_path):
    """Checks a file with that text; returns status, stdout, stderr."""
    path = tmp_path / "c.conf"

    def check_text(text):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        env = {"CAID_CUDA_DRIVER": "", **check_text.env}
        r = run_caid("--check-config", f"--config={path}", **env)
        if r.returncode:  # the start says the same
            started = run_caid("--foreground", f"--config={path}", f"--socket={tmp_path}/s", **env)
            assert (started.returncode, started.stderr) == (1, r.stderr)
        return r.returncode, r.stdout, r.stderr.replace(str(path), "FILE")

    check_text.env = {}
    check_text.path = path
    return check_text


def test_defaults(check):
    assert check("") == (0, DEFAULTS, "")


def test_shipped_unit_has_memory_for_what_may_be_charged():
    """Both journals and the core's own memory take up to one and a half times that."""
    unit = (SHIPPED.parents[1] / "systemd" / "caid.service.in").read_text()
    memory = int(re.search(r"^MemoryMax=(\d+)G$", unit, re.M)[1]) << 10
    charged = int(re.search(r"^total_host_bytes = (\d+)M$", DEFAULTS, re.M)[1])
    assert charged * 3 // 2 + 256 <= memory


def test_shipped_file_changes_nothing(check):
    assert check(SHIPPED.read_bytes()) == (0, DEFAULTS, "")


def test_shipped_file_shows_every_key_with_its_default(check):
    """Without the comment signs before keys and headers the same settings are in force, and each
    key is there."""
    text = re.sub(r"^#(?=\[|\w+ =)", "", SHIPPED.read_text(), flags=re.M)
    pool = '[pool "example"]\nowner = 0\ngroup = 0\nmode = 0660\nquota = 0\nlegacy = no\n'
    assert check(text) == (0, DEFAULTS + pool, "")
    for line in (DEFAULTS + pool).splitlines():
        key = line.split(" =")[0]
        assert re.search(rf"^{re.escape(key)}\b", text, re.M) or key in text.splitlines()


def test_values(check):
    text = """
    ; all blanks around keys and values are cut
    [daemon]
      socket=/run/x.sock
    socket_mode = 0600
    driver = /opt/lib/libcuda.so.1
    log_level = debug
    hello_timeout = 1500ms
    machine_id = 0123456789abcdef0123456789abcdef
    [limits]
    connections = 1
    names = 4294967295
    brackets = 10
    pages = 11
    bytes = 3G
    pinned_bytes = 2G
    [memory]
    block_size = 2M
    shared_max = 0
    blocks = 7
    reserve = 0
    max_pending_count = 0
    max_pending_ratio = 1
    max_pending_age = 60m
    rdma = no
    ticket_ttl = 1s
    ticket_age = 30m
    [handoff]
    mode = events
    spin_us = 0
    [user-pools]
    mode = 0644
    quota = 512K
    legacy = yes
    [pool "a"]
    owner = 12
    group = 34
    quota = 1T
    legacy = yes
    [pool "b.c-d_9"]
    owner = root
    """
    status, out, err = check(text)
    assert (status, err) == (0, "")
    for line in (
        "socket = /run/x.sock",
        "socket_mode = 0600",
        "driver = /opt/lib/libcuda.so.1",
        "log_level = debug",
        "hello_timeout = 1500ms",
        "machine_id = 0123456789abcdef0123456789abcdef",
        "connections = 1",
        "names = 4294967295",
        "brackets = 10\npages = 11\n",
        "bytes = 3G",
        "pinned_bytes = 2G",
        "block_size = 2M\nshared_max = 0\nblocks = 7\nreserve = 0\n",
        "max_pending_count = 0\nmax_pending_ratio = 1\nmax_pending_age = 3600s\nrdma = no\nticket_ttl = 1s\nticket_age = 1800s\n",
        "[handoff]\nmode = events\nspin_us = 0\n[user-pools]\n",
        "mode = 0644",
        "quota = 512K",
        "legacy = yes",
        '[pool "a"]\nowner = 12\ngroup = 34\nmode = 0660\nquota = 1T\nlegacy = yes\n',
        '[pool "b.c-d_9"]\nowner = 0\ngroup = 0\nmode = 0660\nquota = 0\nlegacy = no\n',
    ):
        assert line in out


@pytest.mark.parametrize(
    "section, line",
    [
        ("daemon", "socket_mode = 0999"),
        ("daemon", "socket_mode = 1777"),
        ("daemon", "socket_mode ="),
        ("daemon", "socket = /" + "x" * 107),
        ("daemon", "driver = nvidia"),
        ("daemon", "log_level = loud"),
        ("daemon", "hello_timeout = 2"),
        ("daemon", "hello_timeout = 0s"),
        ("daemon", "hello_timeout = 61m"),
        ("daemon", "hello_timeout = 2 s"),
        ("daemon", "machine_id = 0123456789abcdef"),
        ("daemon", "machine_id = " + 32 * "A"),
        ("daemon", "hello_timeout = 99999999999999999999s"),
        ("limits", "connections = 0"),
        ("limits", "connections = -1"),
        ("limits", "connections = 4294967296"),
        ("limits", "connections = 4096 # many"),
        ("limits", "jobs = 0x10"),
        ("limits", "bytes = 1X"),
        ("limits", "bytes = 1KB"),
        ("limits", "bytes = 18446744073709551616"),
        ("limits", "bytes = 16777216T"),
        ("limits", "bytes = G"),
        ("memory", "max_pending_count = -1"),
        ("memory", "max_pending_count = ten"),
        ("memory", "max_pending_ratio = 1.01"),
        ("memory", "max_pending_ratio = -0.1"),
        ("memory", "max_pending_ratio = 1e-3"),
        ("memory", "max_pending_ratio = nan"),
        ("memory", "max_pending_ratio = 0x1"),
        ("memory", "max_pending_ratio = 0.1.1"),
        ("memory", "max_pending_ratio = ."),
        ("memory", "max_pending_ratio ="),
        ("memory", "max_pending_age = 0s"),
        ("memory", "max_pending_age = never"),
        ("memory", "ticket_ttl = none"),
        ("memory", "ticket_age = never"),
        ("memory", "blocks = 0"),
        ("limits", "brackets = 0"),
        ("limits", "pages = 0"),
        ("handoff", "mode = stream"),
        ("handoff", "mode = Memops"),
        ("handoff", "mode ="),
        ("user-pools", "mode = 0700"),
        ("user-pools", "mode = rw-------"),
        ('pool "p"', "owner = nobody-by-that-name"),
        ('pool "p"', "group = -1"),
        ('pool "p"', "owner = 4294967295"),
        ('pool "p"', "mode = 02660"),
        ('pool "p"', "quota = lots"),
        ('pool "p"', "legacy = Yes"),
    ],
)
def test_bad_value(check, section, line):
    status, out, err = check(f"\n[{section}]\n{line}\n")
    assert (status, out) == (1, "")
    assert err.startswith(f"caid: error: FILE:3: {line.split(' =')[0]} = ")


@pytest.mark.parametrize(
    "lines, key",
    [
        (["block_size = 0", "shared_max = 0"], "block_size"),
        (["block_size = 3M", "shared_max = 1M"], "block_size"),
        (["block_size = 513G"], "block_size"),
        (["block_size = 16M", "shared_max = 17M"], "shared_max"),
        (["shared_max = 33M"], "shared_max"),
    ],
)
def test_values_that_do_not_fit(check, lines, key):
    status, out, err = check("\n".join(["[memory]", *lines]))
    assert (status, out) == (1, "")
    assert err.startswith(f"caid: error: [memory] {key}: ")


def test_what_a_bad_value_should_have_been_is_not_known(check):
    status, _, err = check("[memory]\nblock_size = 64X\nshared_max = 64M\n[user-pools]\nmode = 0600\n")
    assert status == 1
    assert len(err.splitlines()) == 1


COUNT, RATIO = "CAID_MAX_PENDING_DEALLOCS_COUNT", "CAID_MAX_PENDING_DEALLOCS_RATIO"


def test_environment_wins(check):
    check.env = {COUNT: "0", RATIO: "0.75"}
    status, out, err = check("[memory]\nmax_pending_count = 5\nmax_pending_ratio = 0.5\n")
    assert (status, err) == (0, "")
    assert "max_pending_count = 0\nmax_pending_ratio = 0.75\n" in out
    check.env = {COUNT: "", RATIO: ""}  # a script's unset variable
    assert check("") == (0, DEFAULTS, "")


@pytest.mark.parametrize(
    "variable, value",
    [
        (COUNT, "-1"),
        (COUNT, "many"),
        (RATIO, "2"),
        (RATIO, "inf"),
        ("CAID_SOCKET", "/" + "x" * 107),
        ("CAID_CUDA_DRIVER", "nvidia"),
    ],
)
def test_bad_environment(check, variable, value):
    check.env = {variable: value}
    status, out, err = check("")
    assert (status, out) == (1, "")
    assert err.startswith(f"caid: error: {variable}={value}: not ")


@pytest.mark.parametrize(
    "text, line",
    [
        ("[daemon\n", 1),
        ("[]\n", 1),
        ('["x"]\n', 1),
        ('[pool "x]\n', 1),
        ('[pool "x"y]\n', 1),
        ("[daemon]\nsocket\n", 2),
        ("[daemon]\n= x\n", 2),
        ("socket = x\n", 1),
        ("[daemon]\nsocket = a\0b\n", 2),
        ("[pool]\n", 1),
        ('[pool ""]\n', 1),
        ('[pool "a b"]\n', 1),
        ('[pool "uid:7"]\n', 1),
        ('[pool "' + "x" * 65 + '"]\n', 1),
    ],
)
def test_bad_syntax(check, text, line):
    status, out, err = check(text)
    assert (status, out) == (1, "")
    assert err.startswith(f"caid: error: FILE:{line}: ")


def test_every_mistake_is_told_at_once(check):
    check.env = {COUNT: "x"}
    text = "[daemon]\nsocket_mode = x\n[limits]\njobs = 0\n[memory]\nshared_max = 1G\n[oops\nfoo = 1\n"
    status, _, err = check(text)
    assert status == 1
    said = [line.split(": ")[2] for line in err.splitlines()]
    assert said == ["FILE:2", "FILE:4", "FILE:7", "FILE:8", f"{COUNT}=x", "[memory] shared_max"]


def test_unknown_keys_and_sections_are_warned_of(check):
    text = '[daemon]\nsokcet = x\n[metrics]\nport = 1\n[daemon "x"]\nsocket = y\n[pool "p"]\nsize = 3\n'
    status, out, err = check(text)
    assert status == 0
    assert out.startswith(DEFAULTS)
    warned = [line.split(": ")[1:3] for line in err.splitlines()]
    assert warned == [["warning", f"FILE:{n}"] for n in (1 + 1, 3, 5, 8)]


def test_file_that_is_missing():
    r = run_caid("--check-config", "--config=/nonexistent/caid.conf")
    assert r.returncode == 1
    assert "/nonexistent/caid.conf: No such file" in r.stderr


def test_file_that_is_a_folder(tmp_path):
    r = run_caid("--check-config", f"--config={tmp_path}")
    assert r.returncode == 1
    assert str(tmp_path) in r.stderr


def test_drop_ins_in_byte_order(check):
    folder = pathlib.Path(f"{check.path}.d")
    folder.mkdir()
    (folder / "a.conf").write_text('[limits]\njobs = 3\n[pool "p"]\nquota = 1M\n')
    (folder / "Z.conf").write_text("[limits]\njobs = 2\nwatches = 2\n")  # 'Z' < 'a'
    (folder / "b.conf.bak").write_text("[limits]\njobs = 4\n")
    (folder / ".c.conf").write_text("[limits]\njobs = 5\n")
    status, out, err = check('[limits]\njobs = 1\nnames = 1\n[pool "p"]\nowner = 5\nquota = 9\n')
    assert (status, err) == (0, "")
    assert "names = 1\n" in out
    assert "watches = 2\njobs = 3\n" in out
    assert '[pool "p"]\nowner = 5\ngroup = 0\nmode = 0660\nquota = 1M\n' in out


def test_bad_drop_in(check):
    folder = pathlib.Path(f"{check.path}.d")
    folder.mkdir()
    (folder / "x.conf").write_text("[limits]\njobs = 0\n")
    status, _, err = check("")
    assert status == 1
    assert "FILE.d/x.conf:2: jobs = 0: " in err


@pytest.mark.skipif(os.path.exists("/etc/caid/caid.conf"), reason="this machine has settings")
def test_default_file_may_be_missing():
    assert run_caid("--check-config", CAID_CUDA_DRIVER="").stdout == DEFAULTS


def test_bad_settings_refuse_to_start(tmp_path):
    path = tmp_path / "c.conf"
    path.write_text("[limits]\njobs = 0\n")
    r = run_caid("--foreground", f"--config={path}", f"--socket={tmp_path}/s")
    assert r.returncode == 1
    assert list(tmp_path.iterdir()) == [path]
