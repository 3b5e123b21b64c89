# SPDX-License-Identifier: Apache-2.0
"""caid.rl with stand-ins for PyTorch and verl: what a sender says is never called, whatever it says; a version is
published whole or not at all. The real checkpoint-engine and verl: ./dev engines."""

import os
import pathlib

import pytest
from conftest import Child

STANDINS = str(pathlib.Path(__file__).parent / "standins")

TORCH = """
import contextlib, ctypes, pickle, types
import numpy, torch

reductions = types.ModuleType("torch.multiprocessing.reductions")
built = []

def rebuild_cuda_tensor(*args):
    built.append(args)
    return torch.from_numpy(memory)

rebuild_cuda_tensor.__module__ = reductions.__name__
reductions.rebuild_cuda_tensor = rebuild_cuda_tensor
storage = types.ModuleType("torch.storage")
storage.TypedStorage = type("TypedStorage", (), {"__module__": "torch.storage"})
parallel = types.ModuleType("torch.multiprocessing")
parallel.reductions = reductions
for module in reductions, storage, parallel:
    sys.modules[module.__name__] = module
torch.storage, torch.UntypedStorage, torch.multiprocessing = storage, storage.TypedStorage, parallel
torch.Size = type("Size", (tuple,), {"__module__": "torch", "__reduce__": lambda self: (torch.Size, (tuple(self),))})
waits = []
vars(torch.cuda).update(synchronize=lambda: waits.append(len(built)), ipc_collect=int, empty_cache=int)
memory = numpy.zeros(1024, "u1")

T = torch.Tensor
T.__module__ = "torch"
T.is_cuda = False
T.detach = lambda self: self
T.get_device = lambda self: -1
T.is_contiguous = lambda self: True
T.storage_offset = lambda self: 0
T.untyped_storage = lambda self: types.SimpleNamespace(_cdata=id(self._memory))
torch.no_grad = contextlib.nullcontext
torch.dtype.__str__ = lambda self: "torch." + str.__str__(self)
torch._foreach_copy_ = lambda targets, sources, non_blocking: [t.copy_(s) for t, s in zip(targets, sources)]

def from_dlpack(array):  # writable, as PyTorch's is
    flat = numpy.from_dlpack(array)
    raw = (ctypes.c_char * flat.nbytes).from_address(flat.ctypes.data)
    return torch.from_numpy(numpy.frombuffer(raw, flat.dtype).reshape(flat.shape))

torch.from_dlpack = from_dlpack

def full(value, shape=(3, 4), dtype="float32"):
    return torch.from_numpy(numpy.full(shape, value, dtype))
"""

WIRE = TORCH + """
from caid.rl import _wire

torch.dtype.__reduce__ = lambda self: str.__str__(self)
torch.dtype.__module__ = "torch"

args = [T, torch.Size([1024]), (1,), 0, storage.TypedStorage, torch.uint8, 7, b"h" * 66, 2048, 0, False, b"/torch_1_2_3", 0, b"e", True]

def handle(**changes):
    changed = [changes.get(f"a{i}", value) for i, value in enumerate(args)]
    return pickle.dumps((rebuild_cuda_tensor, tuple(changed)))

class Sender:
    def __init__(self, *messages):
        self.messages, self.answers = list(messages), []
    def recv(self):
        return self.messages.pop(0)
    def send(self, answer):
        self.answers.append(answer.decode())

def follow(*messages, run=lambda some: None, post_hook=None):
    sender = Sender(*(m if type(m) is bytes else pickle.dumps(m) for m in messages))
    try:
        _wire.follow(sender, 0, run, post_hook)
        return sender, None
    except Exception as e:
        return sender, e

def one(**changes):
    return {"name": "w", "shape": torch.Size([2, 3]), "dtype": torch.float32, "offset": 8, **changes}
"""


def in_a_child(code, daemon=None, wire=True):
    env = {**(daemon.env if daemon else {}), "PYTHONPATH": f"{STANDINS}:{os.environ['PYTHONPATH']}"}
    status, errors = Child((WIRE if wire else TORCH) + code, env).finish()
    assert status == 0, errors


# --- what a sender says ---------------------------------------------------------------------


def test_the_protocol_is_followed():
    in_a_child("""
memory[8:32].view("f4")[:] = range(6)
got, ends = [], []
sender, failure = follow(
    handle(), [one(), one(name="none", shape=[0, 3])], [one(name="again")], None, None,
    run=lambda some: got.extend((name, t.numpy().tolist()) for name, t in some), post_hook=lambda: ends.append(len(got)),
)
assert failure is None and sender.answers == [""] * 5 and not sender.messages, (failure, sender.answers)
assert got == [("w", [[0, 1, 2], [3, 4, 5]]), ("none", []), ("again", [[0, 1, 2], [3, 4, 5]])] and ends == [3]
(args,) = built
assert args[0] is T and args[5:8] == (torch.uint8, 0, b"h" * 66) and args[8:] == (2048, 0, False, b"/torch_1_2_3", 0, b"e", True)
""")


