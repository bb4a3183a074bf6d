#!/usr/bin/env python3
"""Draws docs/figures/quality-by-bytes.svg: the loss of predictions against the bytes that a cache stores.

usage: readme_figure.py OUT.svg SWEEP.h5 ...

Reads kvdim/accuracy files. A method's points are joined in the order of their bytes; bars are 95 % intervals.
The SVG has colours for light and dark pages, and no scripts.
"""
import math
import sys

import h5py

METHODS = {  # name in the file: label, colour on a light page, colour on a dark page
    "zack": ("zack (dims)", "#0060a8", "#6cb6ff"),
    "fdc": ("fdc (dims)", "#8a6d00", "#d9b84a"),
    "h2o": ("h2o (tokens)", "#b3261e", "#ff8f87"),
    "kivi": ("kivi (bits)", "#00785a", "#4fd1a5"),
    "kvquant": ("kvquant (bits)", "#6b3fa0", "#c39bf0"),
    "palu+allot": ("palu + allot (dims and bits)", "#444444", "#dddddd"),
    "waterfill": ("waterfill (bits)", "#b5179e", "#ff8ae2"),
}
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 78, 18, 236, 62
LOW, HIGH = 1e-4, 1.0  # KL in nats


def rows(path):
    with h5py.File(path) as f:
        r = f["rows"]
        for i in range(len(r["method"])):
            name = r["method"][i].decode()
            if name in METHODS and r["cache_share"][i] < 1:
                yield name, r["cache_share"][i], r["kl"][i], r["kl_lo"][i], r["kl_hi"][i]


def x_of(share):
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(kl):
    kl = min(max(kl, LOW), HIGH)
    return TOP + (math.log10(HIGH / kl) / math.log10(HIGH / LOW)) * (HEIGHT - TOP - BOTTOM)


def main():
    out, points = sys.argv[1], {}
    for path in sys.argv[2:]:
        for name, *numbers in rows(path):
            points.setdefault(name, []).append(numbers)
    missing = [m for m in METHODS if m not in points]
    if missing:
        sys.exit(f"readme_figure.py: no rows of {', '.join(missing)} in the files")
    light = "".join(f".m{i}{{stroke:{c[1]};fill:{c[1]}}}" for i, c in enumerate(METHODS.values()))
    dark = "".join(f".m{i}{{stroke:{c[2]};fill:{c[2]}}}" for i, c in enumerate(METHODS.values()))
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           f'aria-label="KL divergence against the share of a 16-bit cache that is stored">',
           f"<style>text{{font:13px sans-serif;fill:#1f2328}}.a{{stroke:#8c959f;fill:none}}.g{{stroke:#d0d7de}}"
           f".l{{fill:none;stroke-width:1.8}}{light}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}"
           f".a{{stroke:#6e7681}}.g{{stroke:#30363d}}{dark}}}.l{{fill:none}}.t{{stroke:none}}</style>"]
    for k in range(-4, 1):
        y = y_of(10.0 ** k)
        svg.append(f'<path class="g" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                   f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** k:g}</text>')
    for k in range(0, 11, 2):
        x = x_of(k / 10)
        svg.append(f'<path class="g" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
                   f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{k * 10} %</text>')
    svg.append(f'<path class="a" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    for i, (name, (label, _, _)) in enumerate(METHODS.items()):
        line = sorted(points[name])
        below = [i for i, point in enumerate(line) if point[1] < LOW]
        line = line[:below[0] + 1] if below else line  # one segment leaves the figure at its foot
        path = "L".join(f"{x_of(s):.1f} {y_of(k):.1f}" for s, k, _, _ in line)
        svg.append(f'<path class="m{i} l" d="M{path}"/>')
        for s, k, lo, hi in line:
            if LOW <= k <= HIGH:
                svg.append(f'<path class="m{i}" d="M{x_of(s):.1f} {y_of(lo):.1f}V{y_of(hi):.1f}"/>'
                           f'<circle class="m{i} t" cx="{x_of(s):.1f}" cy="{y_of(k):.1f}" r="2.6"/>')
        y = TOP + 24 + 24 * i
        svg.append(f'<path class="m{i} l" d="M{WIDTH - RIGHT + 18} {y - 4}h24"/>'
                   f'<text x="{WIDTH - RIGHT + 50}" y="{y}">{label}</text>')
    svg.append(f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2}" y="{HEIGHT - 20}" text-anchor="middle">'
               "bytes stored, share of a 16-bit cache</text>"
               f'<text transform="translate(18 {TOP + (HEIGHT - TOP - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
               "KL divergence, nats per token</text></svg>")
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main()
