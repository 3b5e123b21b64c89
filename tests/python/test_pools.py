# SPDX-License-Identifier: Apache-2.0
"""Pools that the administrator defines: permissions of another user, quotas, limits."""

import errno
import os
import pathlib
import pwd
import subprocess
import sys

import pytest
from conftest import Child

import caid

NOBODY = 65534

CONFIG = f"""
[limits]
names = 20

[pool "readable"]
owner = {pwd.getpwuid(os.getuid()).pw_name}
mode = 0644

[pool "private"]
owner = {pwd.getpwuid(os.getuid()).pw_name}
mode = 0600

[pool "shared"]
mode = 0666

[pool "small"]
owner = {pwd.getpwuid(os.getuid()).pw_name}
quota = 4M
"""


@pytest.fixture(scope="module")
def pools():
    """(daemon, client) of a daemon with pools, that other users may reach."""
    with caid.LocalDaemon(config=CONFIG) as d, d.connect() as c:
        pathlib.Path(d.address).parent.chmod(0o711)
        for pool in ("readable", "private", "shared"):
            with c.create("a", 4, "|u1", pool=pool) as a:
                a.copy_from_host(b"data")
        yield d, c


def as_nobody(daemon, code):
    """Runs code as another user, with a client `c`."""
    if os.getuid() != 0:
        pytest.skip("only root runs processes of another user")
    other = {"cwd": "/", "user": NOBODY, "group": NOBODY, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, **other)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the interpreter is not for other users to run")
    child = Child(f"with caid.connect() as c:\n    {code}", daemon.env, **other)
    status, errors = child.finish()
    assert status == 0, errors


def test_each_user_has_a_pool(pools):
    daemon, c = pools
    as_nobody(daemon, "pass")
    with c.create("mine", 4):
        as_nobody(
            daemon,
            f"""
    assert c.status().pool == "uid:{NOBODY}"
    c.create("mine", 8).close()
    assert [e.nbytes for e in c.list()] == [64]
    c.unlink("mine")
""",
        )
    assert [(e.nbytes, e.uid) for e in c.list()] == [(32, os.getuid())]
    c.unlink("mine")


def test_who_may_read(pools):
    as_nobody(
        pools[0],
        """
    with c.open("a", pool="readable") as a:
        assert bytes(a.copy_to_host(bytearray(4))) == b"data" and a.readonly
    assert [p.name for p in c.pools() if not p.name.startswith("uid:")] == ["readable", "shared"]
    refused = [
        lambda: c.open("a", "rw", pool="readable"),
        lambda: c.create("b", 4, pool="readable"),
        lambda: c.empty(4, pool="readable"),
        lambda: c.unlink("a", pool="readable"),
    ]
    for call in refused:
        try:
            call()
        except caid.AccessError as e:
            assert isinstance(e, PermissionError) and '"readable"' in str(e), e
        else:
            sys.exit("not refused")
""",
    )


def test_absent_and_forbidden_are_one_answer(pools):
    as_nobody(
        pools[0],
        """
    def answer(call):
        try:
            call()
        except caid.Error as e:
            return type(e), e.errno, str(e)
        sys.exit("not refused")

    calls = [
        lambda pool: c.open("a", pool=pool),
        lambda pool: c.open("a", "rw", pool=pool),
        lambda pool: c.show("a", pool=pool),
        lambda pool: c.unlink("a", pool=pool),
        lambda pool: c.create("a", 4, pool=pool),
        lambda pool: c.list(pool=pool),
    ]
    for call in calls:
        forbidden, absent = answer(lambda: call("private")), answer(lambda: call("absent"))
        assert forbidden[0] is caid.NotFoundError, forbidden
        assert (*forbidden[:2], forbidden[2].replace("private", "absent")) == absent
    assert "private" not in [e.pool for e in c.list(all=True)]
""",
    )


def test_who_may_write(pools):
    daemon, c = pools
    as_nobody(
        daemon,
        """
    with c.open("a", "rw", pool="shared") as a:
        a.copy_from_host(b"DATA")
    c.create("theirs", 4, pool="shared").close()
""",
    )
    with c.open("a", pool="shared") as a:
        assert bytes(a.copy_to_host(bytearray(4))) == b"DATA"
    assert c.show("theirs", pool="shared").entry.uid == NOBODY
    c.unlink("theirs", pool="shared")


def test_quota(pools):
    _, c = pools
    with c.empty(3 << 20, "|u1", pool="small"):
        with pytest.raises(caid.QuotaError) as caught:
            c.empty(3 << 20, "|u1", pool="small")
        e = caught.value
        assert (e.code, e.errno) == (caid.ErrorCode.QUOTA, errno.EDQUOT)
        assert '"small"' in str(e) and "4 MiB" in str(e)
    c.flush()
    (pool,) = [p for p in c.pools() if p.name == "small"]
    assert (pool.quota, pool.arrays, pool.used) == (4 << 20, 0, 0)


def test_a_limit_on_names(pools):
    _, c = pools
    room = 20 - sum(entry.uid == os.getuid() for entry in c.list(all=True))
    made = []
    with pytest.raises(caid.LimitError) as caught:
        for i in range(100):
            c.create(f"n{i}", 0).close()
            made.append(f"n{i}")
    assert caught.value.errno == errno.EMFILE and "20" in str(caught.value)
    assert len(made) == room
    for name in made:
        c.unlink(name)
    c.create("again", 0).close()
    c.unlink("again")
