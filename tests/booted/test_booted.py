# SPDX-License-Identifier: Apache-2.0
"""The units under a real systemd: a container is booted, in a second or two, on this system's own /usr, with the
build installed in /usr/local. Its one job is to run the tests of inside.py; it ends with them.

No other system is needed, or downloaded: what the build was linked with is there, and so is its Python.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import uuid

import pytest

HERE = pathlib.Path(__file__).resolve().parent
TREE, BUILD = HERE.parent.parent, pathlib.Path(os.environ["CAID_BUILD_DIR"]).resolve()
SYSTEMD = pathlib.Path("/usr/lib/systemd/systemd")
INSIDE_S, MACHINE_S = 180, 190  # that the tests may take, and the whole

JOB = """\
[Unit]
Description=Tests of caid
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec={limit}
Environment=PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={package} HOME=/root
ExecStart={python} -X dev -m pytest -q --durations=9 -p no:cacheprovider {tests}
StandardOutput=file:/results
StandardError=inherit
"""


def missing():
    """Why no machine can be booted here; None."""
    if os.geteuid() != 0:
        return "only root can boot a container"
    if not shutil.which("systemd-nspawn") or not SYSTEMD.exists():
        return "systemd-nspawn is not there (Debian: systemd-container)"
    if not pathlib.Path("/bin").is_symlink():
        return "/usr is not all of this system's programs"
    if pathlib.Path(sys.base_prefix) == pathlib.Path("/usr/local"):
        return "this Python lies where caid is to be installed"
    return None


if missing():
    pytest.skip(missing(), allow_module_level=True)


def make_root(root):
    """What a system with an empty /etc has, but for /usr."""
    for folder in ("usr", "etc/systemd/system", "var", "run", "tmp", "proc", "sys", "dev", "root"):
        (root / folder).mkdir(parents=True)
    for link in pathlib.Path("/").iterdir():
        if link.is_symlink() and str(link.readlink()).startswith("usr/"):
            (root / link.name).symlink_to(link.readlink())
    (root / "etc/machine-id").touch()
    (root / "etc/os-release").write_text("ID=test\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    job = JOB.format(limit=INSIDE_S, python=sys.executable, package=BUILD / "python", tests=HERE / "inside.py")
    (root / "etc/systemd/system/tests.service").write_text(job)


def install(stage):
    subprocess.run(
        ["cmake", "--install", BUILD], env={**os.environ, "DESTDIR": str(stage)}, check=True, stdout=subprocess.DEVNULL
    )
    return stage / "usr/local"


def boot(root, installed):
    """Its status, and what it has said on its console."""
    folders = {str(f) for f in (TREE, BUILD, sys.prefix, sys.base_prefix, "/etc/alternatives")} - {"/usr"}
    command = ["systemd-nspawn", "--quiet", f"--directory={root}", f"--machine=caid-{uuid.uuid4().hex[:8]}"]
    command += ["--register=no", "--private-network", "--console=pipe", "--bind-ro=/usr", f"--bind={installed}:/usr/local"]
    command += [f"--bind-ro={folder}" for folder in sorted(folders) if os.path.exists(folder)]
    if not os.path.exists("/run/systemd/system"):
        command += ["--keep-unit"]  # there is no service manager that could give it one
    machine = subprocess.run(
        [*command, "--boot", "systemd.unit=tests.service", "systemd.show_status=no"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=MACHINE_S,  # it ends by SIGKILL, and all in it with it
        check=False,
    )
    return machine.returncode, machine.stdout.decode(errors="replace")


def test_the_units(tmp_path):
    make_root(tmp_path / "root")
    status, console = boot(tmp_path / "root", install(tmp_path / "stage"))
    results = tmp_path / "root/results"
    if not results.exists():
        pytest.exit(f"no container boots here:\n{console}", returncode=pytest.ExitCode.NO_TESTS_COLLECTED)
    print(results.read_text())
    assert status == 0, console
