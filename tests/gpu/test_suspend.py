# SPDX-License-Identifier: Apache-2.0
"""A process of PyTorch's that is suspended, checkpointed by its parent, restored, and resumed."""

import ctypes
import json
import subprocess

import pytest
from conftest import needs, start

WEIGHTS = 1 << 30  # bytes
NOT_SUPPORTED = 801

WORKER = """
    import json, sys, torch
    def say(**what): print(json.dumps(what), flush=True)
    with caid.connect() as c:
        w, old, host, s = c.open("weights"), c.open("old"), c.open("host", "rw"), c.open_set("model/")
        arrays = [w, old, host, s["bias"]]
        there = [a.ptr for a in arrays]
        weights, bias = torch.from_dlpack(w), torch.from_dlpack(arrays[3])
        own, y, stream = torch.arange(1 << 20, device="cuda"), torch.empty(1000, device="cuda"), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.add(weights[:1000], bias[0], out=y)
        def look():  # by the graph, and brackets on a stream
            with w.read(stream), host.write(stream) as h:
                h.fill(5, stream=stream)
                stream.synchronize()
                graph.replay()
                torch.cuda.synchronize()
            return {"y": float(y[0]), "own": int(own.sum()), "old": float(old.copy_to_host()[0])}
        say(**look())
        for command in sys.stdin:
            torch.cuda.synchronize()
            if command == "suspend\\n":
                c.suspend(timeout=60)
                say()
            else:
                changes = [change.name for change in c.resume()]
                say(changes=changes, stayed=[a.ptr for a in arrays] == there, **look())
"""


class Worker:
    def __init__(self, daemon):
        self.process = start(daemon.env, WORKER, stdin=subprocess.PIPE)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.first = self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def ask(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self.hear()

    def step(self, name):
        return getattr(self.driver, f"cuCheckpointProcess{name}")(self.process.pid, None)

    def checkpoint(self):
        """How many bytes it has more in host memory."""
        before = self.rss()
        assert self.step("Lock") == self.step("Checkpoint") == 0
        return self.rss() - before

    def rss(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def worker(daemon, client):
    needs("torch")
    worker = Worker(daemon)
    yield worker
    worker.end()


@pytest.fixture
def client(daemon):
    if not hasattr(ctypes.CDLL("libcuda.so.1"), "cuCheckpointProcessLock"):
        pytest.skip("a driver without checkpoints")
    with daemon.connect() as c:
        for name, shape, value in ("weights", WEIGHTS // 4, 3), ("old", 1000, 1):
            with c.create(name, shape, "<f4", exist_ok=True) as a:
                a.fill(value)
        with c.create("host", 1000, "<i4", memory="pinned", exist_ok=True) as a:
            a.fill(0)
        with c.full(1, 0.5, "<f4") as bias:
            c.publish_many("model/", {"bias": bias})
        yield c


def test_a_process_goes_on_after_a_checkpoint(client, worker):
    assert worker.first == {"y": 3.5, "own": (1 << 19) * ((1 << 20) - 1), "old": 1.0}
    with client.open("weights", "rw") as w, client.open("host", "rw") as host:
        for value in 4, 5:
            worker.ask("suspend")
            assert worker.checkpoint() < WEIGHTS  # what is shared is not in it
            with client.full(1000, 2, "<f4") as new, client.full(1, 9, "<f4") as bias:
                new.publish("old")
                client.publish_many("model/", {"bias": bias})
            with w.write() as b:
                b.fill(value)
            assert worker.step("Restore") == worker.step("Unlock") == 0
            assert worker.ask("resume") == {
                **worker.first, "y": value + 0.5, "changes": ["model/", "old"], "stayed": True,
            }  # fmt: skip
            with host.write() as b:
                assert b.copy_to_host()[0] == 5
                b.fill(0)


def test_one_that_is_not_suspended_cannot_be_restored(worker):
    worker.checkpoint()
    assert worker.step("Restore") == NOT_SUPPORTED
