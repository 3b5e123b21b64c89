# SPDX-License-Identifier: Apache-2.0
"""caidctl, the built daemon, and a client of it, by hand, that has what caidctl is to tell of."""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "daemon"))
import raw  # noqa: E402

BUILD = pathlib.Path(os.environ["CAID_BUILD_DIR"])
CAIDCTL = BUILD / "bin" / "caidctl"


class Client(raw.Client):
    """One that has arrays, by their leases, and what goes with them. What is asked is answered when a method returns."""

    def __init__(self, socket, name="maker"):
        self.arrays, self.n_brackets = [], 0
        super().__init__(socket, hello=False)
        self.hello = self.call("hello", version_min=1, version_max=1, client=name)

    def take(self, reply):
        self.arrays += [array["lease"] for array in reply["arrays"]]
        self.drop_fds()  # which keep the memory

    def create(self, name, shape, typestr="<f4", strides=None, descr=None, memory=None, metadata=None):
        more = {"name": name, "strides": strides, "descr": descr, "memory": memory, "metadata": metadata}
        self.take(self.call("create", typestr=typestr, shape=shape, **{k: v for k, v in more.items() if v is not None}))

    def open(self, name, mode="r"):
        self.take(self.call("open", names=[name], mode=mode))

    def publish(self, name):
        """The last array."""
        return self.call("publish", lease=self.arrays[-1], name=name)["generation"]

    def publish_part(self, offset, n, name):
        """So many bytes of the last array."""
        self.call("publish_part", lease=self.arrays[-1], offset=offset, typestr="|u1", shape=[n], name=name)

    def begin(self, write=False, wait=True):
        """A bracket on the last array, for the host. Without wait: one that has only asked."""
        self.n_brackets += 1
        self.request("begin", bracket=self.n_brackets, **{"write" if write else "read": self.arrays[-1:]})
        if wait:
            self.response()
        return self.n_brackets

    def end(self, bracket, abandon=False):
        self.notify("end", bracket=bracket, abandon=abandon)
        self.call("ping")

    def send_array(self, many=False):
        """The last array."""
        self.call("send", lease=self.arrays[-1], ticket=[secrets.randbits(63), 1], many=many)

    def unlink(self, name):
        self.call("unlink", name=name)

    def expire(self, name, ttl_s):
        self.call("expire", name=name, ttl_ns=ttl_s * 10**9)

    def defer(self):
        self.call("defer", begin=True)

    def close_array(self, i=-1):
        self.notify("close", leases=[self.arrays.pop(i)])
        self.call("ping")

    def close(self):
        """As libcaid does: what hangs up with arrays has them until its process exits."""
        if self.arrays:
            self.notify("close", leases=self.arrays)
        self.hang_up()

    def hang_up(self):
        self.arrays = []
        super().close()


def caidctl(*args, socket=None, env=None):
    command = [str(CAIDCTL), *([f"--socket={socket}"] if socket else []), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env,
                          check=False)


@contextlib.contextmanager
def run_daemon(path, config="/dev/null", mode="--foreground", **env):
    command = [str(BUILD / "bin" / "caid"), mode, f"--socket={path}",
               f"--driver={os.environ.get('CAID_CUDA_DRIVER', 'soft')}", f"--config={config}",
               "--log-level=warning"]
    with subprocess.Popen(command, env={**os.environ, **env}) as daemon:
        while caidctl("ping", "-c1", socket=path).returncode != 0:
            assert daemon.poll() is None, "the daemon has ended"
            time.sleep(0.01)
        yield daemon
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0


def wait_until(condition):
    """Until it is true; the test's own time limit ends what never is."""
    while not condition():
        time.sleep(0.01)


def read_json(socket, *args):
    done = caidctl("--json", *args, socket=socket)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
