# SPDX-License-Identifier: Apache-2.0
"""How streams of a device hand over: what it can do, what caid.conf says, what clients are told."""

import pytest

MEMOPS, READONLY, EVENTS = "122", "113", "125"  # CUdevice_attribute
KINDS = ["device", "legacy", "pinned"]


def device(daemon):
    with daemon.client() as c:
        (record,) = c.hello["devices"]
        assert c.call("status")["devices"] == [record]
    return record


def attributes(**values):
    return {"CAID_SOFTCUDA_ATTRIBUTES": ",".join(f"{k[1:]}={v}" for k, v in values.items())}


def lacks(*numbers):
    return attributes(**{f"_{n}": 0 for n in numbers})


def mode(text):
    return f"[handoff]\nmode = {text}\n"


def test_device_that_can_do_all(daemon):
    record = device(daemon)
    assert record["handoff"] == "memops"
    assert record["memops"] is record["readonly_host"] is True
    assert record["kinds"] == KINDS
    assert not record.get("mps")
    assert record["compute_mode"] == "default"
    assert "hand-off by memops" in daemon.text()


@pytest.mark.parametrize("number, field", [(MEMOPS, "memops"), (READONLY, "readonly_host")])
def test_device_that_lacks_one_is_served_by_the_host(start, number, field):
    d = start(**lacks(number))
    record = device(d)
    assert record["handoff"] == "host"
    assert [k for k in ("memops", "readonly_host") if not record.get(k)] == [field]
    assert "hand-off by host" in d.text() and "warning" not in d.text()


@pytest.mark.parametrize("name", ["memops", "host", "events"])
def test_mode_that_is_set(start, name):
    d = start(config=mode(name))
    assert device(d)["handoff"] == name
    assert f"hand-off by {name}" in d.text() and "warning" not in d.text()


@pytest.mark.parametrize(
    "text, can, does, warns", [("auto", 1, True, False), ("auto", 0, False, False), ("yes", 1, True, False), ("yes", 0, False, True), ("no", 1, False, False)]
)
def test_rdma(start, text, can, does, warns):
    d = start(config=f"[memory]\nrdma = {text}\n", **attributes(_110=can))
    assert device(d).get("rdma", False) is does
    with d.client() as c:
        c.call("create", typestr="|u1", shape=[1])  # the driver refuses a flag that the device cannot do
    assert ("cannot do [memory] rdma = yes" in d.text()) is warns


@pytest.mark.parametrize("name, number", [("memops", MEMOPS), ("memops", READONLY), ("events", EVENTS)])
def test_mode_that_the_device_cannot_do(start, name, number):
    d = start(config=mode(name), **lacks(number))
    assert device(d)["handoff"] == "host"
    assert f"cannot do [handoff] mode = {name}: hand-off is by the host" in d.text()


def test_device_without_legacy_handles_says_so(start):
    assert device(start(**lacks(EVENTS)))["kinds"] == ["device", "pinned"]


@pytest.mark.parametrize("value, name", [(0, "default"), (2, "prohibited"), (3, "exclusive"), (9, None)])
def test_compute_mode(start, value, name):
    assert device(start(**attributes(_20=value))).get("compute_mode") == name


def test_mps(start):
    assert device(start(**attributes(_133=1)))["mps"] is True


@pytest.mark.parametrize("value, name", [(0, "off"), (1, "on")])
def test_persistence(start, value, name):
    assert device(start(CAID_SOFTCUDA_PERSISTENCE=value))["persistence"] == name


def test_persistence_that_is_not_known(start):
    """Without NVML, or by one that does not tell."""
    d = start(CAID_SOFTCUDA_FAIL="nvmlDeviceGetPersistenceMode=3")
    assert "persistence" not in device(d)
