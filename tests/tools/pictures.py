# SPDX-License-Identifier: Apache-2.0
"""Makes docs/map.svg, docs/map.png, docs/top.svg, docs/top.png, docs/models.svg and docs/dashboard.png anew: caidctl map,
caidctl top, a run of examples/many_models.py, and the dashboard of a Prometheus that scrapes caid-exporter, as they are on the software driver, of some
processes that share models. What draws a terminal is tmux, and a headless Chromium the SVG and the dashboard.

usage: pictures.py BUILD
"""
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import xml.sax.saxutils

import pyte

import caid

DOCS = pathlib.Path(__file__).parents[2] / "docs"
ROWS, COLUMNS = 26, 124
SCRAPED_S = 60  # of the dashboard
SCRAPES = "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs: [{{job_name: caid, static_configs: [{{targets: ['{}']}}]}}]\n"
CONFIG = """
[pool "models"]
"""
# Each process: its name, then what it runs.
LOADER = """
for name, gib in (("llama-3-8b", 15), ("mistral-7b", 13), ("whisper", 3)):
    keep.append(c.create(f"{name}/weights", (gib << 29,), "<f2", pool="models"))
for i in range(12):
    keep.append(c.create(f"tokens/{i}", ((i * 7 % 5 + 1) << 17,), "<i4", pool="models"))
deferral = c.defer_cleanup()
deferral.__enter__()
for i in range(1, 12, 3):
    c.unlink(f"tokens/{i}", pool="models")
    keep[3 + i].close()
keep.append(c.create("batch", (1 << 20,), "<f4", pool="models"))
"""
WORKER = """
keep.append(c.open("llama-3-8b/weights", pool="models"))
keep.append(c.create(f"kv/{sys.argv[1]}", (6 << 30,), "|u1"))
keep.append(c.open("batch", "rw", pool="models"))
keep.append(c.empty((256, 1024), "<f4"))
"""
PROGRAM = """
import os, sys, threading, time
import caid
c, keep = caid.connect(name=sys.argv[1]), []
{body}
print("ready", flush=True)
{then}
sys.stdin.read()
"""
SERVER = """
def serve():
    while True:
        with c.open("whisper/weights", pool="models") as a, a.read():
            time.sleep(0.01)
threading.Thread(target=serve, daemon=True).start()
"""
READS = "with keep[2].read():\n    sys.stdin.read()"
WRITES = "with keep[2].write():\n    pass"


@contextlib.contextmanager
def scene():
    """A daemon, and who uses it."""
    with caid.LocalDaemon(driver="soft", devices=2, memory="80G", config=CONFIG) as daemon:
        processes = []
        for name, body, then in (("loader", LOADER, ""), ("worker-0", WORKER, READS), ("worker-1", WORKER, READS),
                                 ("trainer", WORKER, WRITES), ("server", SERVER, "")):
            # pylint: disable-next=consider-using-with
            process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(body=body, then=then), name],
                                       env={**os.environ, **daemon.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            processes.append(process)
            if process.stdout.readline() != b"ready\n":
                sys.exit(f"{name} did not start")
        try:
            yield daemon
        finally:
            for process in processes:
                process.kill()
                process.wait()


def capture(caidctl, env):
    """The screen of caidctl top, with its escapes, once it has some rates."""
    with tempfile.TemporaryDirectory() as folder:
        tmux = ["tmux", "-S", f"{folder}/s", "-f", "/dev/null"]
        subprocess.run([*tmux, "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), f"{caidctl} top --delay=0.5"],
                       env=env, check=True)
        try:
            time.sleep(3)
            return subprocess.run([*tmux, "capture-pane", "-e", "-p"], stdout=subprocess.PIPE, check=True).stdout
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)


def draw_terminal(text):
    """An SVG of what tmux has captured."""
    screen = pyte.Screen(COLUMNS, ROWS)
    pyte.ByteStream(screen).feed(text.rstrip(b"\n").replace(b"\n", b"\r\n"))
    width, height = COLUMNS * 8.43 + 24, ROWS * 18 + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">',
             "<style>text { font: 14px 'DejaVu Sans Mono', ui-monospace, monospace; white-space: pre; fill: #e6edf3 }</style>",
             '<rect width="100%" height="100%" rx="6" fill="#0d1117"/>']
    for row, line in enumerate(screen.display):
        cell, y = screen.buffer[row][0], 26 + row * 18
        if cell.reverse:
            parts.append(f'<rect x="12" y="{y - 14}" width="{width - 24:.0f}" height="18" fill="#30363d"/>')
        text = xml.sax.saxutils.escape(line.rstrip())
        if text:
            bold = ' font-weight="bold"' if cell.bold else ""
            parts.append(f'<text x="12" y="{y}"{bold} xml:space="preserve" '
                         f'textLength="{len(line.rstrip()) * 8.43:.1f}" lengthAdjust="spacing">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def size_of(svg):
    size = dict(part.split("=") for part in svg.read_text().split(">")[0].replace('"', "").split() if "=" in part)
    return size["width"], size["height"]


def photograph(page, png, width, height):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}",
                        f"--window-size={width},{height}", f"--screenshot={png}", page.as_uri()],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=True)


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def draw_dashboard(env):
    """What Prometheus has of a minute, by docs/pictures/dashboard.py."""
    exporter, prometheus = free_address(), free_address()
    export = "import caid.exporter; caid.exporter.main()"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        page = pathlib.Path(folder, "page.html")
        pathlib.Path(folder, "prometheus.yml").write_text(SCRAPES.format(exporter), "utf-8")
        for command in (
            [sys.executable, "-c", export, f"--port={exporter.split(':')[1]}", "--uids", "--pools"],
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={prometheus}", "--log.level=error"],
        ):  # fmt: skip
            process = stack.enter_context(subprocess.Popen(command, env=env))
            stack.callback(process.terminate)
        time.sleep(SCRAPED_S + 5)
        draw = [sys.executable, DOCS / "pictures" / "dashboard.py", f"http://{prometheus}", str(SCRAPED_S)]
        page.write_bytes(subprocess.run(draw, stdout=subprocess.PIPE, check=True).stdout)
        photograph(page, DOCS / "dashboard.png", 1200, 2050)


