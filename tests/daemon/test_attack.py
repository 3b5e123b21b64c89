# SPDX-License-Identifier: Apache-2.0
"""What one uid can do to another: tests/attack, shortly. It says in what order they are served."""

import subprocess

from conftest import BUILD, needs_root, public_daemon

CONNECTIONS = 400  # of the attacker


@needs_root
def test_nobody_goes_first():
    with public_daemon("", max_fds=8192) as d:
        command = [BUILD / "bench" / "attack", d.socket, "100", str(CONNECTIONS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        print(done.stdout)
        assert (done.returncode, done.stderr) == (0, "")
