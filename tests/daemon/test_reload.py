# SPDX-License-Identifier: Apache-2.0
"""Settings that are read anew on SIGHUP: all of them or none, and nobody loses what it has."""

import itertools
import os
import signal
import time

import pytest
import raw
from conftest import AT_ONCE, MIB, fork, needs_root, public_daemon, refused, run_caid, used, wait_for

NOT_FOUND, PERMISSION, QUOTA, LIMIT = 6, 8, 9, 10  # proto/errors.def
ALICE, TEAM = 60001, 60009
DONE, FAILED = "the settings are read anew", "the settings stay as they were"


def reload(d, text):
    """What is logged of it, by the line that says how it has ended."""
    before = len(d.text())
    (d.log.parent / "caid.conf").write_text(text)
    d.process.send_signal(signal.SIGHUP)
    wait_for(lambda: DONE in d.text()[before:] or FAILED in d.text()[before:], "the reload")
    return d.text()[before:]


def pool(name, **settings):
    lines = [f"{key} = {value}" for key, value in {"mode": "0666", **settings}.items()]
    return "\n".join([f'[pool "{name}"]', *lines, ""])


def pools(c):
    return {p["name"]: p for p in c.call("pools")["pools"] if not p["name"].startswith("uid:")}


def create(c, pool, name=None, mib=1):
    named = {"name": name} if name else {}
    return c.call("create", pool=pool, typestr="|u1", shape=[mib * MIB], exclusive=True, **named)


def test_a_new_pool_is_there_at_once(start):
    d = start()
    with d.client() as c:
        refused(NOT_FOUND, c.call, "watch", name="x", pool="p", seen=0)
        before = c.call("status")["pools"]
        said = reload(d, pool("p", quota="8M", owner=ALICE))
        assert '[pool "p"] is new' in said
        assert "error" not in said
        assert pools(c)["p"]["quota"] == 8 * MIB
        assert pools(c)["p"]["uid"] == ALICE
        assert c.call("status")["pools"] == before + 1
        create(c, "p", "x")
        assert c.call("watch", name="x", pool="p", seen=0) == {"generation": 1}


def test_a_pool_that_has_arrays_stays(start):
    d = start(config=AT_ONCE + pool("p", quota="8M"))
    with d.client() as c:
        create(c, "p", "x")
        for _ in range(2):  # also the next time
            assert '[pool "p"] is not in the settings any more, and stays: it is in use' in reload(d, AT_ONCE)
            assert pools(c)["p"]["quota"] == 8 * MIB
        c.call("unlink", name="x", pool="p")
        with d.client() as other:  # which holds one that has no name
            create(other, "p")
            assert "and stays: it is in use" in reload(d, AT_ONCE)


def test_a_pool_without_arrays_goes(start):
    """Its memory follows; who watches a name there is told; a pool of that name begins anew."""
    kept = "[memory]\nmax_pending_age = 60m\n"
    d = start(config=kept + pool("p"))
    with d.client() as c, d.client() as watcher:
        lease = create(c, "p", "x")["arrays"][0]["lease"]
        generation = c.call("open", names=["x"], pool="p", mode="r")["arrays"][0]["generation"]
        c.call("unlink", name="x", pool="p")
        watch = watcher.request("watch", name="y", pool="p", seen=0)
        c.notify("close", leases=[lease, lease + 1], forget=[])
        assert c.call("ping") == {}
        assert used(d) > 0  # in the queue, or in reserve
        assert '[pool "p"] is removed' in reload(d, kept)
        refused(NOT_FOUND, watcher.response, watch)
        assert pools(c) == {}
        refused(NOT_FOUND, c.call, "list", pool="p")
        refused(NOT_FOUND, create, c, "p")
        reload(d, kept + pool("p"))
        create(c, "p", "x")
        assert c.call("open", names=["x"], pool="p", mode="r")["arrays"][0]["generation"] > generation


