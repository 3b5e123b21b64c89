# SPDX-License-Identifier: Apache-2.0
"""A daemon for each way in which streams can wait for those of other processes."""

import importlib.util
import os
import pathlib
import sys
import uuid

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "daemon"
sys.path.append(str(FOLDER))
spec = importlib.util.spec_from_file_location("daemon_conftest", FOLDER / "conftest.py")
daemons = importlib.util.module_from_spec(spec)
spec.loader.exec_module(daemons)
BUILD, DEADLINE = daemons.BUILD, daemons.DEADLINE


def pytest_addoption(parser):
    parser.addoption("--mode", choices=["memops", "host", "events"], default="memops")


@pytest.fixture(scope="session")
def mode(request):
    return request.config.getoption("--mode")


@pytest.fixture(scope="session")
def address(mode, tmp_path_factory):
    """The socket of a daemon whose configuration says the mode."""
    # On the device that the programs have, whose environment is this one.
    device = {"CAID_SOFTCUDA_UUID": os.environ.setdefault("CAID_SOFTCUDA_UUID", f"GPU-{uuid.uuid4()}")}
    d = daemons.Daemon(tmp_path_factory.mktemp("caid"), config=f"[handoff]\nmode = {mode}\n", level=None, **device)
    yield d.socket
    assert d.stop() == 0, d.text()