def test_a_failure_is_told_to_the_sender_and_raised_when_it_gives_up():
    in_a_child("""
def fail(_):
    raise OSError("no room")

sender, failure = follow(handle(), [one()], RuntimeError("others failed"), run=fail)
assert repr(failure) == "RuntimeError('others failed')" and repr(failure.__cause__) == "OSError('no room')"
assert "no room" in sender.answers[1]
ends = []
sender, failure = follow(handle(), [one()], None, None, run=fail, post_hook=lambda: ends.append(1))  # it has not looked
assert repr(failure) == "OSError('no room')" and "no room" in sender.answers[-1] and not ends and not sender.messages
def late():
    raise OSError("late")

sender, failure = follow(handle(), None, None, post_hook=late)
assert repr(failure) == "OSError('late')" and "late" in sender.answers[-1]
assert type(follow(handle(), None, [one()])[1]) is TypeError
sender, failure = follow()  # not a word
assert type(failure) is IndexError and not sender.answers
""")


def test_nothing_that_a_message_brings_is_called(tmp_path):
    mark = tmp_path / "called"
    in_a_child(f"""
import os, functools
mark = {str(mark)!r}
class Call:
    def __init__(self, *reduced):
        self.reduced = reduced
    def __reduce__(self):
        return self.reduced

evil = [
    Call(os.mkdir, (mark,)), Call(eval, (f"__import__('os').mkdir({{mark!r}})",)), Call(getattr, (os, "mkdir")),
    Call(rebuild_cuda_tensor, tuple(args)), Call(storage.TypedStorage, ()), os.mkdir, torch, Exception("x"), SystemExit(),
    Call(functools.partial, (os.mkdir, mark)), torch.from_numpy, type,
]
evil = [e for e in evil if e is not torch]
for thing in evil:
    data = pickle.dumps(thing) if not isinstance(thing, Call) or thing.reduced[0] is not getattr else b"cos\\nmkdir\\n."
    for wrap in (lambda d: d, lambda d: pickle.dumps((rebuild_cuda_tensor,))[:-1] + d[2:]):
        sender, failure = follow(wrap(data), b"")
        assert failure is not None and not sender.messages and sender.answers[0], thing
    sender, failure = follow(handle(), data)
    assert isinstance(failure, pickle.UnpicklingError), (thing, failure)
assert not built[len(evil):] and not os.path.exists(mark)
for data in b"", b"\\x80", b"garbage", pickle.dumps([one()])[:-9], b"cposix\\nsystem\\n(S'true'\\ntR.":
    assert isinstance(follow(handle(), data)[1], pickle.UnpicklingError), data
""")


@pytest.mark.parametrize(
    "changes",
    [
        "a0=storage.TypedStorage", "a1=torch.Size([2049])", "a1=torch.Size([16, 64])", "a1=(-1,)", "a1=1024", "a2=(2,)",
        "a3=1025", "a3=-1", "a3=True", "a4=T", "a5=torch.float32", "a6='0'", "a7='h'", "a7=None", "a8=1023", "a9=None",
        "a10=True", "a11=1", "a11=b'/x'", "a11=b'/torch_1_2_3/../x'", "a12=-1", "a12=10000", "a13=''", "a14=1",
    ],
)  # fmt: skip
def test_a_handle_with_other_arguments_is_refused(changes):
    in_a_child(f"""
sender, failure = follow(handle({changes}), b"")
assert type(failure) is TypeError and not built and "Traceback" in sender.answers[0], failure
""")


def test_tensors_outside_of_the_buffer_are_refused():
    in_a_child("""
bad = [
    one(offset=1001), one(offset=-8), one(shape=torch.Size([1 << 40])), one(shape=(2, -3)), one(shape=(1 << 61, 1 << 61)),
    one(dtype="float32"), one(name=b"w"), one(shape=7), {"name": "w"}, 7,
]
for told in bad:
    ran = []
    sender, failure = follow(handle(), [told], RuntimeError("gives up"), run=ran.append)
    assert repr(failure) == "RuntimeError('gives up')" and failure.__cause__ and not ran, told
    assert sender.answers[1]
for told in 7, {}, (), "x":
    assert follow(handle(), told, RuntimeError("gives up"))[1], told
""")


def test_sockets_are_this_users_alone(tmp_path):
    in_a_child(f"""
import os, stat
base = {str(tmp_path)!r}
here = _wire.folder()
status = os.lstat(here)
assert here == _wire.folder() and stat.S_IMODE(status.st_mode) == 0o700 and status.st_uid == os.geteuid()
_wire.check_address(f"ipc://{{here}}/x.sock")
os.mkdir(f"{{base}}/open", 0o755)
os.mkdir(f"{{base}}/mine", 0o700)
os.symlink(f"{{base}}/mine", f"{{base}}/link")
_wire.check_address(f"ipc://{{base}}/mine/x")
os.makedirs(f"{{base}}/all/mine", 0o700)
os.chmod(f"{{base}}/all", 0o777)
os.mkdir(f"{{base}}/mine/mine", 0o700)
names = "open", "link", "none", "all/mine", "link/mine", "mine/../mine"  # of the last three, others or a link lead there
others = [f"ipc://{{base}}/{{name}}/x" for name in names]
if os.geteuid() == 0:
    os.mkdir(f"{{base}}/other", 0o700)
    os.chown(f"{{base}}/other", 1, 1)
    others.append(f"ipc://{{base}}/other/x")
for address in *others, "ipc://@checkpoint-engine-x.sock", "tcp://127.0.0.1:1", "ipc://x", None:
    try:
        _wire.check_address(address)
    except PermissionError:
        continue
    raise AssertionError(address)
""")


