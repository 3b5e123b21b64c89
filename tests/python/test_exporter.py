# SPDX-License-Identifier: Apache-2.0
"""caid-exporter, as Prometheus sees it; and the dashboard's queries, as a real one answers them."""

import contextlib
import json
import math
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest
from conftest import PATIENCE_S, wait_until

import caid

parser = pytest.importorskip("prometheus_client.parser")
ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = sys.executable, "-c", "import caid.exporter; caid.exporter.main()"
DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"


def needs(program):
    return pytest.mark.skipif(not shutil.which(program), reason=f"there is no {program} (Debian: prometheus)")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    """What is served there; None while nobody listens."""
    with contextlib.suppress(ConnectionRefusedError, urllib.error.URLError):
        with urllib.request.urlopen(url, timeout=20) as reply:
            return reply.read().decode()


@contextlib.contextmanager
def running(*command):
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def exporter(address, *options):
    """Its URL, once it serves."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with running(*PROGRAM, f"--socket={address}", f"--port={port}", *options):
        wait_until(lambda: get(url))
        yield url


def scrape(url):
    """Values by name and labels."""
    families = parser.text_string_to_metric_families(get(url))
    samples = [sample for family in families for sample in family.samples]
    found = {(s.name, *sorted(s.labels.items())): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def named(found, name):
    return {key[1:]: value for key, value in found.items() if key[0] == name}


def test_figures_are_the_daemons(client, daemon):
    client.create("x", (1000,), "<f4").close()
    with pytest.raises(caid.NotFoundError):
        client.open("y")
    with exporter(daemon.address) as url:
        before = {(m.name, m.kind, m.outcome): m.value for m in client.metrics() if not m.name.startswith(("user_", "pool_"))}
        found = scrape(url)
        for metric in ("memory_bytes", "memory_allocated_bytes"):
            for labels, value in named(found, f"caid_{metric}").items():
                assert value == before[metric, dict(labels)["kind"], None]
        requests = named(found, "caid_requests_total")
        for method, outcome in (("create", "OK"), ("open", "NOT_FOUND")):
            assert requests[("method", method), ("outcome", outcome)] == before["requests_total", method, outcome] > 0
        (n,), (total,) = (named(found, f"caid_turn_seconds_{what}").values() for what in ("count", "sum"))
        assert named(found, "caid_turn_seconds_bucket")[(("le", "+Inf"),)] == n > 0 and 0 < total < 60
        assert found[("caid_up",)] == 1
        assert not [key for key in found if "uid" in dict(key[1:]) or "pool" in dict(key[1:])]
    client.unlink("x")


def test_uids_and_pools_if_asked_for(client, daemon):
    with exporter(daemon.address, "--uids", "--pools") as url:
        found = scrape(url)
    user = next(user for user in client.users())
    assert named(found, "caid_user_time_seconds_total")[(("uid", str(user.uid)),)] > 0
    assert named(found, "caid_pool_arrays")[(("pool", client.status().pool),)] == 0


@needs("promtool")
@pytest.mark.parametrize("options", [(), ("--uids", "--pools")])
def test_promtool_finds_no_fault(daemon, options):
    with exporter(daemon.address, *options) as url:
        command = ["promtool", "check", "metrics"]
        done = subprocess.run(command, input=get(url), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_daemon_goes_and_comes(tmp_path):
    """It is away first, then killed, and the exporter goes on."""
    address = tmp_path / "caid.sock"
    command = [pathlib.Path(caid.__file__).parent / "bin/caid", "--foreground", "--driver=soft", f"--socket={address}"]

    def up(url):
        found = scrape(url)
        assert len(found) == 1 or found[("caid_up",)] == 1
        return found[("caid_up",)]

    with exporter(address) as url:
        assert up(url) == 0
        for _ in range(2):
            with running(*command) as daemon:
                wait_until(lambda: up(url) == 1)
                daemon.send_signal(signal.SIGKILL)
            assert up(url) == 0


def test_who_says_nothing_keeps_nobody_out(daemon):
    """Of such connections few are served, and each ends in time."""
    with exporter(daemon.address) as url, contextlib.ExitStack() as silent:
        at = urllib.parse.urlparse(url)
        sockets = [
            silent.enter_context(socket.create_connection((at.hostname, at.port), PATIENCE_S))
            for _ in range(40)
        ]
        assert scrape(url)[("caid_up",)] == 1
        assert len(select.select(sockets, [], [], 0)[0]) > 40 - 16
        assert not any(s.recv(1) for s in sockets)


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::", "example"])
def test_only_loopback(address):
    command = [*PROGRAM, f"--address={address}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and address in done.stderr


# ---- the dashboard ----


def queries():
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [target["expr"].replace("$__rate_interval", "5s") for panel in panels for target in panel["targets"]]


def write_some(client):
    """Traffic of all kinds: hand-offs with a wait, refusals, a client that dies."""
    with client.create("traffic", (1000,), "<f4") as a, client.stream() as stream:
        with a.write(stream):
            pass
        with a.read(stream):
            pass
    client.unlink("traffic")
    with contextlib.suppress(caid.NotFoundError):
        client.open("traffic")


@needs("prometheus")
def test_every_query_of_the_dashboard_has_data(client, daemon, tmp_path):
    port, config = free_port(), tmp_path / "prometheus.yml"
    base = f"http://127.0.0.1:{port}"
    with exporter(daemon.address, "--uids", "--pools") as url:
        config.write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            f"scrape_configs: [{{job_name: caid, static_configs: [{{targets: ['{urllib.parse.urlparse(url).netloc}']}}]}}]\n"
        )
        with running("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data",
                     f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"):  # fmt: skip
            left = queries()
            assert len(left) > 20

            def answered(query):
                reply = json.loads(get(f"{base}/api/v1/query?query={urllib.parse.quote(query)}") or "{}")
                assert reply.get("status") in (None, "success"), (query, reply)
                values = [float(result["value"][1]) for result in reply.get("data", {}).get("result", ())]
                return values and all(map(math.isfinite, values))

            def all_answered():
                write_some(client)
                left[:] = [query for query in left if not answered(query)]
                return not left

            wait_until(all_answered, lambda: left)
            draw = [sys.executable, ROOT / "docs/pictures/dashboard.py", base, "30"]
            page = subprocess.run(draw, check=True, capture_output=True, text=True).stdout
    assert page.count("<svg") == page.count("</section>") > 10 and "no data" not in page
