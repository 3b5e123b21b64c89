# SPDX-License-Identifier: Apache-2.0
"""Publishing: a name moves from one array to the next at once, and readers learn of it."""

import mmap
import threading

import pytest
import raw
from conftest import DEADLINE, MIB, NEVER, as_user, charges, needs_root, nothing_charged, public_daemon, wait_for

INVALID, INVALID_NAME, NOT_FOUND, EXISTS, PERMISSION = 4, 5, 6, 7, 8
LIMIT, CANCELLED, STALE = 10, 17, 18
BOB, TEAM = 60002, 60009
TEAM_POOL = f'[pool "team"]\ngroup = {TEAM}\nmode = 0640\n'
METADATA_MAX = 4096


def create(client, n=1000, **params):
    (array,) = client.call("create", typestr="|u1", shape=[n], **params)["arrays"]
    return array["lease"]


def publish(client, lease, name, **params):
    return client.call("publish", lease=lease, name=name, **params)["generation"]


def close(client, *leases):
    client.notify("close", leases=list(leases))


def open_(client, *names, **params):
    return client.call("open", names=list(names), mode="r", **params)["arrays"]


def show(client, name):
    return client.call("show", name=name)


def refused(code, call, *args, **params):
    with pytest.raises(raw.Refused) as e:
        call(*args, **params)
    assert e.value.code == code, e.value
    return str(e.value)


# ---- publish ----


def test_name_moves(daemon):
    """What had it lives on without it, for those who hold it."""
    with daemon.client() as c, daemon.client() as reader:
        old, new = create(c, name="x"), create(c)
        (held,) = open_(reader, "x")
        before = show(c, "x")
        generation = publish(c, new, "x")
        assert generation == before["entries"][0]["generation"] + 1
        after = show(c, "x")
        assert after["array"] != before["array"]
        assert c.call("status")["names"] == 1
        (unnamed,) = c.call("unnamed")["arrays"]
        assert unnamed["array"] == before["array"]
        assert unnamed["entries"][0]["name"] == "x"
        assert len(unnamed["holders"]) == 2
        close(c, old)
        close(reader, held["lease"])
        wait_for(lambda: c.call("status")["arrays"] == 1, "the end of the old one")


def test_array_has_one_name(daemon):
    with daemon.client() as c:
        lease = create(c, name="a")
        create(c, name="b")
        publish(c, lease, "b")
        assert [e["name"] for e in c.call("list")["entries"]] == ["b"]
        refused(NOT_FOUND, open_, c, "a")
        assert publish(c, lease, "b") > 0  # its own name: a new generation of it
        assert c.call("status")["names"] == 1


def test_generations_never_repeat(daemon):
    """Of a name in a pool; also when the name was gone for a while, or never was there."""
    with daemon.client() as c:
        seen = []
        for _ in range(5):
            seen.append(publish(c, create(c), "x"))
        c.call("unlink", name="x")
        seen.append(publish(c, create(c), "x"))
        c.call("unlink", name="x")
        create(c, name="x")
        seen.append(show(c, "x")["entries"][0]["generation"])
        assert seen == sorted(set(seen))
        c.call("unlink", name="x")
        assert publish(c, create(c), "y") > seen[-1]  # a new name starts above all that left


def test_old_generation_lives_while_it_is_held(daemon):
    with daemon.client() as c, daemon.client() as reader:
        first = create(c, name="x")
        old = show(c, "x")["entries"][0]["generation"]
        (held,) = open_(reader, "x", generation=old)
        new = publish(c, create(c), "x")
        (array,) = open_(c, "x", generation=new)
        assert array["generation"] == new
        (array,) = open_(c, "x", generation=old)
        assert (array["generation"], array.get("offset")) == (old, held.get("offset"))
        refused(STALE, open_, c, "x", generation=new + 1)
        close(c, first, array["lease"])
        close(reader, held["lease"])
        wait_for(lambda: c.call("status")["arrays"] == 1, "the end of the old one")
        refused(STALE, open_, c, "x", generation=old)
        refused(STALE, open_, c, "y", generation=1)
        refused(INVALID, open_, c, "x", "x", generation=new)


def test_metadata_travels_with_the_array(daemon):
    with daemon.client() as c, daemon.client() as reader:
        lease = create(c, name="x", metadata='{"step": 1}')
        assert open_(reader, "x")[0]["metadata"] == '{"step": 1}'
        publish(c, lease, "x")
        assert open_(reader, "x")[0]["metadata"] == '{"step": 1}'
        publish(c, lease, "x", metadata='{"step": 2}')
        assert open_(reader, "x")[0]["metadata"] == show(c, "x")["metadata"] == '{"step": 2}'
        publish(c, lease, "x", metadata="")
        assert open_(reader, "x")[0].get("metadata", "") == ""


def test_metadata_over_its_limit(daemon):
    with daemon.client() as c:
        most = "x" * METADATA_MAX
        lease = create(c, name="x", metadata=most)
        charged = charges(daemon)
        assert show(c, "x")["metadata"] == most
        refused(INVALID, publish, c, lease, "x", metadata=most + "x")
        refused(INVALID, create, c, metadata=most + "x")
        assert charges(daemon) == charged
        generation = show(c, "x")["entries"][0]["generation"]
        assert publish(c, lease, "x", metadata=most[1:]) == generation + 1


