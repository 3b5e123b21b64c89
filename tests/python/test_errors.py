# SPDX-License-Identifier: Apache-2.0
"""Bad input: each refusal is typed, names the thing and the limit, and changes nothing."""

import errno
import pickle
import re
import socket

import numpy as np
import pytest
from conftest import wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import caid
from caid import _caid
from caid._base import _errors

MAX_NAME = 255


def counts(client):
    """What the daemon holds: neither who it is, nor the time it took, nor what has ever been."""
    client.flush()
    status = client.status()._asdict()
    ever = "opens", "begun"
    return {name: n for name, n in status.items() if type(n) is int and not name.endswith("_ns") and name not in ever}


@pytest.fixture(autouse=True)
def unharmed(client):
    """Whatever is refused, the daemon and another array are as they were."""
    with client.create("kept", 4, "|u1") as a:
        a.copy_from_host(b"kept")
        before = counts(client)
        yield
        wait_until(lambda: counts(client) == before)
        assert bytes(a.copy_to_host()) == b"kept"
        assert [entry.name for entry in client.list()] == ["kept"]


def refused(error, code, errnum, *words):
    """pytest.raises() for an error whose message has all the words."""

    def check(e):
        assert (e.code, e.errno, type(e)) == (code, errnum, error)
        assert all(word in str(e) for word in words), str(e)
        return True

    return _Raises(error, check)


class _Raises:
    def __init__(self, error, check):
        self.error, self.check = error, check

    def __enter__(self):
        return self

    def __exit__(self, kind, e, _traceback):
        assert e is not None, f"no {self.error.__name__}"
        return isinstance(e, self.error) and self.check(e)


# --- names ----------------------------------------------------------------------------------



def publish(client, name):
    with client.empty(4) as a:
        a.publish(name)


def publish_in_an_arena(client, name):
    with client.arena() as arena:
        arena.publish(name, arena.allocate(4))


NAMED = {
    "create": lambda client, name: client.create(name, 4),
    "open": caid.Client.open,
    "open_many": lambda client, name: client.open_many([name]),
    "unlink": caid.Client.unlink,
    "show": caid.Client.show,
    "watch": caid.Client.watch,
    "timeline": caid.Client.timeline,
    "open_timeline": caid.Client.open_timeline,
    "publish": publish,
    "publish in an arena": publish_in_an_arena,
}
BAD_NAMES = {
    "empty": ("", "1 to 255 bytes"),
    "over-long": ("x" * (MAX_NAME + 1), "256"),
    "over-long in UTF-8": ("\u00e9" * 128, "256"),
    "NUL": ("a\0b", "control character"),
    "surrogate": ("\ud800", "UTF-8"),
}


@pytest.mark.parametrize("name, what", BAD_NAMES.values(), ids=BAD_NAMES.keys())
@pytest.mark.parametrize("call", NAMED.values(), ids=NAMED.keys())
def test_names_that_are_none(client, name, what, call):
    with refused(caid.InvalidNameError, 5, errno.EINVAL, what):
        call(client, name)


@pytest.mark.parametrize("name", ["a\nb", "a\x7f", "\x1b[2J", "\x85"])
def test_control_characters(client, name):
    with refused(caid.InvalidNameError, 5, errno.EINVAL, "control character"):
        client.create(name, 4)
    for call in (client.open, client.unlink, client.show):
        with pytest.raises((caid.InvalidNameError, caid.NotFoundError)):
            call(name)


@pytest.mark.parametrize("name", ["a/b", " ", "x" * MAX_NAME, "\u00e9" * 127, "..", "\U0001f600"])
def test_names_that_are_some(client, name):
    client.create(name, 1).close()
    assert client.open(name).close() is None
    client.unlink(name)


@pytest.mark.parametrize("name", [None, 5, b"x"])
def test_names_are_text(client, name):
    for call in NAMED.values():
        with pytest.raises(TypeError, match="name"):
            call(client, name)
    with pytest.raises(TypeError, match="not one str"):
        client.open_many("ab")


def test_a_name_is_taken_once(client):
    with refused(caid.ExistsError, 7, errno.EEXIST, '"kept"', "pool"):
        client.create("kept", 4)
    with pytest.raises(FileExistsError):
        client.create("kept", 4)


def test_an_unknown_name(client):
    for call in (client.open, client.unlink, client.show):
        with refused(caid.NotFoundError, 6, errno.ENOENT, '"absent"'):
            call("absent")
    with pytest.raises(FileNotFoundError):
        client.open("absent")


def test_open_many_opens_all_or_none(client):
    with refused(caid.NotFoundError, 6, errno.ENOENT, '"absent"'):
        client.open_many(["kept", "absent", "kept"])


