# SPDX-License-Identifier: Apache-2.0
"""Run in the machine of run.py: the README's transcript as it stands there, the exporter, an upgrade, and a purge."""

import pathlib
import re
import subprocess
import sys
import time
import urllib.request

PACKAGES, NEWER = "/packages", "/newer"
READ = 'import caid; a = caid.connect().open("frame", pool="lab"); print(a.copy_to_host().sum(), flush=True); '
PATIENCE_S = 60


def run(command, user="root"):
    """A shell's command, as that user: its output."""
    done = subprocess.run(
        ["runuser", "-u", user, "--", "sh", "-c", command],
        cwd=PACKAGES if user == "root" else "/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{user}: {command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def transcript(readme):
    """(user, command, what it prints) of the README's console: "..." stands for anything."""
    (block,) = re.findall(r"```console\n(root# .*?)```", readme, re.S)
    return re.findall(r"^(\w+)[#$] (.*)\n((?:(?!\w+[#$] ).*\n)*)", block, re.M)


def follow(readme):
    for user, command, expected in transcript(readme):
        print(f"{user}: {command}", flush=True)
        found = run(command, user)
        pattern = re.escape(expected).replace(re.escape("..."), "(?s:.*)")
        assert re.fullmatch(pattern, found), f"{found!r} is not {expected!r}"


def scrape():
    """The exporter's answer: at its start nothing listens yet."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen("http://127.0.0.1:9974/metrics", timeout=PATIENCE_S) as answer:
                return answer.read().decode()
        except OSError:
            assert time.monotonic() < end, run("systemctl status caid-exporter || true")
            time.sleep(0.1)


def export():
    """An installation does not start it."""
    assert main_pid("caid-exporter") == 0
    run("systemctl enable --now caid-exporter")
    assert "\ncaid_up 1.0\n" in scrape()


def main_pid(unit):
    return int(run(f"systemctl show --value --property=MainPID {unit}"))


def reader():
    """A process of ben's that reads the array, and once more for each line that it is given."""
    command = ["runuser", "-u", "ben", "--", "python3", "-c", READ + "input(); print(a.copy_to_host().sum())"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def upgrade():
    """The keeper stays, so does who has something open, and so do the arrays."""
    daemon, keeper = main_pid("caid"), main_pid("caid-keeper")
    assert daemon and keeper
    with reader() as process:
        assert process.stdout.readline() == "6.0\n"
        run(f"apt-get install -y {NEWER}/*.deb")
        assert main_pid("caid-keeper") == keeper
        assert main_pid("caid") not in (0, daemon)
        assert "\ncaid_up 1.0\n" in scrape()
        assert process.communicate("\n", timeout=PATIENCE_S)[0] == "6.0\n" and process.returncode == 0
    assert run(f"python3 -c '{READ}'", "ben") == "6.0\n"


def purge():
    """But for the user, whose number may be in some file, nothing is left."""
    run("rm -r /etc/systemd/system/caid.service.d /etc/caid/caid.conf.d")  # the administrator's own
    run("apt-get purge -y caid python3-caid libcaid2 libcaid-dev")
    left = run(r"find / -xdev -path /packages -prune -o -path /newer -prune -o -name '*caid*' -print; find /run -name '*caid*'")
    assert left == "", left
    assert run("grep -l ^caid /proc/[0-9]*/comm || true") == ""
    run("getent passwd caid")


def main():
    follow(pathlib.Path(sys.argv[1]).read_text("utf-8"))
    for step in (export, upgrade, purge):
        print(step.__name__, flush=True)
        step()
    print("ok")


if __name__ == "__main__":
    main()
