"""Lines over logarithmic axes as SVG, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 760, 360
LEFT, TOP, BOTTOM, LEGEND = 64, 16, 44, 260
# Distinct on white and on black, and by more than their hue.
COLORS = ("#2f7ed8", "#d9822b", "#2e9e5b", "#c2476b", "#8a63c9", "#7d8a97", "#b39a1e", "#1fa3a8", "#a86a4a")
STYLE = (
    "text{fill:#24292f}.grid{stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}}"
)


class Series(NamedTuple):
    """A line: its name, and its points (x, y), both above 0."""

    name: str
    points: Sequence[tuple[float, float]]


def plot_lines(path: Path, series: Sequence[Series], x_name: str, y_name: str) -> None:
    """Write the lines, with a grid of powers of ten and a legend at the right."""
    x_low, x_high = _decades([x for line in series for x, _ in line.points])
    y_low, y_high = _decades([y for line in series for _, y in line.points])
    right = WIDTH - LEGEND
    low = HEIGHT - BOTTOM

    def x_at(x: float) -> float:
        return LEFT + (right - LEFT) * (math.log10(x) - x_low) / (x_high - x_low)

    def y_at(y: float) -> float:
        return low - (low - TOP) * (math.log10(y) - y_low) / (y_high - y_low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<style>{STYLE}</style>",
        f"<title>{escape(y_name)} by {escape(x_name)}</title>",
    ]
    for power in range(x_low, x_high + 1):
        x = x_at(10**power)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{low}"/>')
        parts.append(f'<text x="{x:.1f}" y="{low + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(y_low, y_high + 1):
        y = y_at(10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for number, line in enumerate(series):
        color = COLORS[number % len(COLORS)]
        points = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}"/>')
        parts += [
            f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{color}"/>' for x, y in line.points
        ]
        y = TOP + 12 + 20 * number
        parts.append(f'<rect x="{right + 16}" y="{y - 9}" width="12" height="10" fill="{color}"/>')
        parts.append(f'<text x="{right + 34}" y="{y}">{escape(line.name)}</text>')
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>'
    )
    parts.append(
        f'<text transform="translate(14 {(TOP + low) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>"
    )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten around values; two different ones."""
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)
