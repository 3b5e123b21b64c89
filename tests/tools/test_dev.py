# SPDX-License-Identifier: Apache-2.0
"""./dev says that a long command goes on, what of it fails, and which tests were skipped."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEV = ROOT / "dev"


def start(tmp_path, command):
    """quietly() of the script, which speaks every 50 ms here."""
    functions = DEV.read_text().partition("\nsay()")[2].partition("\nin_root()")[0]
    script = f'set -eu\nlogs={tmp_path}\nsay(){functions}\nsaid_every=0.05\nquietly log sh -c "$1"\necho done'
    return subprocess.Popen(["sh", "-c", script, "sh", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_says_what_goes_on(tmp_path):
    with start(tmp_path, f"echo '[1/2] one'; until [ -e {tmp_path}/go ]; do sleep 0.01; done") as process:
        while (line := process.stderr.readline()) != "caid:   ... [1/2] one\n":
            assert line.startswith("caid:   ... "), line
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=60)  # to the end of both: no process is left that has them
    assert (process.returncode, out) == (0, "done\n")


def test_it_shows_what_has_failed(tmp_path):
    with start(tmp_path, "echo why; exit 3") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "why\ncaid: failed: sh -c echo why; exit 3 (its output: " in err


def test_it_says_what_was_skipped(tmp_path):
    build = tmp_path / "build/dev"
    log = build / "Testing/Temporary/LastTest.log"
    log.parent.mkdir(parents=True)
    log.write_text("1/2 Testing: test_first\nskipped: why\n2/2 Testing: test_second\nSKIPPED [1] a.py:7: how\n")
    (build / "CTestTestfile.cmake").write_text('add_test(one "true")\n')
    # A test that lists the tests, as one does, leaves the log alone.
    listed = subprocess.run([sys.executable, ROOT / "tests/mutations/run.py", "--check", build], capture_output=True, text=True)
    assert ": no test is " in listed.stderr
    function = DEV.read_text().partition("\nsay_skipped()")[2].partition("\n}")[0]
    done = subprocess.run(["sh", "-c", f"root={tmp_path}\nsay_skipped(){function}\n}}\nsay_skipped dev"], capture_output=True, text=True)
    assert done.stderr == "caid: skipped in test_first: why\ncaid: skipped in test_second: how\n"