def test_metadata_is_charged(daemon):
    with daemon.client() as c:
        lease = create(c, name="x")
        before = charges(daemon)["host"]
        publish(c, lease, "x", metadata="x" * 4000)
        assert charges(daemon)["host"] - before >= 4000
        publish(c, lease, "x", metadata="")
        assert charges(daemon)["host"] - before < 100
        c.call("unlink", name="x")
        close(c, lease)
    wait_for(lambda: not charges(daemon)["host"], "the end of the charge")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0b"])
def test_publish_of_a_name_that_is_none(daemon, name):
    with daemon.client() as c:
        lease = create(c, name="x")
        refused(INVALID_NAME, publish, c, lease, name)
        assert [e["name"] for e in c.call("list")["entries"]] == ["x"]


def test_publish_of_a_lease_that_is_none(daemon):
    with daemon.client() as c, daemon.client() as other:
        lease = create(c)
        for wrong in (0, lease + 1, 1 << 63):
            refused(INVALID, publish, c, wrong, "x")
        refused(INVALID, publish, other, lease, "x")
        close(c, lease)
        refused(INVALID, publish, c, lease, "x")
        assert c.call("status")["names"] == 0


def test_publish_asks_the_pool_not_the_lease(daemon):
    """A read-only lease guards one's own mappings; who may write the pool may name what is in it."""
    with daemon.client() as c, daemon.client() as reader:
        create(c, name="x")
        (array,) = open_(reader, "x")
        assert publish(reader, array["lease"], "y")
        assert [e["name"] for e in c.call("list")["entries"]] == ["y"]


def test_limit_of_names(start):
    """Publishing over a name of one's own needs none more."""
    d = start(config="[limits]\nnames = 2\n")
    with d.client() as c:
        create(c, name="a")
        lease = create(c, name="b")
        refused(LIMIT, publish, c, create(c), "c")
        publish(c, create(c), "a")
        publish(c, lease, "c")  # gives "b" up
        assert [e["name"] for e in c.call("list")["entries"]] == ["a", "c"]
        assert charges(d)["names"] == 2


@needs_root
def test_publish_into_a_pool_that_one_may_not_write():
    with public_daemon(TEAM_POOL) as d:
        with d.client() as c:
            c.call("create", name="x", pool="team", typestr="|u1", shape=[10])

        def body(c):
            (array,) = c.call("open", names=["x"], pool="team", mode="r")["arrays"]
            refused(PERMISSION, publish, c, array["lease"], "x")
            refused(PERMISSION, publish, c, array["lease"], "y")
            own = create(c)
            assert publish(c, own, "x") > 0  # its own pool's
            return sorted(e["name"] for e in c.call("list")["entries"])

        assert as_user(d, BOB, [TEAM], body) == ["x"]
        with d.client() as c:
            assert [e["name"] for e in c.call("list", pool="team")["entries"]] == ["x"]


# ---- watch ----


def test_watch_answers_what_is_there(daemon):
    with daemon.client() as c:
        create(c, name="x")
        generation = show(c, "x")["entries"][0]["generation"]
        assert c.call("watch", name="x") == {"generation": generation}
        assert c.call("watch", name="none", seen=generation) == {}


def test_watch_waits_for_another_generation(daemon):
    with daemon.client() as c, daemon.client() as watcher:
        lease = create(c, name="x")
        seen = show(c, "x")["entries"][0]["generation"]
        number = watcher.request("watch", name="x", seen=seen)
        wait_for(lambda: c.call("status")["watches"] == 1, "the watch")
        assert watcher.call("ping") == {}
        generation = publish(c, lease, "x")
        assert watcher.response(number) == {"generation": generation}
        assert c.call("status")["watches"] == 0
        number = watcher.request("watch", name="x", seen=generation)
        c.call("unlink", name="x")
        assert watcher.response(number) == {}
        number = watcher.request("watch", name="x")
        assert watcher.call("ping") == {}
        create(c, name="x")
        assert watcher.response(number)["generation"] > generation


def test_watch_tells_the_latest(daemon):
    """Those in between may be left out, the last never."""
    with daemon.client() as c, daemon.client() as watcher:
        lease = create(c, name="x")
        last = show(c, "x")["entries"][0]["generation"] + 2000

        def write():
            for _ in range(2000):
                publish(c, lease, "x")

        thread = threading.Thread(target=write)
        thread.start()
        seen = news = 0
        while seen < last:
            got = watcher.call("watch", name="x", seen=seen)["generation"]
            assert got > seen
            seen = got
            news += 1
        thread.join()
        assert seen == last == show(c, "x")["entries"][0]["generation"]
        print(f"{news} of {2000} generations were seen")


