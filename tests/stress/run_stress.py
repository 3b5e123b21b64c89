# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon on the software driver, runs one scenario on it, and stops it.

usage: run_stress.py PROGRAM SCENARIO [--fail=RULES] [--delay=US] [--handoff=MODE] [--supervise]

RULES are calls that go wrong in the daemon, as in driver/soft/README.md; MODE is how streams wait for those of
other processes, as in caid.conf(5). The program gets the scenario, the socket, the process that was started (the
daemon or its supervisor), and the mode.
Fails when the program fails, when the daemon does not stop cleanly, or when either printed a sanitizer's report.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import uuid

os.environ["CAID_BUILD_DIR"] = str(pathlib.Path(sys.argv[1]).parents[1])
sys.path.append(str(pathlib.Path(__file__).parents[1] / "daemon"))
from conftest import Daemon  # noqa: E402

# A pool of all; limits and times are the defaults.
CONFIG = '[pool "shared"]\nmode = 0666\nlegacy = yes\n[user-pools]\nlegacy = yes\n[handoff]\nmode = {}\n'

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("program")
parser.add_argument("scenario")
parser.add_argument("--fail")
parser.add_argument("--delay", default="50")
parser.add_argument("--handoff", default="memops")
parser.add_argument("--supervise", action="store_true")
args = parser.parse_args()

env = {"CAID_CUDA_DRIVER": "soft", "CAID_SOFTCUDA_DELAY_US": args.delay, "CAID_SOFTCUDA_JITTER_SEED": "1",
       "CAID_SOFTCUDA_UUID": f"GPU-{uuid.uuid4()}"}  # fmt: skip
faults = {"CAID_SOFTCUDA_FAIL": args.fail} if args.fail else {}
with tempfile.TemporaryDirectory() as folder:
    options = ["--driver=soft", *(["--supervise"] if args.supervise else [])]
    daemon = Daemon(pathlib.Path(folder), *options, config=CONFIG.format(args.handoff), level=None, **env, **faults)
    try:
        with open(daemon.log, "ab") as log:
            # ThreadSanitizer sleeps for a second at each exit, of which a program may have hundreds.
            client = subprocess.run(
                [args.program, args.scenario, daemon.socket, str(daemon.pid), args.handoff],
                stderr=log, env={**os.environ, "TSAN_OPTIONS": "atexit_sleep_ms=0", **env},
            )  # fmt: skip
    finally:
        daemon.process.send_signal(signal.SIGCONT)  # where the program has failed while there was no daemon
        status = daemon.stop()
    text = daemon.text()
if client.returncode or status or "Sanitizer" in text or "runtime error" in text:
    sys.exit(f"program: {client.returncode}, daemon: {status}\n{text[-20000:]}")
