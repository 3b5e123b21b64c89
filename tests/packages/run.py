# SPDX-License-Identifier: Apache-2.0
"""The packages of `./dev package`, tried: usage: run.py PACKAGES [PYTHON]...

The Debian packages in a Debian that is booted for them, by inside.py; the wheels in a fresh virtual environment of each
Python. CAID_SUITE names the Debian that the packages were built for, if not this one. Ends with 77 where no
container boots, so that the Debian packages are not tried.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
MACHINE_S = 300
NEWER = "+1"  # what the upgrade's version ends with
NOT_TRIED = 77

JOB = f"""\
[Unit]
Description=Tests of caid's packages
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec={MACHINE_S - 10}
Environment=HOME=/root PYTHONDONTWRITEBYTECODE=1 DEBIAN_FRONTEND=noninteractive
ExecStart=python3 /tests/inside.py /tests/README.md
StandardOutput=file:/results
StandardError=inherit
"""


def run(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, text=True, **options)


def output(*command):
    return run(*command, stdout=subprocess.PIPE).stdout


# ---- Debian ----

def debs(packages):
    return [path for path in packages.glob("*.deb") if "-dbgsym_" not in path.name]


def wanted(packages):
    """What the packages depend on, but for each other: the machine has no network to get it from."""
    own = {path.name.split("_")[0] for path in debs(packages)}
    found = {"systemd-sysv", "python3-numpy"}
    for path in debs(packages):
        for clause in output("dpkg-deb", "--field", path, "Depends").replace(":any", "").split(","):
            found |= set(clause.split("|")[0].split()[:1])
    return sorted(found - own)


def base(packages, suite):
    """A minimal system, kept for the next time."""
    folder = TREE / "build/bases" / suite
    done, include = folder / "done", ",".join(wanted(packages))
    if not done.exists() or done.read_text("utf-8") != include:
        print(f"caid: making a {suite}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with open(folder.with_suffix(".log"), "w", encoding="utf-8") as log:
            run("debootstrap", "--variant=minbase", f"--include={include}", suite, folder, stdout=log)
        done.write_text(include, "utf-8")
    return folder


def make_newer(packages, to):
    """The same packages as those of a later version."""
    for path in debs(packages):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name, "x")
            run("dpkg-deb", "--raw-extract", path, folder)
            control = folder / "DEBIAN/control"
            version = output("dpkg-deb", "--field", path, "Version").strip()
            text = re.sub(rf"(^Version:|\(=) {re.escape(version)}\b", rf"\g<0>{NEWER}", control.read_text("utf-8"), flags=re.M)
            control.write_text(text, "utf-8")
            run("dpkg-deb", "--root-owner-group", "--build", folder, to, stdout=subprocess.DEVNULL)


def boot(root):
    command = ["systemd-nspawn", "--quiet", f"--directory={root}", f"--machine=caid-{uuid.uuid4().hex[:8]}"]
    command += ["--register=no", "--private-network", "--console=pipe"]
    if not os.path.exists("/run/systemd/system"):
        command += ["--keep-unit"]  # there is no service manager that could give it one
    return subprocess.run(
        [*command, "--boot", "systemd.unit=tests.service", "systemd.show_status=no"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=MACHINE_S,
        check=False,
    )


def try_debs(packages, suite):
    with tempfile.TemporaryDirectory(dir=packages) as name:
        root = pathlib.Path(name, "root")
        run("cp", "--archive", "--reflink=auto", base(packages, suite), root)
        for folder in ("tests", "packages", "newer"):
            (root / folder).mkdir()
        for path in debs(packages):
            shutil.copy(path, root / "packages")
        make_newer(packages, root / "newer")
        for path in (HERE / "inside.py", TREE / "README.md"):
            shutil.copy(path, root / "tests")
        (root / "etc/systemd/system/tests.service").write_text(JOB)
        machine = boot(root)
        results = root / "results"
        if not results.exists():
            print("no container boots here:", machine.stdout.decode(errors="replace"), sep="\n")
            return NOT_TRIED
        print(results.read_text("utf-8"))
        return 0 if machine.returncode == 0 else 1


# ---- wheels ----

SHARE = """
import subprocess, sys, caid
with caid.LocalDaemon(driver="soft") as d, d.connect() as c:
    with c.create("a", (5,), "|u1") as a:
        a.copy_from_host(b"caid!")
    read = "import caid; b = bytearray(5); caid.connect().open('a').copy_to_host(b); print(bytes(b).decode())"
    subprocess.run([sys.executable, "-W", "ignore", "-c", read], env=d.env, check=True)
"""


def try_wheel(wheel, python):
    with tempfile.TemporaryDirectory() as name:
        run(python, "-m", "venv", name)
        programs = pathlib.Path(name, "bin")
        pip = programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
        run(*pip, "--no-index", f"--find-links={wheel.parent}/tools/exporter", f"{wheel}[exporter]")
        version = wheel.name.split("-")[1]
        assert output(programs / "caid", "--version") == f"caid {version}\n"
        assert output(programs / "caidctl", "version") == f"caidctl {version}\n"
        assert output(programs / "caid-keeper", "--version") == f"caid-keeper {version}\n"
        pages = {path.name for path in pathlib.Path(name, "share/man").glob("man*/*")}
        assert {"caid.8", "caid-keeper.8", "caidctl.1", "caid.conf.5"} <= pages
        for completion in ("bash-completion/completions/caidctl", "zsh/site-functions/_caidctl", "fish/vendor_completions.d/caidctl.fish"):
            assert pathlib.Path(name, "share", completion).is_file()
        assert output(programs / "caid-exporter", "--help").startswith("usage: caid-exporter ")
        assert output(programs / "python", "-c", SHARE) == "caid!\n"


def try_wheels(packages, pythons):
    for python in pythons:
        tag = output(python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").strip()
        (wheel,) = packages.glob(f"caid-*-{tag}-{tag}-*_{platform.machine()}.whl")
        try_wheel(wheel, python)
        print(f"{wheel.name}: ok")


def main():
    packages, pythons = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    start = time.monotonic()
    suite = os.environ.get("CAID_SUITE") or platform.freedesktop_os_release()["VERSION_CODENAME"]
    try_wheels(packages, pythons)
    status = try_debs(packages, suite)
    print(f"{time.monotonic() - start:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
