# SPDX-License-Identifier: Apache-2.0
"""The command line: what is said, on which stream, with which status."""

import pytest
from conftest import run_caid


def test_version():
    r = run_caid("--version")
    assert (r.returncode, r.stderr) == (0, "")
    assert r.stdout.startswith("caid ")


def test_help_names_every_option():
    r = run_caid("--help")
    assert (r.returncode, r.stderr) == (0, "")
    for option in (
        "--foreground --socket --driver --config --log-level --check-config --version --help".split()
    ):
        assert option in r.stdout


@pytest.mark.parametrize(
    "args, said",
    [
        (["--no-such-option"], "no-such-option"),
        (["start"], "start"),
        (["--log-level=loud"], "loud"),
        (["--socket="], "--socket"),
        (["--driver="], "--driver"),
        (["--config="], "--config"),
        (["--socket"], "socket"),
    ],
)
def test_bad_usage(args, said):
    r = run_caid(*args)
    assert (r.returncode, r.stdout) == (1, "")
    assert said in r.stderr
    assert "--help" in r.stderr


def test_log_level_of_the_environment_that_is_none(start):
    d = start("--log-level=info", CAID_LOG="loud")
    assert "CAID_LOG=loud" in d.text()


def test_log_levels(start, tmp_path):
    """The option wins over the environment, the environment over the file."""
    config = "[daemon]\nlog_level = error\n"
    d = start("--log-level=notice", config=config, CAID_LOG="debug", CAID_MACHINE_ID="0" * 32)
    with d.client():
        pass
    assert d.stop() == 0
    assert d.text() == ""
