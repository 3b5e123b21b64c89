# SPDX-License-Identifier: Apache-2.0
"""Names that have a time to live. Times are long enough for any machine: nothing is measured."""

import math
from decimal import Decimal

import pytest

import caid

LONG_S = 3600


def left_s(client, name):
    """What is left of the name's time, or 0."""
    (entry,) = client.list(prefix=name)
    assert client.show(name).entry.ttl_ns <= entry.ttl_ns
    return entry.ttl_ns / 1e9


def test_a_name_goes_by_itself(client):
    with client.create("w", 4, "u1") as a:
        a.fill(7)
        assert client.expire("w", 0.05, generation=a.generation) == a.generation
        with client.watch("w", timeout=60) as changes:
            while "w" in client:
                next(changes)
        assert a.copy_to_host().tolist() == [7] * 4


def test_what_ends_it_and_what_keeps_it(client):
    client.create("w", 4, ttl=LONG_S).close()
    assert LONG_S - 600 < left_s(client, "w") <= LONG_S
    client.rename("w", "v")
    assert 0 < left_s(client, "v") <= LONG_S
    client.expire("v", None)
    assert left_s(client, "v") == 0
    with client.empty(4) as a, client.empty(4) as b:
        a.publish("v", ttl=LONG_S)
        assert left_s(client, "v") > 0
        b.publish("v")
        assert left_s(client, "v") == 0
    client.create("x", 4, ttl=LONG_S).close()
    with client.create("x", 4, exist_ok=True, ttl=2 * LONG_S):
        assert left_s(client, "x") <= LONG_S


def test_what_is_refused(client):
    with client.create("w", 4) as a:
        for wrong in (0, -1, math.nan, math.inf, -math.inf, True, "1", Decimal(1)):
            for call in (lambda ttl: client.expire("w", ttl), lambda ttl: a.publish("w", ttl=ttl),
                         lambda ttl: client.create("v", 4, ttl=ttl)):
                with pytest.raises(caid.InvalidError, match="ttl"):
                    call(wrong)
        with pytest.raises(caid.StaleError, match="generation"):
            client.expire("w", 1, generation=a.generation + 1)
        with pytest.raises(caid.NotFoundError, match="v"):
            client.expire("v", 1)
        client.expire("w", 10**400)
        assert left_s(client, "w") > 1e9
