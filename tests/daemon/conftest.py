# SPDX-License-Identifier: Apache-2.0
"""The daemon under test, from the build folder that $CAID_BUILD_DIR names."""

import contextlib
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import traceback
import uuid

import pytest
import raw

BUILD = pathlib.Path(os.environ["CAID_BUILD_DIR"])
CAID = BUILD / "bin" / "caid"
DEADLINE = 60  # seconds after which something that must happen is said not to
MIB = 1 << 20

# Nothing waits in a queue or a reserve: what nobody needs any more is the driver's at once.
AT_ONCE = "[memory]\nmax_pending_count = 0\nmax_pending_age = 100ms\nreserve = 0\n"
# Nothing happens by itself.
NEVER = "[memory]\nmax_pending_count = 4294967295\nmax_pending_ratio = 1\nmax_pending_age = 60m\n"
# Arrays of kind "legacy" may be created.
LEGACY = "[user-pools]\nlegacy = yes\n"

fork = multiprocessing.get_context("fork")


def daemon_env(**more):
    """What the daemon sees: nothing that would make it another one than the test means."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CAID_", "LISTEN_"))}
    for name in ("NOTIFY_SOCKET", "JOURNAL_STREAM", "LD_PRELOAD", "XDG_RUNTIME_DIR"):
        env.pop(name, None)
    env["CAID_CUDA_DRIVER"] = os.environ.get("CAID_CUDA_DRIVER", "soft")
    # A device of its own: all processes on one software device share its memory.
    env["CAID_SOFTCUDA_UUID"] = f"GPU-{uuid.uuid4()}"
    # A leak makes the exit status 23, which no test accepts.
    env["ASAN_OPTIONS"] = "detect_leaks=1:exitcode=23"
    env.update({k: str(v) for k, v in more.items()})
    return env


def memory(daemon):
    """The figures of the first device."""
    with daemon.client() as c:
        return c.call("memory_info")["devices"][0]


def used(daemon):
    """Bytes of all blocks."""
    return memory(daemon)["used"]


def own_charges(client):
    [user] = [user for user in client.call("users")["users"] if user["uid"] == os.getuid()]
    return {k: v for k, v in user.items() if k not in ("uid", "time_ns")}


def charges(daemon):
    """What this uid is charged without the connection that asks, and without the memory of others."""
    with daemon.client() as c:
        charged = own_charges(c)
        with daemon.client():
            one = own_charges(c)["host"] - charged["host"]
    charged["host"] -= one * charged["connections"]
    charged["connections"] -= 1
    charged["fds"] -= 2
    return charged


def nothing_charged(daemon, but=()):
    """But for connections, where these may be there, with their fds."""
    but = {*but, "fds"} if "connections" in but else but
    return not any(n for what, n in charges(daemon).items() if what not in but)


def in_child(daemon, body, *args, uid=None):
    """Runs body(client, *args) in a process of its own, which then stays; returns the process."""
    ready = fork.Event()

    def run():
        if uid is not None:
            become(uid, [])
        with daemon.client() as c:
            body(c, *args)
            ready.set()
            time.sleep(DEADLINE)

    process = fork.Process(target=run)
    process.start()
    wait_for(lambda: ready.is_set() or not process.is_alive(), "the child")
    assert ready.is_set()
    return process


def kill(process):
    process.kill()
    process.join()


def refused(code, call, *args, **params):
    """The error of that code which call() ends with."""
    with pytest.raises(raw.Refused) as e:
        call(*args, **params)
    assert e.value.code == code, e.value
    return e.value


def fd_count(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def fds_at_rest(daemon):
    """Without any connection: what has been closed here may not have ended there."""
    with daemon.client() as c:
        wait_for(lambda: c.call("status")["connections"] == 1, "the end of connections")
        return fd_count(daemon) - 2


def is_sanitized():
    return b"__asan_init" in CAID.read_bytes()


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE
    while not (result := condition()):
        if time.monotonic() > end:
            pytest.fail(f"{what}: not within {DEADLINE} s")
        time.sleep(0.005)
    return result


class Daemon:
    """One caid in the foreground, its stderr in a file.

    It listens on folder/caid.sock unless socket says that the arguments, or the environment, make
    it listen elsewhere.
    """

    def __init__(
        self, folder, *args, config="", socket=None, wait=True, prefix=(), pass_fds=(), max_fds=None,
        level="debug", **env
    ):
        self.socket = socket or folder / "caid.sock"
        self.log = folder / "log"
        self.control = folder / "control"
        (folder / "caid.conf").write_text(config)
        command = [*prefix, CAID, "--foreground", f"--config={folder}/caid.conf"]
        if socket is None:
            command.append(f"--socket={self.socket}")
        if level and not any(a.startswith("--log-level") for a in args):
            command.append(f"--log-level={level}")

        def limit():
            if max_fds:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max_fds, max_fds))

        self.env = daemon_env(**env)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*command, *args],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
                preexec_fn=limit,
            )
        if wait:
            try:
                wait_for(self.answers, "the start")
            except BaseException:
                self.kill()
                raise

    def text(self):
        return self.log.read_text(errors="replace")

    def answers(self):
        if self.process.poll() is not None:
            pytest.fail(f"caid ended with {self.process.returncode}:\n{self.text()}")
        try:
            raw.Client(self.socket).close()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    @property
    def pid(self):
        return self.process.pid

    def client(self, **kwargs):
        return raw.Client(self.socket, **kwargs)

    @contextlib.contextmanager
    def paused(self):
        """Does not run meanwhile."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self, signum=signal.SIGTERM):
        """Its exit status."""
        self.process.send_signal(signum)
        return self.process.wait(DEADLINE)

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE)

    def status(self):
        with self.client() as c:
            return c.call("status")

    def driver(self, command):
        """The software driver's reply; the daemon was started with CAID_SOFTCUDA_CONTROL."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(DEADLINE)
            s.connect(str(self.control))
            s.send(command.encode())
            return s.recv(1 << 16).decode().rstrip("\0")

    def driver_calls(self):
        """How often the daemon called each function of the driver."""
        lines = (line.split() for line in self.driver("calls").splitlines())
        return {name: int(count) for name, count in lines}

    def driver_count(self, function):
        """The same of one, by its name without a suffix."""
        return int(self.driver(f"calls {function}"))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take other uids")


def own_mounts(script):
    """What runs a daemon by that script with mounts of its own; skips the test where they cannot be had."""
    if subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("no mounts of one's own here: unshare(1) is refused, as in a chroot(2)")
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


@contextlib.contextmanager
def public_daemon(config, *args, **kwargs):
    """In a folder that every uid can reach, as pytest's own is not."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="caid-"))
    folder.chmod(0o755)
    d = Daemon(folder, *args, config=config, **kwargs)
    try:
        yield d
        assert d.stop() == 0, d.text()
    finally:
        d.kill()
        shutil.rmtree(folder)


def become(uid, groups):
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def as_user(daemon, uid, groups, body):
    """What body(client) returns, run by a process of that uid, which then exits."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(uid, groups)
            with daemon.client() as c:
                os.write(writer, raw.pack([body(c)]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as f:
        data = f.read()
    os.waitpid(pid, 0)
    assert data, "the process failed: see its output"
    return raw.unpack(data)[0]


@pytest.fixture
def start(tmp_path):
    """Starts daemons; those that still run at the end must stop well."""
    daemons = []

    def start_one(*args, **kwargs):
        daemons.append(Daemon(tmp_path, *args, **kwargs))
        return daemons[-1]

    yield start_one
    for d in daemons:
        if d.process.poll() is None and d.stop() != 0:
            pytest.fail(f"caid ended with {d.process.returncode}:\n{d.text()}")


@pytest.fixture
def daemon(start):
    return start()


def run_caid(*args, **env):
    return subprocess.run(
        [CAID, *args],
        env=daemon_env(**env),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
