# SPDX-License-Identifier: Apache-2.0
"""caidctl load, save, get and put."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import types

import models
import numpy
import pytest
from conftest import PATIENCE_S, n_blocks, wait_until

from caid import _command, weights
from caid.weights import _load, _progress

CAIDCTL = str(pathlib.Path(os.environ["CAID_BUILD_DIR"]) / "bin" / "caidctl")


@pytest.fixture
def path(tmp_path):
    return models.write_version(tmp_path / "m.safetensors", 1)


@pytest.fixture
def start(daemon, tmp_path):
    def run(*args, **options):
        env = {**os.environ, **daemon.env, "CAID_PYTHON": sys.executable, **options.pop("env", {})}
        options = {"stderr": subprocess.PIPE, "cwd": tmp_path, **options}
        return subprocess.Popen([CAIDCTL, *map(str, args)], env=env, stdout=subprocess.PIPE, **options)

    return run


@pytest.fixture
def caidctl(start):
    """caidctl(*args): (status, stdout, stderr)"""

    def run(*args, **options):
        with start(*args, text=True, **options) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
            return process.returncode, out, err

    return run


def test_load_and_save(client, caidctl, path, tmp_path):
    status, out, err = caidctl("load", path, "--name", "m")
    version = client.show("m/").entry.generation
    nbytes = 4 * models.N * len(models.KEYS)
    assert (status, out) == (0, f"m@{version}: {len(models.KEYS)} arrays, {nbytes} bytes\n")
    assert re.fullmatch(r"loading m: 0.00 of 0.00 GiB, \d+.\d\d GiB/s, \d+.\d s\n", err), "once, as it is no terminal"

    status, out, err = caidctl("--json", "load", tmp_path, "-n", "m/", "--quiet")
    told = {"name": "m", "version": version + 1, "arrays": len(models.KEYS), "nbytes": nbytes}
    assert (status, json.loads(out), err) == (0, told, "")

    args = "-j", "-s", client._socket, "save", f"m@{version + 1}", "saved"
    status, out, err = caidctl(*args, env={"CAID_SOCKET": "/x"})
    assert (status, json.loads(out)) == (0, {"name": "m", "version": version + 1, "file": "saved"})
    assert err.startswith("saving m: ") and err.count("\n") == 1
    assert models.read(tmp_path / "saved") == models.read(path)
    status, out, err = caidctl("save", "-q", "m", b"\xff".decode(errors="surrogateescape"), errors="surrogateescape")
    assert (status, out, err) == (0, f"m@{version + 1}: \udcff\n", "")


def test_parts_of_a_model(client, caidctl, tmp_path):
    rows = numpy.arange(8, dtype="<f4").reshape(4, 2)
    tensor = "F32", (4, 2), rows.tobytes()
    path = models.write(tmp_path / "m", {"a.q_proj.weight": tensor, "b": tensor, "c": ("U8", (), b"x")})
    args = "--shard=1/2", "--only", "a*", "--only", "b", "--dtype", "<f2", "--tie", "x=b", "--columns", "b", "-d", "0"
    args += ("--memory=pinned",)
    assert caidctl("load", path, "-n", "m", *args, "--rows=a*", "-q")[0] == 0
    with weights.open("m", client=client) as w:
        found = {key: (a.typestr, a.copy_to_host().tolist()) for key, a in w.items()}
        assert {a.memory for a in w.values()} == {"pinned"}
    second = "<f2", [[1], [3], [5], [7]]
    assert found == {"a.q_proj.weight": ("<f2", [[4, 5], [6, 7]]), "b": second, "x": second}


LOCAL, REFUSED = 1, 2
EXITS = [
    (LOCAL, "load: .*none", "load none --name m"),
    (LOCAL, "load: m.safetensors: an empty file", "load m.safetensors --name m"),
    (LOCAL, "required: --name", "load m.safetensors"),
    (LOCAL, "--shard 2: RANK/WORLD", "load m.safetensors --name m --shard 2"),
    (LOCAL, "go with --shard", "load m.safetensors --name m --rows x"),
    (LOCAL, "unrecognized arguments: --nam", "load m.safetensors --name=m --nam m"),
    (LOCAL, "load: /none.*no such socket", "load m.safetensors --name m --socket /none"),
    (REFUSED, 'save: no array "none/"', "save none file"),
    (REFUSED, 'get: no array "none"', "get none file"),
    (REFUSED, 'put: no pool "x"', "put a m.npy --pool=x"),
    (LOCAL, "put: .*none", "put a none"),
    (LOCAL, "put: EOF: reading magic string", "put a m.safetensors"),
    (LOCAL, "put: Object arrays cannot be loaded", "put a objects.npy"),
    (REFUSED, "put: dtype 'x'", "put a m.npy --dtype=x"),
    (LOCAL, "unrecognized arguments: --dtype", "get a file --dtype=<f4"),
    (REFUSED, "load: 'm@7'", "load m.safetensors --name m@7"),
    (REFUSED, "load: '': a model's name", "load m.safetensors --name="),
    (REFUSED, "save: '/': a model's name", "save / file"),
]


def test_exit_statuses(daemon, caidctl, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"")
    numpy.save(tmp_path / "m.npy", numpy.arange(3))
    numpy.save(tmp_path / "objects.npy", numpy.array([None]), allow_pickle=True)
    before = sorted(os.listdir(tmp_path))
    for status, match, args in EXITS:
        done, out, err = caidctl(*args.split())
        assert (done, out) == (status, "") and re.match(f"caidctl.*: .*{match}", err) and "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == before


def test_the_package_of_the_folder_one_is_in_is_not_run(client, caidctl, path, tmp_path):
    for name in "caid", "numpy", "json":
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('run from here')")
    assert caidctl("load", path, "--name", "m", "-q")[::2] == (0, "")


# --- get and put ---------------------------------------------------------------------------------

RECORDS = numpy.array([((1, 2), 3.5), ((4, 5), 6.5)], [("x\u00e9", "<i4", (2,)), ("y", ">f8")])
VALUES = [
    numpy.arange(6, dtype="<f4").reshape(2, 3),
    numpy.asfortranarray(numpy.arange(6, dtype=">i8").reshape(3, 2)),
    numpy.float64(7),
    numpy.empty((0, 3), "?"),
    numpy.array(["2026-01-01", "NaT"], "M8[D]"),
    RECORDS,
    numpy.array([(1, 2)], [("\u6e29", "<i4"), ("\u5ea6", ">i2")]),
]


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize("value", VALUES)
def test_put_and_get(client, caidctl, tmp_path, value):
    numpy.save(tmp_path / "in.npy", value)
    status, out, err = caidctl("put", "a", "in.npy")
    shown = client.show("a").entry
    assert (status, out, err) == (0, f"a@{shown.generation}: {shown.typestr} {list(value.shape)}\n", "")
    status, out, err = caidctl("--json", "get", "a", "out.npy")
    told = {"name": "a", "generation": shown.generation, "typestr": shown.typestr, "shape": list(value.shape)}
    assert (status, json.loads(out), err) == (0, {**told, "file": "out.npy"}, "")
    found = numpy.load(tmp_path / "out.npy")
    assert found.dtype == value.dtype
    numpy.testing.assert_array_equal(found, value)


def test_put_replaces_at_once(client, caidctl, tmp_path):
    with client.create("a", data=[1, 2, 3]) as old:
        numpy.save(tmp_path / "a.npy", numpy.arange(5))
        assert caidctl("put", "a", "a.npy")[0] == 0
        with client.open("a") as new:
            assert (new.tolist(), old.tolist(), new.generation) == ([0, 1, 2, 3, 4], [1, 2, 3], old.generation + 1)
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    assert caidctl("put", "a", "a.npy")[:2] == (LOCAL, "")
    with client.open("a") as same:
        assert same.tolist() == [0, 1, 2, 3, 4]


def test_get_and_put_in_a_pipe(client, start, terminal):
    """More than a piece of them. Nothing else goes to standard output."""
    client.create("a", data=numpy.arange(3 << 20).reshape(3, -1)).close()
    with start("get", "a") as get, start("put", "b", stdin=get.stdout) as put:
        get.stdout.close()
        assert put.wait(PATIENCE_S) == get.wait(PATIENCE_S) == 0
        assert get.stderr.read() == f"a@{client.show('a').entry.generation}: <i8 [3, {1 << 20}]\n".encode()
    with client.open("a") as a, client.open("b") as b:
        assert (a.copy_to_host() == b.copy_to_host()).all()
    _, its = terminal
    with subprocess.Popen([CAIDCTL, "-s", client._socket, "get", "a"], stdout=its, stderr=subprocess.PIPE,
                          env={**os.environ, "CAID_PYTHON": sys.executable}) as get:
        assert b"standard output is a terminal: name a file" in get.stderr.read()
    assert get.returncode == LOCAL


def test_get_of_what_has_steps_and_of_types_that_numpy_has_no_word_for(client, caidctl, tmp_path):
    values = numpy.arange(6, dtype="<f4").reshape(2, 3)
    with client.create("f", values.shape, "<f4", order="F") as f, client.create("b", (2,), "bfloat16") as b:
        f.copy_from(values)
        b.copy_from(b"\x80\x3f\x00\x40")
    assert caidctl("get", "f", "f.npy")[0] == caidctl("get", "b", "b.npy")[0] == 0
    assert (numpy.load(tmp_path / "f.npy") == values).all()
    assert numpy.load(tmp_path / "b.npy").tobytes() == b"\x80\x3f\x00\x40"
    assert caidctl("put", "c", "b.npy", "--dtype=bfloat16", "-d0")[0] == caidctl("put", "h", "f.npy", "--dtype=<f2")[0] == 0
    assert [client.show(name).entry.typestr for name in "ch"] == ["bfloat16", "<f2"]
    with client.open("h") as h:
        assert (h.copy_to_host() == values).all()


def test_get_waits_for_who_writes(client, start, tmp_path):
    with client.create("a", data=[1, 2]) as a, a.write() as view:
        get = start("get", "a", "a.npy")
        wait_until(lambda: client.show("a").entry.waiting)
        view.copy_from(numpy.array([3, 4]))
    with get:
        assert get.wait(PATIENCE_S) == 0
    assert numpy.load(tmp_path / "a.npy").tolist() == [3, 4]


def test_get_of_a_set(client, caidctl):
    client.publish_many("s/", {"a": numpy.zeros(1)})
    status, _, err = caidctl("get", "s/", "s.npy")
    assert status == LOCAL and "'s/' is a set" in err
    assert caidctl("-p", client.show("s/").entry.pool, "get", "s/a", "a.npy")[0] == 0


# --- progress ------------------------------------------------------------------------------------


def read_all(fd, until=None):
    """What a terminal gets, up to a text, or until nobody has it any more."""
    text = b""
    while until is None or until not in text:
        try:
            text += os.read(fd, 4096)
        except OSError:
            break
    return text


@pytest.fixture
def terminal():
    ours, its = pty.openpty()
    yield ours, its
    os.close(ours)


def test_a_bar_on_a_terminal(client, start, path, terminal):
    ours, its = terminal
    with start("load", path, "--name", "m", stderr=its, env={"COLUMNS": "80"}) as process:
        os.close(its)
        text = read_all(ours).decode()
        assert process.wait(PATIENCE_S) == 0
    *shown, last = text.split("\r\033[K")[1:]
    assert last.endswith(f"[{'#' * last.count('#')}]\r\n") and 4 <= last.count("#") <= 40
    assert all("\n" not in bar and len(bar) < 80 for bar in shown)
    assert all(re.match(r"loading m: \d+\.\d\d of 0\.00 GiB, ", bar) for bar in (*shown, last))


def test_ctrl_c(client, start, path, tmp_path, terminal):
    before = weights.load(path, "m", client=client)
    n = 512 << 20
    large = {"a": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}
    length = models.write_header(tmp_path / "large", large).stat().st_size
    os.truncate(tmp_path / "large", length + n)
    ours, its = terminal
    with start("load", "large", "--name", "m", stderr=its, env={"CAID_SOFTCUDA_DELAY_US": "100000"}) as process:
        os.close(its)
        shown = read_all(ours, b"GiB/s")
        assert b" of 0.50 GiB" in shown and b" 0.50 of" not in shown
        process.send_signal(signal.SIGINT)
        text = read_all(ours)
        assert process.wait(PATIENCE_S) == LOCAL and process.stdout.read() == b""
    assert text.endswith(b"caidctl: load: interrupted: nothing was changed\r\n") and b"Traceback" not in text
    assert client.show("m/").entry.generation == before
    wait_until(lambda: n_blocks(client) == 1 and client.status().connections == 1)


@pytest.mark.parametrize("n_signals", [1, 2])
def test_ctrl_c_that_comes_too_late(client, daemon, path, tmp_path, monkeypatch, capsys, n_signals):
    """It is not said then that nothing was changed."""
    monkeypatch.setattr(_load.Loading, "publish", then_interrupt(_load.Loading.publish, n_signals))
    monkeypatch.setattr(os, "replace", then_interrupt(os.replace, n_signals))
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(reconfigure=lambda **_: None, write=sys.stdout.write))
    for args in ["load", path, "-n", "m"], ["save", "m", tmp_path / "saved"]:
        done = _command.main([*map(str, args), "-q", "-s", daemon.address])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        out, err = capsys.readouterr()
        assert (done, out[:2], err) == (0, "m@", "") if n_signals == 1 else (done, out) == (LOCAL, "")
        assert n_signals == 1 or err.endswith(": interrupted: the last step had begun, and may be done\n")
    assert client.exists("m/") and models.read(tmp_path / "saved") == models.read(path)


def then_interrupt(call, n):
    def run(*args, **options):
        result = call(*args, **options)
        for _ in range(n):
            signal.raise_signal(signal.SIGINT)
        return result

    return run


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_standard_streams_that_are_not_there(client, daemon, path, tmp_path, closed):
    env = {**os.environ, **daemon.env, "CAID_PYTHON": sys.executable}
    env.pop("PYTHONUNBUFFERED", None)
    for args in "load m.safetensors -n m", "save m saved":
        assert subprocess.run(["sh", "-c", f"exec {CAIDCTL} {args} {closed}"], env=env, cwd=tmp_path).returncode == 0
    assert models.read(tmp_path / "saved") == models.read(path)


def test_a_save_that_is_killed_leaves_the_file(client, start, path, tmp_path):
    some = models.write(tmp_path / "large", {"a": ("U8", (64 << 20,), bytes(64 << 20))})
    weights.load(some, "m", client=client)
    there = path.read_bytes()
    with start("save", "-q", "m", path, env={"CAID_SOFTCUDA_DELAY_US": "100000"}) as process:
        wait_until(lambda: any(tmp_path.glob(".caid-*.tmp")))
        process.kill()
    assert process.returncode == -signal.SIGKILL and path.read_bytes() == there


def test_a_model_on_standard_output_is_all_that_is_there(client, caidctl, start, path, tmp_path):
    weights.load(path, "m", client=client)
    weights.save("m", tmp_path / "file", client=client)
    with start("save", "-q", "m", "/dev/stdout") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, (tmp_path / "file").read_bytes()) and b"/dev/stdout" in err


def test_a_line_after_a_second_and_each_ten_elsewhere(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    show = _progress.shown("loading m")
    for tenth in range(250):
        now[0] = tenth / 10
        show(tenth << 22, 250 << 22)
    for _ in range(3):
        show(250 << 22, 250 << 22)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "loading m: 0.04 of 0.98 GiB", "loading m: 0.43 of 0.98 GiB", "loading m: 0.82 of 0.98 GiB", "loading m: 0.98 of 0.98 GiB",
    ]  # fmt: skip
    assert lines[1].endswith("0.04 GiB/s, 14 s left") and lines[3].endswith("0.04 GiB/s, 24.9 s")