def test_watch_of_many_at_once(daemon):
    with daemon.client() as c:
        lease = create(c, name="x")
        seen = show(c, "x")["entries"][0]["generation"]
        watchers = [daemon.client() for _ in range(20)]
        numbers = [[w.request("watch", name="x", seen=seen) for _ in range(3)] for w in watchers]
        wait_for(lambda: c.call("status")["watches"] == 60, "the watches")
        generation = publish(c, lease, "x")
        for w, of_w in zip(watchers, numbers):
            got = sorted(w.any_response()[0] for _ in of_w)
            assert got == of_w
        assert c.call("status")["watches"] == 0
        assert generation
        for w in watchers:
            w.close()


def test_cancel(daemon):
    with daemon.client() as c:
        number = c.request("watch", name="never")
        other = c.request("watch", name="never")
        c.notify("cancel", request=number)
        refused(CANCELLED, c.response, number)
        assert c.call("status")["watches"] == 1
        for wrong in (number, 0, 12345, other + 1000):
            c.notify("cancel", request=wrong)
        assert c.call("ping") == {}
        assert c.call("status")["watches"] == 1
        with daemon.client() as writer:
            create(writer, name="never")
        assert c.response(other)["generation"]
        c.notify("cancel", request=other)  # too late
        assert c.call("ping") == {}


def test_watch_ends_with_its_connection(daemon):
    with daemon.client() as c:
        c.request("watch", name="never")
        wait_for(lambda: charges(daemon)["watches"] == 1, "the watch")
    wait_for(lambda: nothing_charged(daemon), "its end")
    assert daemon.status()["watches"] == 0


def test_limit_of_watches(start):
    d = start(config="[limits]\nwatches = 3\n")
    with d.client() as c, d.client() as other:
        numbers = [c.request("watch", name=f"n{i}") for i in range(3)]
        assert c.call("ping") == {}
        refused(LIMIT, other.call, "watch", name="n0")
        assert other.call("ping") == {}
        create(other, name="there")
        assert other.call("watch", name="there")["generation"]  # answered at once: none is kept
        c.notify("cancel", request=numbers[0])
        refused(CANCELLED, c.response, numbers[0])
        other.request("watch", name="n0")
        wait_for(lambda: charges(d)["watches"] == 3, "the watch")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb"])
def test_watch_of_a_name_that_is_none(daemon, name):
    with daemon.client() as c:
        refused(INVALID_NAME, c.call, "watch", name=name)


@needs_root
def test_watch_of_a_pool_that_one_may_not_read():
    """Looks the same as one that is not there."""
    with public_daemon(TEAM_POOL) as d:
        with d.client() as c:
            create(c, name="x", pool="team")

        def body(c):
            said = []
            for pool in ("team", "none", "uid:0"):
                try:
                    c.call("watch", name="x", pool=pool)
                    said.append(0)
                except raw.Refused as e:
                    said.append(e.code)
            return said

        team, none, root = as_user(d, BOB, [], body)
        assert team == none == root != 0


# ---- whole arrays only ----


def test_readers_never_see_a_torn_or_a_vanished_one(start):
    """Each generation is filled with its number before it is published; readers open, look, close."""
    d = start(config="[memory]\nmax_pending_age = 60m\n")
    n_generations, n_readers, size = 500, 3, 64 * 1024
    done = threading.Event()
    wrong = []

    def mapped(c, maps, reply):
        """The bytes of the reply's one array."""
        for block in reply["blocks"]:
            maps[block["block"]] = mmap.mmap(c.fds[block.get("fd", 0)], block["size"])
        (array,) = reply["arrays"]
        offset = array.get("offset", 0)
        return maps[array["block"]], offset, array

    def read():
        maps, looked = {}, 0
        try:
            with d.client() as c:
                while not done.is_set() or not looked:
                    m, offset, array = mapped(c, maps, c.call("open", names=["x"], mode="r"))
                    data = m[offset : offset + size]
                    if data != bytes([array["generation"] % 256]) * size:
                        wrong.append((array["generation"], set(data)))
                    close(c, array["lease"])
                    looked += 1
        except BaseException as e:
            wrong.append(e)
            raise

    with d.client() as c:
        maps = {}
        generation = 0
        threads = [threading.Thread(target=read) for _ in range(n_readers)]

        def write():
            reply = c.call("create", typestr="|u1", shape=[size], memory="pinned")
            m, offset, array = mapped(c, maps, reply)
            m[offset : offset + size] = bytes([(generation + 1) % 256]) * size
            got = publish(c, array["lease"], "x")
            close(c, array["lease"])
            return got

        generation = write()
        assert generation == 1
        for t in threads:
            t.start()
        try:
            for _ in range(n_generations):
                assert write() == generation + 1
                generation += 1
        finally:
            done.set()
            for t in threads:
                t.join(DEADLINE)
        assert wrong == []
        wait_for(lambda: c.call("status")["arrays"] == 1, "the end of the old ones")


def test_create_is_exclusive_and_publish_is_not(start):
    d = start(config=NEVER)
    with d.client() as c:
        create(c, name="x")
        refused(EXISTS, create, c, name="x")
        assert publish(c, create(c, 2 * MIB), "x")
