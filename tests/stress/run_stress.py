# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon on the software driver, runs one stress program on it, and stops it.

usage: run_stress.py CAID PROGRAM SCENARIO [--fail=RULES] [--delay=US] [--handoff=MODE] [ARGUMENTS]

RULES are calls that go wrong in the daemon, as in driver/soft/README.md; MODE is how streams wait for those of
other processes, as in caid.conf(5). The program gets the scenario, the socket, the daemon's process, and the other
arguments. Fails when the program fails, when the daemon does not stop cleanly, or when either printed a
sanitizer's report.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

TIMEOUT_S = 30

# A pool of all; limits and times are the defaults.
CONFIG = """\
[pool "shared"]
mode = 0666
legacy = yes
[user-pools]
legacy = yes
[handoff]
mode = {}
"""


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


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def parse(argv):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("caid")
    parser.add_argument("program")
    parser.add_argument("scenario")
    parser.add_argument("--fail")
    parser.add_argument("--delay", default="50")
    parser.add_argument("--handoff", default="auto")
    return parser.parse_known_args(argv)


def main(argv):
    args, rest = parse(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "caid.sock")
        config = write(os.path.join(folder, "conf"), CONFIG.format(args.handoff))
        log_path = os.path.join(folder, "log")
        env = dict(os.environ, CAID_CUDA_DRIVER="soft", CAID_SOFTCUDA_DELAY_US=args.delay,
                   CAID_SOFTCUDA_JITTER_SEED="1", CAID_SOFTCUDA_UUID=f"GPU-{uuid.uuid4()}")
        faults = {"CAID_SOFTCUDA_FAIL": args.fail} if args.fail else {}
        with open(log_path, "wb") as log:
            daemon = subprocess.Popen([args.caid, "--foreground", "--driver=soft",
                                       f"--socket={path}", f"--config={config}"],
                                      stderr=log, env={**env, **faults})
            try:
                wait_ready(path, daemon)
                # ThreadSanitizer sleeps for a second at each exit, of which a program may have hundreds.
                client = subprocess.run([args.program, args.scenario, path, str(daemon.pid), *rest], stderr=log,
                                        env={"TSAN_OPTIONS": "atexit_sleep_ms=0", **env})
            finally:
                daemon.send_signal(signal.SIGTERM)
                status = daemon.wait(TIMEOUT_S)
        with open(log_path, errors="replace") as log:
            text = log.read()
    reported = "Sanitizer" in text or "runtime error" in text
    if client.returncode or status or reported:
        sys.exit(f"program: {client.returncode}, daemon: {status}\n{text[-20000:]}")


if __name__ == "__main__":
    main(sys.argv[1:])