# --- shapes, strides, types -----------------------------------------------------------------

BAD_SHAPES = {
    "negative": ((2, -1), "extent 1 is -1"),
    "over 64 bits": ((2**64,), "shape[0]", "64 bits"),
    "a product over 64 bits": ((2**40, 2**40), "2^63"),
    "bytes over 64 bits": ((2**61,), "2^63"),
    "33 dimensions": ((1,) * 33, "32"),
    "many dimensions": ((1,) * 100000, "32"),
}


@pytest.mark.parametrize("shape_what", BAD_SHAPES.values(), ids=BAD_SHAPES.keys())
def test_shapes_that_are_none(client, shape_what):
    shape, *what = shape_what
    for call in (lambda: client.empty(shape), lambda: client.create("a", shape)):
        with refused(caid.InvalidError, 4, errno.EINVAL, *what):
            call()
    with pytest.raises(caid.InvalidError):
        client.empty(shape, order="F")


@pytest.mark.parametrize("shape", [None, 1.5, "ab", (1, None)])
def test_shapes_are_ints(client, shape):
    with pytest.raises(TypeError, match="shape"):
        client.empty(shape)


def test_a_shape_may_be_an_array(client):
    for shape in (np.array([2, 3]), np.array(6), np.int8(6)):
        with client.empty(shape, "|u1") as a:
            assert a.nbytes == 6 and all(type(extent) is int for extent in a.shape)


@pytest.mark.parametrize(
    "call, what",
    [
        (lambda c: c.empty(3, alignment="x"), "alignment: an int is needed, not str"),
        (lambda c: c.empty(3, device=1.5), "device: .* not float"),
        (lambda c: caid.connect(timeout="x"), "timeout: seconds .* not str"),
    ],
)
def test_arguments_of_another_type_are_named(client, call, what):
    with pytest.raises(TypeError, match=what):
        call(client)


@pytest.mark.parametrize("call", ["copy_to_host", "copy_from_host", "fill", "close", "bind", "read"])
def test_streams_that_are_none(client, call):
    args = [np.zeros(4, "|u1")] if "copy" in call else [1] if call == "fill" else []
    with client.open("kept", "rw") as a, pytest.raises(ValueError, match="stream -1"):
        getattr(a, call)(*args, stream=-1)


part = st.recursive(
    st.integers() | st.text("ab") | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=6,
)
JSON_HAS_NOT = [float("nan"), float("inf"), {1}, b"x", np.zeros(2), {(1, 2): 3}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    st.lists(st.tuples(part, st.sampled_from(["a", 'b"', 0])), max_size=4),
    st.sampled_from(JSON_HAS_NOT),
)
def test_metadata_that_json_has_not(client, around, misfit):
    """However deep it lies, the message says where, and what it is."""
    value, where = misfit, ""
    for beside, key in around:
        value = [value, beside] if key == 0 else {"c": beside, key: value}
        where = f"[{key!r}]{where}"
    error = caid.InvalidError if isinstance(misfit, float) else TypeError
    what = f"{misfit} is no" if isinstance(misfit, float) else "tuple|type (set|bytes|ndarray)"
    with pytest.raises(error, match=f"^metadata{re.escape(where)}: .*({what})"):
        client.empty(3, metadata=value)


def test_metadata_that_holds_itself(client):
    value = []
    value.append(value)
    with refused(caid.InvalidError, 4, errno.EINVAL, "metadata", "Circular"):
        client.empty(3, metadata=value)


BAD_STRIDES = {
    "negative": ((-4, 4), "stride 0 is -4"),
    "over 64 bits": ((2**64, 4), "strides[0]", "64 bits"),
    "beyond 64 bits": ((2**62, 4), "2^63"),
    "too few": ((4,), "strides", "2 dimensions"),
    "too many": ((4, 4, 4), "strides", "2 dimensions"),
}


@pytest.mark.parametrize("strides_what", BAD_STRIDES.values(), ids=BAD_STRIDES.keys())
def test_strides_that_leave_the_array(client, strides_what):
    strides, *what = strides_what
    with refused(caid.InvalidError, 4, errno.EINVAL, *what):
        client.empty((4, 3), "<f4", strides=strides)


@pytest.mark.parametrize("typestr", ["<q9", "<f3", "<f4 ", "|O8", "|V0", "<U0", "|t4", "<x4"])
def test_typestrs_that_are_none(client, typestr):
    with refused(caid.InvalidError, 4, errno.EINVAL, f'"{typestr}"', "typestr"):
        client.empty(4, typestr)


