# SPDX-License-Identifier: Apache-2.0
"""Loads and saves that fail or are interrupted, wherever: the name is as it was, and nothing of them is left, at the
daemon and in this process."""

import contextlib
import errno
import os
import shutil
import signal
import socket
import threading
import time

import models
import numpy
import pytest
from conftest import PATIENCE_S, in_thread, wait_until

import caid
from caid import weights
from caid._interfaces import _staging

VALUE = 7  # of the version that is there


@pytest.fixture
def old(client, tmp_path):
    """A model that is there, and a file of another version of it."""
    for turn in range(2):  # what the first load and save in a process leave is there from now on
        weights.load(models.write_version(tmp_path / "old", VALUE), "m", client=client)
        weights.save("m", tmp_path / "saved", client=client)
    return models.write_version(tmp_path / "new", VALUE + 1)


def picture(client, folder):
    """What there is, at the daemon and here."""
    client.flush()
    status = client.status()
    here = [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]
    named = [(entry.name, entry.generation) for entry in client.list()]
    memory = client.memory_info()._replace(flushes=0, releases=0)  # which only grow
    return named, memory, (status.arrays, status.leases), here, sorted(os.listdir(folder))


def settled(client, folder):
    """The picture, once what came before has been given back."""
    seen = [picture(client, folder)]

    def is_settled():
        time.sleep(0.1)
        seen.append(picture(client, folder))
        return seen[-1] == seen[-2]

    wait_until(is_settled)
    return seen[-1]


@contextlib.contextmanager
def unharmed(client, folder, error, match=""):
    """The block fails so, and all is as before, also while somebody has the exception."""
    before = settled(client, folder)
    with pytest.raises(error, match=match) as told:
        yield
    assert told.value.__traceback__ is not None
    wait_until(lambda: picture(client, folder) == before, lambda: (before, picture(client, folder)))
    assert [t for t in threading.enumerate() if t.name == "caid-weights"] == []
    with weights.open("m", client=client) as w:
        assert models.value_of(w) == VALUE


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt(), MemoryError()])
def test_progress_that_raises(client, old, tmp_path, error):
    for least in 0, 1, 4 * models.N * len(models.KEYS):

        def progress(done, total):
            if done >= least:
                raise error

        with unharmed(client, tmp_path, type(error)):
            weights.load(old, "m", client=client, progress=progress)
        with unharmed(client, tmp_path, type(error)):
            weights.save("m", tmp_path / "saved", client=client, progress=progress)
    assert models.read(tmp_path / "saved") == models.read(tmp_path / "old")


@pytest.mark.parametrize("dtype", [None, "<f8"])
@pytest.mark.parametrize("n_signals", [1, 5])
def test_signals(client, old, tmp_path, dtype, n_signals):
    """Ctrl-C, and some more of it while the threads come to their ends."""
    some = numpy.zeros(1 << 20, "<f4").tobytes()
    path = models.write(tmp_path / "floats", {f"{i}": ("F32", (1 << 20,), some) for i in range(8)})
    main, begun, sent = threading.get_ident(), threading.Event(), threading.Event()

    def shower():
        begun.wait()
        for _ in range(n_signals):
            signal.pthread_kill(main, signal.SIGINT)
            sent.set()
            time.sleep(0.002)

    def progress(done, total):
        begun.set()
        time.sleep(0.02)
        if done == total:  # not all is there before the first of them
            sent.wait(PATIENCE_S)

    with unharmed(client, tmp_path, KeyboardInterrupt):
        thread, _ = in_thread(shower)
        try:
            weights.load(path, "m", dtype=dtype, client=client, progress=progress)
        finally:
            while thread.is_alive():
                with contextlib.suppress(KeyboardInterrupt):
                    time.sleep(0.001)


@pytest.mark.parametrize("runs", [False, True])
def test_a_thread_whose_start_fails(client, old, tmp_path, monkeypatch, runs):
    """Or is interrupted, while the thread runs."""
    floats = models.write(tmp_path / "floats", {"a": ("F32", (4,), bytes(16))})  # what is converted has several threads
    start, started = threading.Thread.start, []

    def fail(thread):
        if thread.name != "caid-weights" or not started:
            started.append(thread)
            return start(thread)
        if runs:
            start(thread)
        raise KeyboardInterrupt if runs else RuntimeError("can't start new thread")

    with unharmed(client, tmp_path, KeyboardInterrupt if runs else RuntimeError), monkeypatch.context() as patched:
        patched.setattr(_staging, "THREADS", 3)
        patched.setattr(threading.Thread, "start", fail)
        weights.load(floats, "m", dtype="<f8", client=client)


