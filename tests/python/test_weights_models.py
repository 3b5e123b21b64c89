# SPDX-License-Identifier: Apache-2.0
"""Who loads a model, where several could: one at a time, and the next when it has been killed."""

import pytest
from conftest import PATIENCE_S, in_a_thread

import caid
from caid.weights._turn import turn

TAKES_A_TURN = """
    from caid.weights._turn import turn
    with turn(caid.default_client(), "m"):
        step("has it")
    step("ended it")
"""


def names(client):
    return [entry.name for entry in client.list()]


@pytest.mark.parametrize("ends", [lambda process: process.kill(), lambda process: process.go()])
def test_turns(client, other, child, ends):
    first = child(TAKES_A_TURN)
    first.expect("has it")
    with pytest.raises(caid.TimedOutError, match=f"^m: .* {first.pid} loads it$"):
        turn(client, "m", timeout=0)
    having = []

    def take(who):
        with turn(who, "m", timeout=PATIENCE_S):
            having.append(who)
            assert len(having) == 1 and names(who) == ["m.turn"]
            having.remove(who)
        return who

    waiting = [in_a_thread(lambda who=who: take(who)) for who in (client, other) * 2]
    assert not any(got for _, got in waiting)
    ends(first)
    for thread, got in waiting:
        thread.join(PATIENCE_S)
        assert got in ([client], [other])
    assert names(client) == []


def test_a_turn_within_a_turn(client):
    with turn(client, "m"), pytest.raises(caid.DeadlockError, match="^m: .* loads it$"):
        turn(client, "m")
    with pytest.raises(ZeroDivisionError), turn(client, "m"):
        1 / 0
    assert names(client) == []
