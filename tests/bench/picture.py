# SPDX-License-Identifier: Apache-2.0
"""Draws latencies: a row for each way, on an axis of 1, 2, 5, 10, ... us. A line from the first to the 99th of a hundred,
a bar that has the half of them, the median in it."""

import html
import math

LEFT, WIDTH, ROW, TOP = 190, 520, 30, 52
OURS, OTHERS = "#2a7f4f", "#8a8a8a"


def ticks(least, most):
    """Those of the axis: the last one before `least` to the first one after `most`."""
    all_of = [m * 10**e for e in range(-1, 7) for m in (1, 2, 5)]
    first = max([t for t in all_of if t <= least], default=all_of[0])
    last = min([t for t in all_of if t >= most], default=all_of[-1])
    return [t for t in all_of if first <= t <= last]


def quantile(ordered, part):
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def drawing(title, rows):
    """rows: pairs of a name, which has "caid" or "channel" in it where it is ours, and its latencies in us."""
    found = [(name, [quantile(sorted(us), q) for q in (0.01, 0.25, 0.5, 0.75, 0.99)]) for name, us in rows]
    axis = ticks(min(q[0] for _, q in found), max(q[-1] for _, q in found))
    span = math.log(axis[-1] / axis[0]) or 1

    def x(us):
        return LEFT + WIDTH * math.log(us / axis[0]) / span

    bottom = TOP + ROW * len(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {bottom + 30}" font-family="sans-serif" font-size="13" role="img">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="760" height="{bottom + 30}" fill="#ffffff"/><g fill="#222222"><text x="12" y="26" font-weight="bold">{html.escape(title)}</text>',
    ]
    for tick in axis:
        parts.append(f'<path d="M{x(tick):.1f} {TOP - 8}V{bottom}" stroke="#e4e4e4"/><text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for i, (name, (least, low, median, high, most)) in enumerate(found):
        y, colour = TOP + ROW * i, OURS if "caid" in name or "channel" in name else OTHERS
        parts.append(
            f'<text x="12" y="{y + 15}">{html.escape(name)}</text><path d="M{x(least):.1f} {y + 10}H{x(most):.1f}" stroke="{colour}" stroke-width="2"/>'
            f'<rect x="{x(low):.1f}" y="{y + 2}" width="{max(x(high) - x(low), 3):.1f}" height="16" fill="{colour}"/>'
            f'<path d="M{x(median):.1f} {y}V{y + 20}" stroke="#222222" stroke-width="2"/><text x="{x(most) + 6:.1f}" y="{y + 15}">{median:.1f}</text>'
        )
    return "\n".join([*parts, "</g></svg>", ""])


def save(path, title, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write(drawing(title, rows))
    print(f"the picture: {path}")