def test_a_step_of_a_save_that_fails(client, old, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    for name in "open", "posix_fallocate", "pwrite", "fsync", "replace":
        with unharmed(client, tmp_path, OSError, "No space.*/saved'$"), monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            weights.save("m", tmp_path / "saved", client=client)


def test_a_saved_file_has_the_mode_that_the_process_gives(client, old, tmp_path):
    for umask in 0o22, 0o77:
        before = os.umask(umask)
        try:
            weights.save("m", tmp_path / f"{umask}", client=client)
        finally:
            os.umask(before)
        assert os.stat(tmp_path / f"{umask}").st_mode & 0o777 == 0o666 & ~umask


# --- what a model is saved to --------------------------------------------------------------------

FIXED = {"open": errno.EROFS, "fchown": errno.EPERM, "replace": errno.EBUSY, "setxattr": errno.EPERM}


def told(path):
    """What a save leaves as it was; the attributes where the file system has some."""
    there = os.stat(path)
    with contextlib.suppress(OSError):
        os.setxattr(path, "user.of", b"mine") if "user.of" not in os.listxattr(path) else None
    return there.st_mode, there.st_uid, there.st_gid, {name: os.getxattr(path, name) for name in os.listxattr(path)}


@pytest.fixture
def target(tmp_path):
    """A file that is longer than a model, which others have by a link, and by a name of their own."""
    path = tmp_path / "disk" / "target"
    path.parent.mkdir()
    path.write_bytes(bytes(1 << 20))
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12, 34)
    os.link(path, tmp_path / "hard")
    (tmp_path / "link").symlink_to("disk/target")
    (tmp_path / "chain").symlink_to(tmp_path / "link")
    return path


def test_what_links_lead_to_is_written(client, old, target, tmp_path):
    before, names = told(target), sorted(os.listdir(tmp_path))
    weights.save("m", os.fsencode(tmp_path / "chain"), client=client)
    assert models.read(target) == models.read(tmp_path / "old") and told(target) == before
    assert (tmp_path / "hard").read_bytes() == bytes(1 << 20), "it is another file now"
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("disk/new")
    weights.save("m", tmp_path / "chain", client=client)
    assert models.read(target.parent / "new") == models.read(tmp_path / "old")
    with open(target, "rb+") as f:  # of which no folder has a name
        target.unlink()
        weights.save("m", f"/proc/self/fd/{f.fileno()}", client=client)
        (tmp_path / "read").write_bytes(f.read())
    assert models.read(tmp_path / "read") == models.read(tmp_path / "old")
    assert (sorted(os.listdir(tmp_path)), os.listdir(target.parent)) == (sorted([*names, "read"]), ["new"])


@pytest.fixture(params=FIXED)
def fixed(request, monkeypatch, target):
    """Of a file that cannot be put in the place of the target."""
    call = getattr(os, request.param)

    def fail(*args, **options):
        if request.param != "open" or args[1] & os.O_EXCL:
            raise OSError(FIXED[request.param], "It is fixed", args[0])
        return call(*args, **options)

    told(target)
    if request.param == "setxattr" and not os.listxattr(target):
        pytest.skip("no extended attributes here")
    monkeypatch.setattr(os, request.param, fail)
    return target


def test_what_cannot_be_replaced_is_written_in_place(client, old, fixed, tmp_path):
    weights.save("m", tmp_path / "link", client=client)
    assert models.read(fixed) == models.read(tmp_path / "hard") == models.read(tmp_path / "old")
    assert os.listdir(fixed.parent) == ["target"]


def test_no_room_in_place(client, old, fixed, monkeypatch, tmp_path):
    def fail(fd, at, n):
        os.ftruncate(fd, n + (1 << 20))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with unharmed(client, tmp_path, OSError, "No space.*/link'$"):
        weights.save("m", tmp_path / "link", client=client)
    assert fixed.read_bytes() == bytes(1 << 20) and os.listdir(fixed.parent) == ["target"]


@pytest.mark.parametrize("fixed", ["fchown", "replace"], indirect=True)
@pytest.mark.parametrize("error", [OSError(5, "Of the disk"), ValueError("of mine"), KeyboardInterrupt()])
def test_a_save_in_place_that_fails_says_what_is_there(client, old, fixed, request, tmp_path, monkeypatch, error):
    """And nobody takes that for a model."""
    shutil.copy(old, fixed)

    def fail(*_):
        raise error

    monkeypatch.setattr(os, "sendfile", fail)
    progress = fail if request.node.callspec.params["fixed"] == "fchown" else weights._progress.none
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OSError
    with pytest.raises(expected, match="/link was|/link'$") as raised:
        weights.save("m", tmp_path / "link", client=client, progress=progress)
    assert "in place, and is no longer whole" in str(raised.value) and raised.value.__cause__ is error
    with pytest.raises(weights.FormatError):
        weights.load(fixed, "n", client=client)
    assert os.listdir(fixed.parent) == ["target"]