def test_memory_of_a_pool_that_goes(start):
    config = "[memory]\nmax_pending_age = 60m\nmax_pending_count = 0\n"
    d = start(config=config + pool("p"))
    with d.client() as c:
        c.notify("close", leases=[create(c, "p")["arrays"][0]["lease"]], forget=[])
        assert c.call("ping") == {}
        assert used(d) > 0
        reload(d, config)
        wait_for(lambda: used(d) == 0, "the driver has it back")


def test_a_quota_that_is_lowered_frees_nothing(start):
    d = start(config=AT_ONCE + pool("p"))
    with d.client() as c:
        leases = [create(c, "p", mib=4)["arrays"][0]["lease"] for _ in range(3)]
        reload(d, AT_ONCE + pool("p", quota="8M"))
        assert used(d) == pools(c)["p"]["used"] == 12 * MIB
        refused(QUOTA, create, c, "p")
        c.notify("close", leases=leases[:2], forget=[])
        wait_for(lambda: pools(c)["p"]["used"] == 4 * MIB, "less than the quota")
        create(c, "p", mib=4)
        refused(QUOTA, create, c, "p")


def test_limits_and_own_pools(start):
    d = start(config=AT_ONCE)
    own = f"uid:{os.getuid()}"
    with d.client() as c:
        for name in "ab":
            create(c, own, name)
        reload(d, AT_ONCE + "[limits]\nnames = 1\nleases = 3\n[user-pools]\nmode = 0644\nquota = 16M\n")
        refused(LIMIT, create, c, own, "c")
        assert [e["name"] for e in c.call("list", pool=own)["entries"]] == ["a", "b"]
        mine = next(p for p in c.call("pools")["pools"] if p["name"] == own)
        assert (mine["mode"], mine["quota"]) == (0o644, 16 * MIB)
        create(c, own)
        refused(LIMIT, create, c, own)


def test_connections_have_a_limit_then(start):
    d = start()
    with d.client(), d.client():
        reload(d, "[limits]\nconnections = 2\n")
        refused(LIMIT, d.client)
        reload(d, "[limits]\nconnections = 4294967295\n")
        for c in [d.client() for _ in range(70)]:
            c.close()


def connect(d, uid, gid):
    """What the daemon is told of the peer is fixed at connect(2)."""
    os.setegid(gid)
    os.seteuid(uid)
    try:
        return d.client()
    finally:
        os.seteuid(0)
        os.setegid(0)


@needs_root
def test_permission_is_asked_at_the_next_open():
    def text(mode):
        return AT_ONCE + pool("p", mode=mode, group=TEAM)

    with public_daemon(text("0660")) as d, d.client() as root, connect(d, ALICE, TEAM) as c:
        create(root, "p", "x")
        opened = c.call("open", names=["x"], pool="p", mode="rw")["arrays"][0]
        reload(d, text("0640"))
        refused(PERMISSION, c.call, "open", names=["x"], pool="p", mode="rw")
        c.call("open", names=["x"], pool="p", mode="r")
        reload(d, text("0600"))
        refused(NOT_FOUND, c.call, "open", names=["x"], pool="p", mode="r")
        c.call("begin", bracket=1, thread=1, write=[opened["lease"]])


@pytest.mark.parametrize(
    "section, key, now, then",
    [
        ("daemon", "socket", "(none)", "/run/x.sock"),
        ("daemon", "socket_mode", "0666", "0600"),
        ("daemon", "driver", "soft", "/opt/libcuda.so"),
        ("daemon", "machine_id", "(none)", "0123456789abcdef" * 2),
        ("handoff", "mode", "auto", "host"),
    ],
)
def test_what_cannot_change_says_so(start, section, key, now, then):
    d = start(CAID_CUDA_DRIVER="", config="[daemon]\ndriver = soft\n")
    text = "[daemon]\ndriver = soft\n" + pool("p") + f"[{section}]\n{key} = {then}\n"
    for _ in range(2):  # it is what is in force that counts
        said = reload(d, text)
        assert f"[{section}] {key} = {now} is kept: {then} needs a restart" in said
        assert said.count("needs a restart") == 1
    with d.client() as c:
        assert "p" in pools(c)
    assert "needs a restart" not in reload(d, "[daemon]\ndriver = soft\n")


