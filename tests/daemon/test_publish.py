# SPDX-License-Identifier: Apache-2.0
"""Publishing: a name moves from one array to the next at once, and readers learn of it."""

import mmap
import threading

from conftest import DEADLINE, charges, nothing_charged, wait_for


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


# ---- watch ----


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


def test_watch_ends_with_its_connection(daemon):
    with daemon.client() as c:
        c.request("watch", name="never")
        wait_for(lambda: charges(daemon)["watches"] == 1, "the watch")
    wait_for(lambda: nothing_charged(daemon), "its end")
    assert daemon.status()["watches"] == 0


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