def draw_models():
    """A run of examples/many_models.py: a row for each model, of its requests by their time."""
    with tempfile.TemporaryDirectory() as folder:
        told = pathlib.Path(folder, "requests.json")
        subprocess.run([sys.executable, DOCS.parent / "examples" / "many_models.py", "240", "64", told], check=True,
                       env={**os.environ, "CAID_CUDA_DRIVER": "soft"}, stdout=subprocess.DEVNULL)
        answers = [json.loads(line) for line in told.read_text("utf-8").splitlines()]
    end = max(a["at"] + a["took"] for a in answers)
    rows = 1 + max(a["model"] for a in answers)
    height = rows * 22 + 70
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="13">',
             f'<rect width="900" height="{height}" fill="#ffffff"/><g fill="#222222">']
    for row in range(rows):
        there = [a["was_there"] for a in answers if a["model"] == row]
        parts.append(f'<text x="12" y="{row * 22 + 27}">model-{row:02}</text>'
                     f'<text x="770" y="{row * 22 + 27}">there {sum(there)} of {len(there)} times</text>')
    for a in sorted(answers, key=lambda a: a["was_there"]):
        x, width = 90 + a["at"] / end * 660, max(a["took"] / end * 660, 2)
        fill = "#2a7f4f" if a["was_there"] else "#d9822b"
        parts.append(f'<rect x="{x:.1f}" y="{a["model"] * 22 + 15}" width="{width:.1f}" height="16" fill="{fill}"/>')
    for x, fill, what, was_there in ((90, "#2a7f4f", "it was there: opened in", True), (420, "#d9822b", "it was loaded, or waited for, in", False)):
        took = statistics.median(a["took"] for a in answers if a["was_there"] == was_there)
        parts.append(f'<rect x="{x}" y="{height - 43}" width="12" height="12" fill="{fill}"/>'
                     f'<text x="{x + 18}" y="{height - 32}">{what} {took * 1000:.1f} ms (median)</text>')
    parts.append(f'<text x="90" y="{height - 10}">{len(answers)} requests in {end:.1f} s; a bar is as long as opening took</text></g></svg>\n')
    (DOCS / "models.svg").write_text("\n".join(parts), "utf-8")


def main():
    caidctl = pathlib.Path(sys.argv[1]).resolve() / "bin" / "caidctl"
    with scene() as daemon:
        env = {**os.environ, **daemon.env}
        subprocess.run([caidctl, "map", f"--svg={DOCS / 'map.svg'}"], env=env, check=True)
        (DOCS / "top.svg").write_text(draw_terminal(capture(caidctl, env)), "utf-8")
        draw_dashboard(env)
    draw_models()
    for name in ("map", "top"):
        photograph(DOCS / f"{name}.svg", DOCS / f"{name}.png", *size_of(DOCS / f"{name}.svg"))


if __name__ == "__main__":
    main()
