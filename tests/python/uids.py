# SPDX-License-Identifier: Apache-2.0
"""Programs of other uids."""

import os
import subprocess
import sys

import pytest


def taking(uid, gid):
    """What subprocess is told for it. Skips the test where it cannot be."""
    if os.geteuid() != 0:
        pytest.skip("only root can take other uids")
    them = {"user": uid, "group": gid, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", "import caid"], **them, check=True, stderr=subprocess.DEVNULL)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("other uids may not enter this tree, as below /root")
    return them