# --- versions -------------------------------------------------------------------------------


def test_tensors_that_come_one_by_one_are_versions(daemon, client):
    in_a_child("""
from caid.rl._versions import Versions

def current():
    with caid.weights.open("m") as w:
        return w.version, w.metadata, {key: array.copy_to_host().tolist() for key, array in w.items()}

versions = Versions("m", timeout=60)
for n in (1, 2, 3):
    with versions.version(n) as put:
        source = full(n)
        put("a", source)
        source.fill_(99)  # as a buffer that is used again
        put("b", full(n, (2,), "int8"))
    assert versions.current == n and current() == (n, n, {"a": [[n] * 4] * 3, "b": [n] * 2})

def refused(*pairs):
    try:
        with versions.version() as put:
            for pair in pairs:
                put(*pair)
    except caid.InvalidError as e:
        return str(e)

b = "b", full(9, (2,), "int8")
assert "missing" in refused(("a", full(9)))
assert "twice" in refused(("a", full(9)), ("a", full(9)))
assert "shape" in refused(("a", full(9, (4, 3))), b)
assert "|i1, not <f4" in refused(("a", full(9, (3, 4), "int8")), b)
assert "not of the model" in refused(("a", full(9)), b, ("c", full(9)))
assert current()[:2] == (3, 3)
versions.close()
versions.close()
again = Versions("m", timeout=60)
try:
    with again.version() as put:
        put("a", full(5))
        1 / 0
except ZeroDivisionError:
    pass
assert current()[0] == 3
with again.version() as put:
    put("a", full(5))
assert current() == (4, None, {"a": [[5] * 4] * 3})
again.close()
""", daemon, wire=False)
    client.unlink("m/")


VERL = """
import asyncio

base, utils, engines = (types.ModuleType(name) for name in ("verl.checkpoint_engine.base", "verl.workers.rollout.utils", ""))
class Registry:
    register = staticmethod(lambda name: lambda cls: vars(engines).update({name: cls}) or cls)
base.CheckpointEngineRegistry, base.CheckpointEngineWithCache = Registry, object
async def ensure_async_iterator(some):
    for one in some:
        yield one
utils.ensure_async_iterator = ensure_async_iterator
for module in base, utils:
    for i in range(module.__name__.count(".") + 1):
        sys.modules.setdefault(".".join(module.__name__.split(".")[: i + 1]), module)
torch.cuda.is_initialized = lambda: False
import caid.rl.verl

def engine(**more):
    return engines.caid(bucket_size=1, name="m", timeout=60, **more)
"""


def test_the_engine_for_verl(daemon, client):
    in_a_child(VERL + """
caid.weights.Weights.torch = lambda self: {key: array.copy_to_host().tolist() for key, array in self.items()}
trainers, rollouts = [engine(is_master=True), engine()], [engine(), engine()]

async def update(n):
    everyone = trainers + rollouts
    told = [e.prepare() for e in everyone]
    for those, kwargs in zip((trainers, rollouts), engines.caid.build_topology(2, 2, told)):
        for i, e in enumerate(those):
            e.init_process_group(**{key: values[i] for key, values in kwargs.items()})
    taken = []
    def gather():
        taken.append(n)
        yield "a", full(n)
    async def receive(e):
        return [pair async for pair in e.receive_weights(global_steps=n)]
    results = await asyncio.gather(
        *[receive(e) for e in rollouts], *[e.send_weights(gather(), global_steps=n) for e in trainers]
    )
    assert results[:2] == [[("a", [[n] * 4] * 3)]] * 2 and taken == [n, n], results  # all ranks take part
    assert [pair async for pair in rollouts[0].get_weights()] == results[0]
    for e in everyone:
        e.finalize()

for n in (1, 2, 3, 4):
    asyncio.run(update(n))
told = [{"daemon": "d", "machine": "m", "version": 1}] * 2
assert engines.caid.build_topology(1, 1, told) == ({"after": [1]}, {"after": [1]})
for other in {"daemon": "e"}, {"machine": "n"}:
    try:
        engines.caid.build_topology(1, 1, [told[0], {**told[1], **other}])
    except ValueError as e:
        assert "another machine" in str(e)
    else:
        raise AssertionError
late = engines.caid(bucket_size=1, name="m", timeout=0.1)
late.init_process_group(**{key: value[0] for key, value in zip(["after"], [[late.prepare()["version"]]])})
async def none():
    return [pair async for pair in late.receive_weights()]
try:
    asyncio.run(none())
except caid.TimedOutError:
    pass
else:
    raise AssertionError
""", daemon, wire=False)
    client.unlink("m/")
