"""A line chart as SVG text, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 40, 50
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#9c755f")
INK = "#888888"
Series = Mapping[str, Sequence[tuple[float, float]]]


def line_chart(title: str, x_label: str, y_label: str, series: Series) -> str:
    """Points of every series by its name; x is drawn by its logarithm and must be positive."""
    points = [point for line in series.values() for point in line]
    xs, top = sorted({x for x, _ in points}), nice_ceiling(max(y for _, y in points))
    low, high = math.log2(xs[0]), math.log2(xs[-1])

    def x_of(x: float) -> float:
        part = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y_of(y: float) -> float:
        return HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    parts = [text(LEFT, 22, title, size=15)]
    for i in range(6):
        y = y_of(top * i / 5)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{INK}" opacity=".3"/>')
        parts.append(text(LEFT - 8, y + 4, f"{top * i / 5:g}", anchor="end"))
    parts += [text(x_of(x), HEIGHT - BOTTOM + 18, f"{x:g}", anchor="middle") for x in xs]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, anchor="middle"))
    parts.append(text(8, TOP - 6, y_label))
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [(x_of(x), y_of(y)) for x, y in line]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(text(WIDTH - RIGHT + 16, TOP + 14 + 20 * number, name, colour=colour))
    return document(parts)


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... from `value` on."""
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def text(
    x: float, y: float, content: str, *, anchor: str = "start", size: int = 12, colour: str = INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{escape(content)}</text>'
    )


def document(parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