def test_orders_that_are_none(client):
    with refused(caid.InvalidError, 4, errno.EINVAL, "order 'K'"):
        client.empty((2, 3), order="K")
    with refused(caid.InvalidError, 4, errno.EINVAL, "order and strides"):
        client.empty((2, 3), order="F", strides=(8, 16))


def test_a_descr_over_its_limit(client):
    fields = [(f"a_rather_long_name_of_a_field_{i}", "<f4") for i in range(200)]
    with pytest.raises(caid.Error, match="4096"):
        client.empty(1, fields)


# --- resources ------------------------------------------------------------------------------


def test_more_than_the_device_has(client):
    total = client.memory_info().total
    with refused(caid.OutOfMemoryError, 11, errno.ENOMEM, "device 0"):
        client.empty(total + 1, "|u1")
    with pytest.raises(MemoryError):
        client.empty(2**60, "|u1")


def test_quotas_and_limits():
    config = '[limits]\nnames = 1\n[pool "small"]\nmode = 0666\nquota = 4M\n'
    with caid.LocalDaemon(config=config) as d, d.connect() as c:
        with c.empty(3 << 20, "|u1", pool="small"):
            with refused(caid.QuotaError, 9, errno.EDQUOT, '"small"', "4 MiB"):
                c.empty(3 << 20, "|u1", pool="small")
        c.create("a", 0).close()
        with refused(caid.LimitError, 10, errno.EMFILE, "1"):
            c.create("b", 0)


@pytest.mark.parametrize("device", [-1, 1000, 2**31, 2**70])
def test_devices_that_are_not_there(client, device):
    for call in (lambda: client.empty(4, device=device), lambda: client.memory_info(device)):
        with refused(caid.DeviceError, 12, errno.ENODEV, str(device)):
            call()


@pytest.mark.parametrize("pool", ["absent", "uid:12345", ""])
def test_pools_that_may_not_be_seen(client, pool):
    """Absent, or somebody else's: the answer is one."""
    calls = [
        lambda: client.create("a", 4, pool=pool),
        lambda: client.open("kept", pool=pool),
        lambda: client.list(pool=pool),
        lambda: client.unlink("kept", pool=pool),
    ]
    for call in calls:
        with refused(caid.NotFoundError, 6, errno.ENOENT, f'"{pool}"'):
            call()


@pytest.mark.parametrize("mode", ["w", "", "rwx", "R"])
def test_modes_that_are_none(client, mode):
    with refused(caid.InvalidError, 4, errno.EINVAL, f'open: mode "{mode}"'):
        client.open("kept", mode)


# --- connecting -----------------------------------------------------------------------------


def test_nobody_there(tmp_path):
    path = tmp_path / "sock"
    with refused(caid.NoDaemonError, 64, errno.ECONNREFUSED, str(path), "no such socket", "caid --foreground", "caid.LocalDaemon()"):
        caid.connect(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(path))
    with refused(caid.NoDaemonError, 64, errno.ECONNREFUSED, str(path), "nobody listens", "caid.LocalDaemon()"):
        caid.connect(path)
    with pytest.raises(ConnectionRefusedError):
        caid.connect(str(path))


@pytest.mark.parametrize("name", ["x" * 65, "a\nb", "\ud800"])
def test_client_names_that_are_none(daemon, name):
    with pytest.raises(caid.InvalidError):
        daemon.connect(name=name)


def test_a_driver_that_is_none(daemon, client):
    """The client finds out with the first array; the array is not left behind."""
    with daemon.connect(driver="/no-such-driver.so") as c:
        with pytest.raises(caid.Error, match="no-such-driver"):
            c.empty(4)


# --- the classes ----------------------------------------------------------------------------


def test_every_code_has_a_class():
    codes = {code: name for code in range(1, 200) if (name := _caid.code_name(code))}
    assert codes == {code.value: code.name for code in caid.ErrorCode}
    assert set(_errors.CLASSES) == set(caid.ErrorCode)
    assert _caid.code_name(0) is None and _caid.code_name(2**40) is None


@pytest.mark.parametrize("code", caid.ErrorCode)
def test_errors_are_pickled_whole(code):
    e = _errors.make_error(int(code), errno.EIO, "a message", 2)
    again = pickle.loads(pickle.dumps(e))
    for x in (e, again):
        assert isinstance(x, caid.Error) and isinstance(x, OSError)
        assert type(x) is getattr(caid, type(x).__name__)
        assert (x.code, x.errno, x.cuda_result, str(x)) == (code, errno.EIO, 2, "a message")


def test_a_code_of_a_later_daemon():
    e = _errors.make_error(50, errno.EIO, "news", 0)
    assert type(e) is caid.Error and e.code == 50
