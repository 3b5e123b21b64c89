# SPDX-License-Identifier: Apache-2.0
"""Run in the machine of test_booted.py: nothing that has a name is lost, whatever is done to the units."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import re
import subprocess
import sys
import time

import numpy
import pytest

import caid

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
WORKER = TREE / "tests/stress/restart_worker.py"
PROGRAM = pathlib.Path("/usr/local/bin/caid")
DROP_IN = pathlib.Path("/etc/systemd/system/caid.service.d/test.conf")
PATIENCE_S = 30
UIDS = (0, 1000)
ALL = ("caid.socket", "caid.service", "caid-keeper.socket", "caid-keeper.service")
GIVEN_ALL = "the keeper is there, and is given all"
MIB = 1 << 20

def run(*command, **options):
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False, **options
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{journal()[-6000:]}"
    return done.stdout.strip()


def systemctl(*args):
    return run("systemctl", *args)


def show(unit, what):
    return systemctl("show", "--value", f"--property={what}", unit)


def journal(*args):
    return subprocess.run(["journalctl", "--output=short-monotonic", *args], capture_output=True, text=True).stdout


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what}\n{journal()[-6000:]}"
        time.sleep(0.02)


def main_pid(unit):
    return int(show(unit, "MainPID"))


def by(uid, work, *args):
    """In a process of that uid, which has never seen another daemon."""
    def whole():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        with caid.Client() as c:
            work(c, *args)

    process = multiprocessing.get_context("fork").Process(target=whole)
    process.start()
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    assert process.exitcode == 0, journal()[-6000:]


class Person:
    """Of a uid, with what they have put under names: seeds of random bytes, and how many of these."""

    def __init__(self, uid):
        self.uid, self.names, self.last = uid, {}, uid

    def check(self):
        by(self.uid, self.find)

    def put(self):
        """Some anew, and some in place of others, when all was found that should be there."""
        new = {}
        for name, size in (f"a{self.last}", 100), ("b", 3 * MIB), ("c", 5000), (f"d{self.last}", 9 * MIB):
            self.last += 1
            new[name] = self.last, size
        by(self.uid, self.find_and_put, new)
        self.names |= new

    def find(self, client):
        assert {entry.name for entry in client.list()} == self.names.keys()
        for name, what in self.names.items():
            with client.open(name) as a:
                assert (a.copy_to_host() == contents(*what)).all(), name

    def find_and_put(self, client, new):
        self.find(client)
        for name, what in new.items():
            with client.empty(what[1], "u1") as a:
                a.copy_from_host(contents(*what))
                a.publish(name)


def contents(seed, size):
    return numpy.frombuffer(random.Random(seed).randbytes(size), "u1")


def set_driver(driver):
    """From the next start on, by a drop-in, as systemd/README.md has it; and what hangs is seen soon."""
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(f"[Service]\nEnvironment=CAID_CUDA_DRIVER={driver}\nWatchdogSec=3s\n")
    systemctl("daemon-reload")


@pytest.fixture
def people():
    """The sockets listen, and nothing else is there yet. In the end nothing has failed."""
    set_driver("soft")
    systemctl("enable", "--now", "caid-keeper.socket", "caid.socket")
    assert (main_pid("caid"), main_pid("caid-keeper")) == (0, 0)
    yield [Person(uid) for uid in UIDS]
    systemctl("stop", *ALL)
    assert [show(unit, "Result") for unit in ALL] == ["success"] * 4, journal()[-6000:]


def start_in_vain():
    systemctl("restart", "caid.service")  # returns
    assert show("caid", "ActiveState") == "active"
    assert re.match(r"Not serving yet: no driver answers: .*libcuda.*CAID_CUDA_DRIVER=soft", show("caid", "StatusText"))


def test_a_service_without_a_driver_is_there_and_says_why():
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text("[Service]\nWatchdogSec=1s\n")
    systemctl("daemon-reload")
    systemctl("enable", "--now", "caid.socket")
    start_in_vain()
    pid = main_pid("caid")
    with pytest.raises(caid.NotReadyError, match="CAID_CUDA_DRIVER=soft"):
        caid.Client()
    systemctl("reload", "caid")  # takes effect when the driver answers
    time.sleep(2)  # the watchdog's time, twice
    assert (main_pid("caid"), show("caid", "NRestarts")) == (pid, "0")
    assert show("caid-keeper", "ActiveState") == "active"
    systemctl("stop", *ALL)


def test_a_reload_with_a_mistake_fails(people):
    conf = pathlib.Path("/etc/caid/caid.conf.d/bad.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)
    people[0].put()
    conf.write_text("[limits]\njobs = none\n")
    done = subprocess.run(["systemctl", "reload", "caid"], capture_output=True, check=False)
    assert done.returncode != 0 and "bad.conf:2" in journal("--unit=caid")
    conf.write_text('[pool "good"]\n')
    systemctl("reload", "caid")
    wait_for(lambda: "good" in run("/usr/local/bin/caidctl", "pools"), "the reload")
    conf.unlink()
    people[0].check()


def test_the_socket_starts_it(people):
    for person in people:
        person.check()
        person.put()
    for unit in ALL:
        assert show(unit, "ActiveState") == "active"
    for person in people:
        person.check()


def replaced(unit, signum):
    """The service manager starts another one."""
    pid = main_pid(unit)
    systemctl("kill", f"--signal={signum}", "--kill-whom=main", unit)
    wait_for(lambda: main_pid(unit) not in (0, pid), f"another {unit}")
    wait_for(lambda: show(unit, "ActiveState") == "active", f"{unit} after {signum}")


def stop_and_start():
    systemctl("stop", "caid.service", "caid.socket")
    with pytest.raises(caid.NoDaemonError):
        caid.Client()
    assert (main_pid("caid"), show("caid-keeper", "ActiveState")) == (0, "active")
    systemctl("start", "caid.socket")  # whoever comes next starts the other


def stop_the_service_alone():
    """Its socket still listens: that is what it is for."""
    systemctl("stop", "caid.service")
    assert main_pid("caid") == 0


def upgrade():
    """Another version is another file in its place: here the same one, which calls itself otherwise."""
    old = PROGRAM.read_bytes()
    (version,) = re.findall(rb"caid (\d+\.\d+\.\d+)\0", old)
    other = version[:-1] + (b"8" if version.endswith(b"9") else b"9")
    new = PROGRAM.with_suffix(".new")
    new.write_bytes(old.replace(b"caid " + version, b"caid " + other))
    new.chmod(0o755)
    new.replace(PROGRAM)
    systemctl("restart", "caid")
    assert f"caid {other.decode()}" in run("/usr/local/bin/caidctl", "status")


def kill_the_keeper_while_no_driver_answers():
    set_driver("cuda")
    start_in_vain()
    n = journal("--unit=caid").count(GIVEN_ALL)
    replaced("caid-keeper", "SIGKILL")
    wait_for(lambda: journal("--unit=caid").count(GIVEN_ALL) > n, "the keeper's return")
    set_driver("soft")


WAYS = {
    "kill": lambda: replaced("caid", "SIGKILL"),
    "crash": lambda: replaced("caid", "SIGSEGV"),
    "hang": lambda: replaced("caid", "SIGSTOP"),
    "restart": lambda: systemctl("restart", "caid"),
    "stop": stop_and_start,
    "stop the service": stop_the_service_alone,
    "upgrade": upgrade,
    "reload": lambda: systemctl("reload", "caid"),
    "restart the socket": lambda: systemctl("restart", "caid.socket"),
    "reexec": lambda: systemctl("daemon-reexec"),
}

def kill_the_keeper():
    """Until it has exited nobody can know, and a daemon that is stopped meanwhile counts on it."""
    pid = main_pid("caid-keeper")
    systemctl("kill", "--signal=SIGKILL", "caid-keeper")
    wait_for(lambda: main_pid("caid-keeper") != pid, "the end of the keeper")


def kill_a_keeper_that_comes_back_late():
    """When the daemon has been told to stop."""
    late = pathlib.Path("/run/systemd/system/caid-keeper.service.d/late.conf")
    late.parent.mkdir(parents=True, exist_ok=True)
    late.write_text("[Service]\nRestartSec=500ms\n")
    systemctl("daemon-reload")
    kill_the_keeper()
    late.unlink()


KEEPER_WAYS = {
    "kill": kill_the_keeper,
    "kill, and it comes back late": kill_a_keeper_that_comes_back_late,
    "stop": lambda: systemctl("stop", "caid-keeper"),
    "restart": lambda: systemctl("restart", "caid-keeper"),
    "restart the socket": lambda: systemctl("restart", "caid-keeper.socket"),
    "kill before the daemon serves": kill_the_keeper_while_no_driver_answers,
}


@pytest.mark.parametrize("way", WAYS)
def test_everybody_finds_what_they_had(people, way):
    for _ in range(2):
        for person in people:
            person.put()
        WAYS[way]()
    for person in people:
        person.check()


@pytest.mark.parametrize("way", KEEPER_WAYS)
def test_the_keeper_goes_and_then_the_daemon(people, way):
    for person in people:
        person.put()
    KEEPER_WAYS[way]()
    systemctl("restart", "caid")  # at once: it may not be back
    for person in people:
        person.check()


def stay_stopped(seconds=2):
    """Whoever is there already does not start it; nor does a call of theirs."""
    systemctl("stop", "caid.service")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert main_pid("caid") == 0
        time.sleep(0.05)


def stop_for_a_while():
    stay_stopped()
    systemctl("start", "caid.service")


def filled(client, seed):
    a = client.empty(5000, "u1")
    a.copy_from_host(contents(seed, 5000))
    return a


def go_on(client, way):
    with filled(client, 1) as kept, filled(client, 2) as named:
        named.publish("n")
        for i in range(2):
            way()
            with client.open("n", "rw") as a, a.write() as view:
                assert (view.copy_to_host() == contents(2 + i, 5000)).all()
                view.copy_from_host(contents(3 + i, 5000))
        kept.publish("kept")


@pytest.mark.parametrize("way", [WAYS["kill"], WAYS["restart"], stop_for_a_while], ids=["kill", "restart", "stop"])
def test_who_has_something_goes_on(people, way):
    by(0, go_on, way)
    people[0].names = {"kept": (1, 5000), "n": (4, 5000)}
    people[0].check()


def give_up(client):
    with caid.Client(reconnect_timeout=0.5) as hasty, filled(client, 1), filled(hasty, 2):
        systemctl("stop", "caid.service")
        with pytest.raises(caid.DisconnectedError):
            hasty.list()
        stay_stopped()
        Person(0).check()
        assert main_pid("caid") != 0
        client.ping()


def test_the_journal_has_fields(people):
    def create(client):
        client.create("x", 8, "u1", pool="both").close()

    conf = pathlib.Path("/etc/caid/caid.conf.d/both.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text('[pool "both"]\nmode = 0666\n')
    systemctl("restart", "caid")
    by(1000, create)
    by(0, lambda client: client.unlink("x", pool="both"))
    conf.unlink()
    systemctl("reload", "caid")
    lines = [json.loads(line) for line in run("journalctl", "-o", "json", "CAID_POOL=both").splitlines()]
    names = "_SYSTEMD_UNIT", "CAID_UID", "CAID_CREATOR_UID", "CAID_NAME"
    assert [tuple(line.get(name) for name in names) for line in lines] == [
        ("caid.service", "0", "1000", "x"),
        ("caid.service", None, None, None),
    ]


def test_a_stopped_service_is_started_by_who_comes_anew(people):
    by(0, give_up)


@contextlib.contextmanager
def workers(notes, n=3):
    """They publish, replace and read until they are killed. Each begins by looking for what the one before had."""
    command = [sys.executable, WORKER]
    processes = [subprocess.Popen([*command, str(i), str(n), notes / str(i)]) for i in range(n)]

    def are_at_work(n_more):
        before = sum(f.read_text().count("done") for f in notes.glob("?"))
        wait_for(lambda: sum(f.read_text().count("done") for f in notes.glob("?")) > before + n_more, "work")

    try:
        yield are_at_work
        assert [p.poll() for p in processes] == [None] * n
    finally:
        for p in processes:
            p.kill()
            p.wait()


def test_a_keeper_killed_under_load(people, tmp_path):
    for person in people:
        person.put()
    for _ in range(2):
        with workers(tmp_path) as are_at_work:
            for _ in range(3):
                are_at_work(20)
                replaced("caid-keeper", "SIGKILL")
            systemctl("restart", "caid")
            are_at_work(20)
        replaced("caid", "SIGKILL")
    with workers(tmp_path) as are_at_work:
        are_at_work(50)
    people[1].check()


def free_memory():
    return int(run(sys.executable, "-c", "import caid; print(caid.Client().memory_info().free)"))


def test_a_keeper_that_is_stopped_frees_the_memory(people):
    before = free_memory()
    people[0].put()
    systemctl("stop", "caid.service", "caid.socket")
    systemctl("stop", "caid-keeper.service", "caid-keeper.socket")
    systemctl("start", "caid.socket")
    assert free_memory() == before
    Person(0).check()


def test_both_die_and_all_goes_on(people):
    people[0].put()
    systemctl("kill", "--signal=SIGKILL", "caid-keeper.service", "caid.service")
    anew = Person(0)
    wait_for(lambda: show("caid", "ActiveState") == "active", "another daemon")
    anew.check()
    anew.put()
    replaced("caid", "SIGKILL")
    anew.check()


def test_the_units_are_without_fault():
    assert run("systemd-analyze", "verify", "--man=no", *ALL) == ""


@pytest.mark.parametrize("unit, rated", [("caid", "rates `caid.service`"), ("caid-keeper", "`caid-keeper.service` is rated")])
def test_security_is_as_told(unit, rated):
    """Another version of systemd may rate otherwise."""
    if not run("systemctl", "--version").startswith("systemd 252"):
        pytest.skip("systemd/README.md has the figures of systemd 252")
    told = re.search(rf"{rated} \*\*([\d.]+)\*\*", (TREE / "systemd/README.md").read_text())[1]
    found = run("systemd-analyze", "security", "--no-pager", f"{unit}.service")
    assert float(re.search(r"Overall exposure level.*?: ([\d.]+)", found)[1]) <= float(told), found
