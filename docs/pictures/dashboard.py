# SPDX-License-Identifier: Apache-2.0
"""Draws docs/grafana-dashboard.json as a page of HTML, by what a Prometheus that scrapes caid-exporter answers.

usage: dashboard.py PROMETHEUS SECONDS >PAGE, where PROMETHEUS is its URL, and the last SECONDS are shown
"""

import html
import json
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

DASHBOARD = pathlib.Path(__file__).resolve().parents[1] / "grafana-dashboard.json"
WIDTH, HEIGHT, POINTS = 560, 150, 120
COLOURS = "#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0"
STYLE = """body{background:#181b1f;color:#ccccdc;font:13px sans-serif;margin:16px;display:grid;grid-template-columns:1fr 1fr;gap:12px}
h1{grid-column:1/3;margin:0}section{background:#22252b;padding:8px 12px;border-radius:4px}h2{font-size:14px;margin:0 0 6px}
span{margin-right:12px;white-space:nowrap}i{display:inline-block;width:10px;height:3px;margin-right:4px;vertical-align:middle}text{fill:#8e8ea0;font-size:11px}"""


def ask(prometheus, query, seconds):
    """The series that a query has: (labels, [(time, value)])."""
    end, step = time.time(), max(1, seconds // POINTS)
    query = query.replace("$__rate_interval", f"{max(5, 4 * step)}s")
    params = urllib.parse.urlencode({"query": query, "start": end - seconds, "end": end, "step": step})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{params}") as reply:
        result = json.load(reply)["data"]["result"]
    return [(s["metric"], [(t, float(v)) for t, v in s["values"] if v not in ("NaN", "+Inf")]) for s in result]


def figure(value, unit):
    """As people read it."""
    if unit == "bytes":
        for prefix in ("", "Ki", "Mi", "Gi"):
            if value < 1024 or prefix == "Gi":
                return f"{value:.3g} {prefix}B"
            value /= 1024
    if unit == "s":
        return f"{value * 1e6:.3g} µs"
    return f"{value:.1%}" if unit == "percentunit" else f"{value:.3g}" + ("/s" if unit in ("reqps", "ops") else "")


def line(points, start, seconds, top, colour):
    at = (f"{(t - start) / seconds * WIDTH:.1f},{HEIGHT - v / top * HEIGHT:.1f}" for t, v in points)
    return f'<polyline points="{" ".join(at)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def draw(panel, prometheus, seconds):
    unit, series = panel["fieldConfig"]["defaults"]["unit"], []
    for target in panel["targets"]:
        for labels, points in ask(prometheus, target["expr"], seconds):
            legend = re.sub(r"{{(\w+)}}", lambda m, labels=labels: labels.get(m[1], ""), target["legendFormat"])
            if points:
                series.append((legend, points))
    top = max((v for _, points in series for _, v in points), default=0) or 1
    start = time.time() - seconds
    lines, legends = [], []
    for i, (legend, points) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        lines.append(line(points, start, seconds, top, colour))
        legends.append(f'<span><i style="background:{colour}"></i>{html.escape(legend)}: {figure(points[-1][1], unit)}</span>')
    return f"""<section><h2>{html.escape(panel["title"])}</h2>
<svg viewBox="0 -14 {WIDTH} {HEIGHT + 16}"><text x="0" y="-3">{figure(top, unit)}</text>
<path d="M0 0H{WIDTH}M0 {HEIGHT}H{WIDTH}" stroke="#3a3d45"/>{"".join(lines)}</svg>
<div>{" ".join(legends) or "no data"}</div></section>"""


def main(prometheus, seconds):
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    panels = (draw(panel, prometheus, int(seconds)) for panel in dashboard["panels"])
    title = html.escape(dashboard["title"])
    print(f'<!DOCTYPE html><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>', *panels, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
