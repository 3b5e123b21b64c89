# SPDX-License-Identifier: Apache-2.0
"""``caid-exporter``: the daemon's metrics for Prometheus, see caid-exporter(8)."""

import argparse
import contextlib
import http.server
import ipaddress
import socket
import sys
import threading

try:
    from prometheus_client import CollectorRegistry, MetricsHandler
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as e:
    advice = "pip install 'caid[exporter]' (Debian: python3-prometheus-client)"
    raise ImportError(f"caid-exporter needs prometheus-client: {advice}", name="prometheus_client") from e

import caid

# Help texts of metrics whose names do not say what they count.
_HELP = {
    "requests_total": ("method", "Requests that were answered, and notifications"),
    "leases_total": ("kind", "Leases that were given: of arrays that were created, opened, sent and taken"),
    "deaths_total": ("kind", "Clients whose processes exited while they had arrays, pages or brackets"),
    "drops_total": ("kind", "Sets that were dropped to make room"),
    "fences_total": ("kind", "Brackets that ended with a fence for others to wait for"),
    "wait_ns_total": ("kind", "How long brackets that were let in had waited"),
    "time_ns_total": ("kind", "What the daemon's loop has spent on users"),
    "refusals_total": ("limit", "Refusals because a limit was reached"),
    "charged": ("resource", "What users are charged"),
}


def _family(families, metric):
    """Adds the metric to its family."""
    known = metric.name.removeprefix("user_").removesuffix("_bytes")
    kind, text = _HELP.get(known, ("kind", metric.name.replace("_", " ").capitalize()))
    labels = {kind: metric.kind, "outcome": metric.outcome, "device": metric.device, "pool": metric.pool}
    labels = {label: value for label, value in labels.items() if value is not None}
    if metric.name.startswith("user_"):
        labels["uid"] = str(metric.uid)
    name, value = f"caid_{metric.name}", metric.value
    if "_ns_" in name:
        name, value = name.replace("_ns_", "_seconds_"), value / 1e9
    make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = families.setdefault(name, make(name, f"{text}.", labels=list(labels)))
    family.add_metric(list(labels.values()), value)


def _turns(metrics):
    buckets, n = [], 0
    for metric in (metric for metric in metrics if metric.name == "turns"):
        n += metric.value
        buckets.append((str(metric.le_ns / 1e9) if metric.le_ns else "+Inf", n))
    (total,) = (metric.value / 1e9 for metric in metrics if metric.name == "turn_ns_sum")
    return HistogramMetricFamily("caid_turn_seconds", "Turns of the daemon's loop.", buckets, total)


class Collector:
    """Asks the daemon at each scrape. Figures of single users and pools are left out unless `prefixes` has them."""

    def __init__(self, socket, prefixes):
        self._socket, self._hidden = socket, ("turn", *{"user_", "pool_"}.difference(prefixes))
        self._lock, self._client = threading.Lock(), None

    def _ask(self):
        """The daemon's metrics; None while it is away: the next scrape connects anew."""
        with self._lock:
            try:
                if self._client is None:
                    self._client = caid.connect(
                        self._socket, name="caid-exporter", timeout=5, call_timeout=5, reconnect_timeout=0
                    )
                return self._client.metrics()
            except caid.Error:
                if self._client is not None:
                    self._client.close()
                self._client = None
                return None

    def collect(self):
        metrics, families = self._ask(), {}
        yield GaugeMetricFamily("caid_up", "Whether the daemon answers.", metrics is not None)
        for metric in metrics or ():
            if not metric.name.startswith(self._hidden):
                _family(families, metric)
        yield from families.values()
        if metrics:
            yield _turns(metrics)


class _Handler(MetricsHandler):
    timeout = 5  # seconds that a connection may be silent, or not read

    def do_GET(self):
        self.server.silent.pop(self.connection, None)
        super().do_GET()


class _Server(http.server.ThreadingHTTPServer):
    """Serves 16 connections at a time. One more takes the place of the oldest that has asked for nothing yet."""

    def __init__(self, address, port, handler):
        self.address_family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        self._free = threading.Semaphore(16)
        self.silent = {}
        super().__init__((str(address), port), handler)

    def process_request(self, request, client_address):
        if not self._free.acquire(blocking=False):
            for oldest in list(self.silent)[:1]:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._free.acquire()
        self.silent[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.silent.pop(request, None)
        super().shutdown_request(request)
        self._free.release()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # clients that hang up do not fill the log
            super().handle_error(request, client_address)


def main():
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(prog="caid-exporter", description="Serves caid's metrics to Prometheus.")
    parser.add_argument("--address", type=ipaddress.ip_address, default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=9974, help="default: 9974")
    parser.add_argument("--socket", help="the daemon's socket; default: as for any client")
    parser.add_argument("--uids", action="append_const", dest="of", const="user_", help="also figures of each uid")
    parser.add_argument("--pools", action="append_const", dest="of", const="pool_", help="also figures of each pool")
    parser.add_argument("--expose", action="store_true", help="serve other machines: --address need not be loopback")
    args = parser.parse_args()
    if not args.expose and not args.address.is_loopback:
        parser.error(f"{args.address} is not loopback: whoever reaches it reads the figures (--expose)")
    registry = CollectorRegistry()
    registry.register(Collector(args.socket, args.of or ()))
    _Server(args.address, args.port, _Handler.factory(registry)).serve_forever()
