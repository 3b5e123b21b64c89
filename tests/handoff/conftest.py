# SPDX-License-Identifier: Apache-2.0
"""A daemon for each way in which streams can wait for those of other processes."""

import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest

BUILD = pathlib.Path(os.environ["CAID_BUILD_DIR"])
DEADLINE = 60  # seconds


def pytest_addoption(parser):
    parser.addoption("--mode", choices=["memops", "host", "events"], default="memops")


@pytest.fixture(scope="session")
def mode(request):
    return request.config.getoption("--mode")


def answers(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        try:
            s.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


@pytest.fixture(scope="session")
def address(mode, tmp_path_factory):
    """The socket of a daemon whose configuration says the mode."""
    folder = tmp_path_factory.mktemp("caid")
    config, log = folder / "caid.conf", folder / "log"
    config.write_text(f"[handoff]\nmode = {mode}\n")
    command = [BUILD / "bin" / "caid", "--foreground", f"--socket={folder}/s", f"--config={config}"]
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        end = time.monotonic() + DEADLINE
        while not answers(folder / "s"):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.01)
        yield folder / "s"
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(DEADLINE)
    assert status == 0, log.read_text()
