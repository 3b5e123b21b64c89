# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon on the software driver, runs the stress client on it, and stops it.

usage: run_stress.py CAID STRESS [STEPS]

Fails when the client fails, when the daemon does not stop cleanly, or when either printed a
sanitizer's report.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

TIMEOUT_S = 30


def wait_ready(path, daemon):
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end and daemon.poll() is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            try:
                sock.connect(path)
                return
            except OSError:
                time.sleep(0.05)
    sys.exit(f"the daemon does not answer (exit status {daemon.poll()})")


def main(caid, stress, *steps):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "caid.sock")
        log_path = os.path.join(folder, "log")
        env = dict(os.environ, CAID_CUDA_DRIVER="soft", CAID_SOFTCUDA_DELAY_US="50",
                   CAID_SOFTCUDA_JITTER_SEED="1", CAID_SOFTCUDA_UUID=f"GPU-{uuid.uuid4()}")
        with open(log_path, "wb") as log:
            daemon = subprocess.Popen([caid, "--foreground", "--driver=soft", f"--socket={path}"],
                                      stderr=log, env=env)
            try:
                wait_ready(path, daemon)
                client = subprocess.run([stress, path, *steps], stderr=log, env=env)
            finally:
                daemon.send_signal(signal.SIGTERM)
                status = daemon.wait(TIMEOUT_S)
        with open(log_path, errors="replace") as log:
            text = log.read()
    reported = "Sanitizer" in text or "runtime error" in text
    if client.returncode or status or reported:
        sys.exit(f"client: {client.returncode}, daemon: {status}\n{text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
