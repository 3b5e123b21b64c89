# SPDX-License-Identifier: Apache-2.0
"""What the hardware tests share: a daemon for each file, and processes that run a script on it."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

import caid


LEGACY = "[user-pools]\nlegacy = yes\n"  # arrays of that kind may be created


@pytest.fixture(scope="module")
def daemon():
    with caid.LocalDaemon(config=LEGACY) as d:
        yield d


def start(daemon_env, script, args=(), **options):
    env = {**os.environ, **daemon_env, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", "import caid\n" + textwrap.dedent(script), *args]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **options
    )


def run(daemon_env, script, args=(), **options):
    process = start(daemon_env, script, args, **options)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def needs(*libraries):
    for name in libraries:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