def test_a_pipe_gets_what_a_file_would(client, old, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader, got = in_thread((tmp_path / "pipe").read_bytes)
    with client.full((4, 6), 5, "<i4", order="F") as a, client.full(3, 1, "|u1") as b:
        client.publish_many("n/", {"z": a, "a": b, "b": a})
    weights.save("n", tmp_path / "pipe", client=client)
    reader.join()
    weights.save("n", tmp_path / "file", client=client)
    assert got == [(tmp_path / "file").read_bytes()]


def test_a_pipe_that_nobody_reads_on(client, old, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with client.empty(1 << 20, "|u1") as large:
        client.publish_many("n/", {"a": large})
    reader, _ = in_thread(lambda: (tmp_path / "pipe").open("rb").close())
    with pytest.raises(BrokenPipeError, match="it has a part of it: '.*/pipe'$"):
        weights.save("n", tmp_path / "pipe", client=client)
    reader.join()


def test_what_is_not_written_to(client, old, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("none/x")
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "socket"))
        for path, error in {
            tmp_path: IsADirectoryError, "": FileNotFoundError, tmp_path / "none" / "x": FileNotFoundError,
            f"{tmp_path}/none/": FileNotFoundError, "/dev/null": OSError, tmp_path / "socket": OSError,
            tmp_path / "loop": OSError, tmp_path / "nowhere": FileNotFoundError, f"{tmp_path}/old/x": NotADirectoryError,
        }.items():  # fmt: skip
            with unharmed(client, tmp_path, error, f": '{path}'$"):
                weights.save("m", path, client=client)


def test_arrays_that_cannot_be_made(client, old, tmp_path, monkeypatch):
    """While they are being filled."""

    def fail(*args):
        raise caid.LimitError(1, "no more")

    with monkeypatch.context() as patched:
        patched.setattr(caid.Client, "_set_create", fail, raising=False)
        with unharmed(client, tmp_path, caid.LimitError, "no more"):
            weights.load(old, "m", client=client)


def test_what_is_refused_at_the_end(client, old, tmp_path):
    with client.create("n/w", 1, "|u1"):
        with unharmed(client, tmp_path, caid.ExistsError):
            weights.load(old, "n", client=client)
    with unharmed(client, tmp_path, caid.NotFoundError):
        weights.load(old, "m", pool="nobody", client=client, progress=pytest.fail)
    with unharmed(client, tmp_path, caid.DeviceError):
        weights.load(old, "m", device=7, client=client, progress=pytest.fail)


# --- memory --------------------------------------------------------------------------------------


def test_no_room_for_both_versions(tmp_path):
    some = bytes(24 << 20)
    path = models.write(tmp_path / "m", {"a": ("U8", (len(some),), some)})
    with caid.LocalDaemon(memory="64M") as d, d.connect() as c, d.connect(name="worker") as worker:
        first = weights.load(path, "m", client=c)
        with weights.open("m", client=worker) as held:
            second = weights.load(path, "m", client=c)
            before = c.memory_info()
            with pytest.raises(caid.OutOfMemoryError) as told:
                weights.load(path, "m", client=c, progress=pytest.fail)
            text = str(told.value)
            assert f"m/@{first} is there, held by worker {os.getpid()}" in text
            assert f"m/@{second} is there, held by its name" in text
            assert c.memory_info() == before and held["a"].nbytes == len(some)
            with weights.open("m", client=c) as w:
                assert w.version == second and bytes(w["a"].copy_to_host()[-9:]) == bytes(9)
        held.close()
        worker.flush()
        wait_until(lambda: not any(details.entry.name for details in c.unnamed()), c.unnamed)
        assert weights.load(path, "m", client=c) > second


def test_the_memory_of_a_pool_or_user(tmp_path):
    config = "[limits]\nnames = 5\n[user-pools]\nquota = 16M\n"
    large = models.write(tmp_path / "l", {"a": ("U8", (20 << 20,), bytes(20 << 20))})
    many = models.write(tmp_path / "n", {f"{i}": ("U8", (), b"x") for i in range(5)})
    with caid.LocalDaemon(config=config) as d, d.connect() as c:
        with pytest.raises(caid.QuotaError, match="quota"):
            weights.load(large, "m", client=c, progress=pytest.fail)
        with pytest.raises(caid.LimitError, match="names"):
            weights.load(many, "m", client=c)
        c.flush()
        assert (c.list(), c.memory_info().blocks, c.status().leases) == ([], 0, 0)




@pytest.mark.parametrize("dtype", [None, "<f8"])
def test_a_file_that_is_written_while_it_is_loaded(client, old, tmp_path, dtype):
    """Also where its size stays: the bytes that were read are of two files."""

    def progress(_done, _total):
        os.utime(old, ns=(1, 1))

    with unharmed(client, tmp_path, weights.FormatError, "changed since"):
        weights.load(old, "m", client=client, dtype=dtype, progress=progress)
