# SPDX-License-Identifier: Apache-2.0
"""The driver: which one answers, and what becomes of its failures."""

import re

import pytest
import raw
from conftest import AT_ONCE, DEADLINE, MIB, used, wait_for

NO_MEMORY, DRIVER = 11, 13
CUDA_OUT_OF_MEMORY = 2
CUDA_DEVICE_UNAVAILABLE = 46
CUDA_UNKNOWN = 999


def create(client, name):
    return client.call("create", name=name, typestr="|u1", shape=[4 * MIB], exclusive=True)


def free(daemon):
    with daemon.client() as c:
        return c.call("memory_info")["devices"][0]["free"]


def test_auto_says_loudly_that_there_is_no_device(start, tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"")  # stands before a true one
    d = start(CAID_CUDA_DRIVER="auto", LD_LIBRARY_PATH=tmp_path)
    assert d.status()["driver"] == "soft"
    assert "caid: warning: NO CUDA DEVICE ANSWERS" in d.text()
    assert re.search(r"^caid: warning: the reason: .*libcuda\.so\.1", d.text(), re.M)


@pytest.mark.parametrize("which", ["option", "env", "config"])
def test_choice(start, which):
    """Option, environment, settings: each wins over those after it, which name no driver."""
    bad = "/nonexistent.so"
    option = {"option": ["--driver=soft"]}.get(which, [])
    env = {"option": bad, "env": "soft"}.get(which, "")
    config = "soft" if which == "config" else bad
    d = start(*option, CAID_CUDA_DRIVER=env, config=f"[daemon]\ndriver = {config}\n")
    status = d.status()
    assert status["driver"] == "soft"
    assert status["driver_path"].endswith("/libcaid-softcuda.so")


def test_no_device(start):
    d = start("--driver=soft", wait=False, CAID_SOFTCUDA_DEVICES=0)
    assert d.process.wait(DEADLINE) == 1
    assert "CUDA_ERROR_NO_DEVICE" in d.text()


def test_devices(start):
    d = start("--driver=soft", CAID_SOFTCUDA_DEVICES=3, CAID_SOFTCUDA_MEMORY="64M")
    with d.client() as c:
        devices = c.call("memory_info")["devices"]
        assert [m["total"] for m in devices] == [64 * MIB] * 3
        assert len({m["uuid"] for m in devices}) == 3
        last = devices[2]["uuid"]
        one = c.call("memory_info", device=last)["devices"]
        assert [m["uuid"] for m in one] == [last]
        with pytest.raises(raw.Refused, match="GPU-none"):
            c.call("memory_info", device="GPU-none")
        c.call("create", name="x", typestr="|u1", shape=[MIB], device=last)
        assert [m["blocks"] for m in c.call("memory_info")["devices"]] == [0, 0, 1]


def test_out_of_memory(start):
    d = start("--driver=soft", config=AT_ONCE, CAID_SOFTCUDA_MEMORY="16M")
    with d.client() as c:
        for i in range(4):
            create(c, f"n{i}")
        with pytest.raises(raw.Refused) as e:
            create(c, "one more")
        assert e.value.code == NO_MEMORY
        assert e.value.cuda == CUDA_OUT_OF_MEMORY
        c.call("unlink", name="n0")
        c.notify("close", leases=[1])
        wait_for(lambda: used(d) == 12 * MIB, "the release")
        create(c, "one more")


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemExportToShareableHandle"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_failed_allocation(start, call, nth):
    """The one request is refused with the driver's words, what was made is undone, and the next
    one is served."""
    d = start(CAID_SOFTCUDA_FAIL=f"{call}@{nth}=UNKNOWN")
    before = free(d)
    with d.client() as c:
        for i in range(1, 5):
            if i == nth:
                with pytest.raises(raw.Refused, match=call) as e:
                    create(c, f"n{i}")
                assert (e.value.code, e.value.cuda) == (DRIVER, CUDA_UNKNOWN)
            else:
                create(c, f"n{i}")
        assert used(d) == 3 * 4 * MIB
        wait_for(lambda: free(d) == before - 3 * 4 * MIB, "the driver's figure")
        assert len(c.call("list")["entries"]) == 3


def test_failed_release(start):
    """Logged and counted; nobody is disturbed. What failed is earlier work: the memory is gone."""
    d = start(config=AT_ONCE, CAID_SOFTCUDA_FAIL="cuMemRelease@1=late:OUT_OF_MEMORY")
    with d.client() as c:
        c.call("create", typestr="|u1", shape=[MIB])
        c.notify("close", leases=[1])
        wait_for(lambda: c.call("status")["release_errors"] == 1, "the failure")
        assert c.call("ping") == {}
        create(c, "next")
    assert "cuMemRelease" in d.text()


def test_failed_figures(start, tmp_path):
    """Who asks for them is refused with NVML's number, and the next one is served."""
    d = start(CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        assert d.driver("fail nvmlDeviceGetMemoryInfo@1=999") == ""
        with pytest.raises(raw.Refused, match="nvmlDeviceGetMemoryInfo"):
            c.call("memory_info")
        assert c.call("memory_info")["devices"]


def test_device_vanishes(start, tmp_path):
    """What needs the device is refused, and the daemon serves on."""
    d = start(CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        create(c, "before")
        assert d.driver("vanish 0") == ""
        with pytest.raises(raw.Refused) as e:
            create(c, "after")
        assert e.value.cuda == CUDA_DEVICE_UNAVAILABLE
        assert [entry["name"] for entry in c.call("list")["entries"]] == ["before"]
        c.call("unlink", name="before")
        assert c.call("ping") == {}


def test_an_open_makes_no_driver_call(start, tmp_path):
    """A block is made and exported once, whoever opens what is in it; then all of it is gone."""
    d = start(config=AT_ONCE, CAID_SOFTCUDA_CONTROL=tmp_path / "control")
    with d.client() as c:
        create(c, "x")
        before = d.driver_calls()
        for _ in range(10):
            with d.client() as other:
                other.call("open", names=["x"], mode="r")
                other.notify("close", leases=[1])
        assert d.driver_calls() == before
        assert (before["cuMemCreate"], before["cuMemExportToShareableHandle"]) == (1, 1)
        assert "cuDevicePrimaryCtxRetain" not in before
        c.call("unlink", name="x")
        c.notify("close", leases=[1])
    wait_for(lambda: "handles 0\n" in d.driver("live"), "the release")
    assert d.driver_calls()["cuMemRelease"] == 1