BAD = '[limits]\nnames = 0\n[oops\n[daemon]\ndriver = foo\n[memory]\nblock_size = 3M\nshared_max = 1G\n' + pool("p")


def test_a_mistake_changes_nothing(start, tmp_path):
    d = start(config=pool("q", quota="8M"))
    said = reload(d, BAD)
    with d.client() as c:
        assert list(pools(c)) == ["q"]
    errors = [line for line in said.splitlines() if line.startswith("caid: error: ")]
    checked = run_caid("--check-config", f"--config={tmp_path}/caid.conf")
    assert checked.returncode == 1
    assert errors[:-1] == checked.stderr.splitlines()
    assert len(errors) == 6
    assert FAILED in errors[-1]


def make_unreadable(path, how):
    """Of the sparse file there are 8 GiB, all on one line."""
    path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "sparse":
        path.touch()
        os.truncate(path, 8 << 30)
    elif how != "absent":
        path.symlink_to(how)


UNREADABLE = "folder", "fifo", "sparse", "/nonexistent", "/dev/zero", "/proc/self/pagemap"


@pytest.mark.parametrize(
    "name, how",
    [("caid.conf", "absent"), *itertools.product(["caid.conf", "caid.conf.d/x.conf"], UNREADABLE)],
)
def test_a_file_that_cannot_be_read_changes_nothing(start, tmp_path, name, how):
    """Nor does it hold up a reload, a stop or a start."""
    d = start(config=pool("q"))
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make_unreadable(path, how)
    d.process.send_signal(signal.SIGHUP)
    wait_for(lambda: FAILED in d.text(), "the reload")
    assert f"error: {path}: " in d.text()
    with d.client() as c:
        assert list(pools(c)) == ["q"]
    checked = run_caid("--check-config", f"--config={tmp_path}/caid.conf")
    assert checked.returncode == 1 and f"error: {path}: " in checked.stderr
    assert run_caid("--foreground", f"--config={tmp_path}/caid.conf").returncode == 1
    if how == "folder":
        path.rmdir()
    path.unlink(missing_ok=True)
    assert "is new" in reload(d, pool("q") + pool("r"))


def test_the_null_device_is_an_empty_file(start, tmp_path):
    d = start(config=pool("q"))
    (tmp_path / "caid.conf.d").mkdir()
    (tmp_path / "caid.conf.d" / "x.conf").symlink_to(os.devnull)
    assert "is new" in reload(d, pool("q") + pool("r"))


@pytest.mark.parametrize("level, follows", [("", True), ("info", False)])
def test_log_level(start, level, follows):
    d = start(level=level)
    reload(d, "[daemon]\nlog_level = debug\n")
    with d.client() as c:
        c.call("ping")
    wait_for(lambda: "debug: " in d.text() or not follows, "a line")
    assert ("debug: " in d.text()) == follows


def work(d, pool_name, until):
    """Creates, opens and gives up, as long as the pool is there: nothing else may go wrong."""
    with d.client() as c:
        while time.monotonic() < until:
            name = f"{os.getpid()}"
            try:
                made = create(c, pool_name, name)["arrays"][0]["lease"]
                opened = c.call("open", names=[name], pool=pool_name, mode="r")["arrays"][0]["lease"]
                c.call("unlink", name=name, pool=pool_name)
                c.notify("close", leases=[made, opened], forget=[])
            except raw.Refused as e:
                if e.code not in (NOT_FOUND, QUOTA):
                    raise


def test_a_hundred_reloads_under_work(start):
    d = start(config=AT_ONCE + pool("a") + pool("b"))
    until = time.monotonic() + 3
    workers = [fork.Process(target=work, args=(d, name, until)) for name in ("a", "b", "b")]
    for worker in workers:
        worker.start()
    for i in range(100):
        quota = f"{i % 3 * 2}M"
        reload(d, AT_ONCE + pool("a", quota=quota) + (pool("b", quota=quota) if i % 2 else ""))
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    reload(d, AT_ONCE)
    wait_for(lambda: used(d) == 0, "the end of all memory")
    with d.client() as c:
        assert pools(c) == {}
