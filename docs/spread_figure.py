"""Writes docs/spread.svg, the figure of the README: lines are theory, dots are the operator. Run it after a change.

python docs/spread_figure.py
"""

import math
from pathlib import Path

import numpy as np

import rootdk

KEYS, ROWS, DRAWS = 1024, 32, 16
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512)
# Rule, its name in words, colour on a light and on a dark page, where its name stands above (-) or below (+) the line.
CURVES = (
    ("sqrt", "q·k / √d_k", "#1a7f37", "#3fb950", -14),
    ("dk", "q·k / d_k", "#0969da", "#58a6ff", 26),
    ("none", "q·k, no scale", "#cf222e", "#ff7b72", -14),
)
LEFT, RIGHT, TOP, BOTTOM = 64.0, 616.0, 56.0, 286.0
CAPTION = "1: all keys alike; 0: one key takes all. Random q and k. Lines: theory; dots: measured"
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328; } .small { font-size: 12px; } .title { font-size: 16px; font-weight: 600; }
  .axis { stroke: #59636e; } .grid { stroke: #d1d9e0; } polyline { fill: none; stroke-width: 2.5; }
"""


def x_of(d_k: float) -> float:
    """Where a width stands: by its logarithm."""
    first, last = math.log(WIDTHS[0]), math.log(WIDTHS[-1])
    return LEFT + (RIGHT - LEFT) * (math.log(d_k) - first) / (last - first)


def y_of(share: float) -> float:
    """Where a share of the keys stands."""
    return BOTTOM - (BOTTOM - TOP) * share


def measured(rule: str) -> list[float]:
    """Effective keys / keys of random queries and keys, as the operator reads them, on average over rows."""
    rng = np.random.default_rng(0)
    shares = []
    for d_k in WIDTHS:
        query, key = rng.standard_normal((DRAWS, ROWS, d_k)), rng.standard_normal((DRAWS, KEYS, d_k))
        shares.append(float(rootdk.measure(query, key, key, scale=rule)[1].effective_keys.mean()) / KEYS)
    return shares


def figure() -> str:
    """The SVG, with colours for light and for dark pages."""
    light = "".join(f"  .{rule} {{ --c: {colour}; }}\n" for rule, _, colour, _, _ in CURVES)
    dark = "".join(f".{rule} {{ --c: {colour}; }} " for rule, _, _, colour, _ in CURVES)
    label = "The share of keys that attention uses, against d_k, under three scales"
    dark_page = "text { fill: #f0f6fc; } .axis { stroke: #9198a1; } .grid { stroke: #3d444d; }"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 340" role="img" aria-label="{label}">',
        f"<style>{STYLE}{light}  polyline {{ stroke: var(--c); }} circle, .name {{ fill: var(--c); }}",
        f"  @media (prefers-color-scheme: dark) {{ {dark_page} {dark}}}",
        "</style>",
        f'<text class="title" x="{LEFT:g}" y="22">The share of {KEYS} keys that attention really uses</text>',
        f'<text class="small" x="{LEFT:g}" y="40">{CAPTION}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = y_of(share)
        parts.append(f'<line class="grid" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" x="{LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{share:g}</text>')
    parts += [
        f'<text class="small" x="{x_of(d_k):.1f}" y="{BOTTOM + 18:g}" text-anchor="middle">{d_k}</text>'
        for d_k in WIDTHS
    ]
    parts.append(f'<line class="axis" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{BOTTOM:g}" y2="{BOTTOM:g}"/>')
    middle = (LEFT + RIGHT) / 2
    parts.append(
        f'<text x="{middle:g}" y="{BOTTOM + 40:g}" text-anchor="middle">d_k, the width of queries and keys</text>'
    )
    for rule, name, _, _, above in CURVES:
        predicted = rootdk.predict(WIDTHS, KEYS, rule).mean_effective_keys / KEYS
        points = " ".join(f"{x_of(d_k):.1f},{y_of(share):.1f}" for d_k, share in zip(WIDTHS, predicted, strict=True))
        parts.append(f'<g class="{rule}"><polyline points="{points}"/>')
        for d_k, share in zip(WIDTHS, measured(rule), strict=True):
            parts.append(f'<circle cx="{x_of(d_k):.1f}" cy="{y_of(share):.1f}" r="3.5"/>')
        at, height = 64, y_of(float(predicted[WIDTHS.index(64)]))
        parts.append(f'<text class="name" x="{x_of(at) + 12:.1f}" y="{height + above:.1f}">{name}</text></g>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    (Path(__file__).parent / "spread.svg").write_text(figure(), "utf-8", newline="\n")
