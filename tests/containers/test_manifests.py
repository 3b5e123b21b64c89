# SPDX-License-Identifier: Apache-2.0
"""examples/containers: what schemas say of it, and what of it can be run without a container."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "python"))
from uids import taking  # noqa: E402

EXAMPLES = HERE.parent.parent / "examples/containers"
BUILD = pathlib.Path(os.environ["CAID_BUILD_DIR"])
PATIENCE_S = 60


def read(folder):
    command = [os.environ["CAID_CONSUMERS_PYTHON"], HERE / "read.py", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def files():
    if not os.path.exists(os.environ["CAID_CONSUMERS_PYTHON"]):
        pytest.skip("./dev has put no foreign packages into build/consumers")
    done = read(EXAMPLES)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name, right, wrong", [
    ("compose.yaml", "healthcheck:", "health_check:"),
    ("compose.yaml", "cap_drop: [ALL]", "cap_drop: ALL"),
    ("kubernetes.yaml", "hostPID: true", "hostPid: true"),
    ("kubernetes.yaml", "periodSeconds: 20", "periodSeconds: often"),
])  # fmt: skip
def test_a_mistake_is_found(files, tmp_path, name, right, wrong):
    for path in EXAMPLES.iterdir():
        shutil.copy(path, tmp_path)
    text = (tmp_path / name).read_text()
    assert right in text
    (tmp_path / name).write_text(text.replace(right, wrong))
    assert read(tmp_path).returncode == 1


def kind(files, name):
    (found,) = (r for r in files["kubernetes"] if r["kind"] == name)
    return found


def pod(files, name):
    return kind(files, name)["spec"]["template"]["spec"]


def test_both_have_the_same_pools(files):
    text = (EXAMPLES / "caid.conf").read_text()
    assert kind(files, "ConfigMap")["data"]["pools.conf"] == text[text.index("[") :]


def test_the_daemons_run_as_the_images_user(files):
    (add,) = (value for what, value in files["image"] if "useradd" in value)
    number = int(re.search(r"--uid (\d+)", add)[1])
    assert [value for what, value in files["image"] if what == "USER"] == ["caid"]
    assert pod(files, "DaemonSet")["containers"][0]["securityContext"]["runAsUser"] == number


def test_the_image_has_what_its_programs_are_linked_with(files):
    """The packages of its last stage, on the Debian that it is of."""
    if "VERSION_CODENAME=bookworm" not in pathlib.Path("/etc/os-release").read_text():
        pytest.skip("the image is of another Debian")
    if b"__asan_init" in (BUILD / "bin/caid").read_bytes():
        pytest.skip("a sanitizer links with more")
    *_, last = (value for what, value in files["image"] if what == "RUN")
    there = set(last.split("--no-install-recommends", 1)[1].split("&&")[0].split()) | {"libc6"}
    for program in ("caid", "caid-keeper", "caidctl"):
        linked = subprocess.check_output(["ldd", BUILD / "bin" / program], text=True)
        for path in re.findall(r"=> (/\S+)", linked):
            if not path.startswith(str(BUILD)):
                assert owner(path) in there, path


def owner(path):
    """Of that library; dpkg may know it by the other of /lib and /usr/lib."""
    pattern = "*" + path.split("/lib/", 1)[1]
    return subprocess.check_output(["dpkg-query", "--search", pattern], text=True).split(":")[0]


@contextlib.contextmanager
def running(command, **options):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listens(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        return sock.connect_ex(address) == 0


@contextlib.contextmanager
def image_runs(files, folder):
    """Its first process, with the pools of the examples, on a socket in folder; $CAID_SOCKET is that."""
    folder.chmod(0o755)
    entry, args = (json.loads(dict(files["image"])[what]) for what in ("ENTRYPOINT", "CMD"))
    assert entry == ["/usr/bin/caid", "--socket=/run/caid/caid.sock"]
    address = str(folder / "caid.sock")
    daemon = [BUILD / "bin/caid", f"--socket={address}", f"--config={EXAMPLES}/caid.conf", *args]
    with open(folder / "log", "wb") as log, running(daemon, stderr=log) as process:
        end = time.monotonic() + PATIENCE_S
        while not listens(address):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.01)
        yield {**os.environ, "CAID_SOCKET": address, "PATH": f"{BUILD}/bin:{os.environ['PATH']}"}
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_the_clients_share(files):
    """As the users that they are in the files; and the probes find a daemon."""
    services, reader = files["compose"]["services"], pod(files, "Deployment")["containers"][0]
    who = reader["securityContext"]
    with tempfile.TemporaryDirectory() as name, image_runs(files, pathlib.Path(name)) as env:
        probes = [pod(files, "DaemonSet")["containers"][0][p]["exec"]["command"] for p in ("readinessProbe", "livenessProbe")]
        for probe in [*probes, services["caid"]["healthcheck"]["test"][1:]]:
            subprocess.run(probe, env=env, check=True, stdout=subprocess.DEVNULL)
        with contextlib.ExitStack() as stack:
            for command, user, line in (
                (services["writer"]["command"], services["writer"]["user"], "written"),
                (services["reader"]["command"], services["reader"]["user"], "opened (480, 640)"),
                (reader["command"], f"{who['runAsUser']}:{who['runAsGroup']}", "opened (480, 640)"),
            ):
                them = taking(*map(int, user.split(":")))
                assert command[0] == "python3"
                client = stack.enter_context(running([sys.executable, *command[1:]], env=env, **them))
                assert client.stdout.readline() == line + "\n"
