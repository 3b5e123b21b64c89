# SPDX-License-Identifier: Apache-2.0
"""Every ordering of work between processes, with its waits, and with each of them left out.

The scenarios are those of order_scenarios.c, on streams whose operations start late. As they are,
the outcome has to be right in every round; without a wait it has to be wrong, or the
scenario could not tell.
"""

import os
import subprocess

from conftest import BUILD, DEADLINE

PROGRAM = BUILD / "tests" / "handoff_order"


def scenarios(mode):
    """Each one's name, and the steps that can be left without their wait."""
    command = [PROGRAM, "--list", mode]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: steps for name, *steps in map(str.split, out.splitlines())}


def pytest_generate_tests(metafunc):
    listed = scenarios(metafunc.config.getoption("--mode"))
    if "step" in metafunc.fixturenames:
        pairs = [(name, step) for name, steps in listed.items() for step in steps]
        metafunc.parametrize("scenario,step", pairs)
    elif "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", listed)


def wrong_outcomes(*args, delay_us=1000):
    env = {**os.environ, "ORDER_DELAY_US": str(delay_us)}
    command = [PROGRAM, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE, env=env)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_order(address, mode, scenario):
    assert wrong_outcomes(address, mode, scenario) == 0


def test_the_order_needs_the_wait(address, mode, scenario, step):
    """Who comes too early has a millisecond for it, and more where a busy machine did not let him run."""
    args = (address, mode, scenario, step)
    assert any(wrong_outcomes(*args, delay_us=1000 * n) > 0 for n in range(1, 31))


def test_every_scenario_waits(mode):
    assert all(scenarios(mode).values())
