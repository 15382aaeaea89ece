"""Medians, ratios and the Markdown table they are printed in."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Better = Literal["more", "less", None]
BARE = "bare"


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity of a scenario; `math.inf` among its samples is "not within `limit`"."""

    name: str
    unit: str
    better: Better = None
    limit: float | None = None


@dataclass(slots=True)
class Samples:
    """What one server gave: the values of every run by the name of their figure."""

    values: dict[str, list[float]] = field(default_factory=dict)
    failure: str | None = None

    def add(self, name: str, *values: float) -> None:
        self.values.setdefault(name, []).extend(values)

    def median(self, name: str) -> float | None:
        values = self.values.get(name)
        return statistics.median(values) if values else None


def advantage(ours: float | None, other: float | None, better: Better) -> float | None:
    """How many times better ours is, above 1 if it is; None where that has no meaning."""
    if ours is None or other is None or better is None or math.inf in (ours, other):
        return None
    above, below = (ours, other) if better == "more" else (other, ours)
    return above / below if below > 0 else None


def longest_gap(times: Sequence[float], since: float) -> float:
    """The longest time without a piece of text, of what lies behind `since`; 0 where nothing does.

    A gap under way at `since` counts from its beginning.
    """
    gaps = [b - a for a, b in zip(times, times[1:], strict=False) if b >= since]
    return max(gaps, default=0.0)


def format_value(value: float | None, figure: Figure) -> str:
    if value is None:
        return "–"
    if value == math.inf:
        return "never" if figure.limit is None else f"> {figure.limit:g}"
    if value == int(value) or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def head(ours: str, others: Sequence[str]) -> str:
    names = ["", "figure", "unit", ours, *others, *(f"to {other}" for other in others)]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def row(
    label: str, figure: Figure, ours: str, others: Sequence[str], samples: Mapping[str, Samples]
) -> str:
    medians = {name: found.median(figure.name) for name, found in samples.items()}
    cells = [format_value(medians.get(name), figure) for name in (ours, *others)]
    for other in others:
        factor = advantage(medians.get(ours), medians.get(other), figure.better)
        cells.append("" if factor is None else f"{factor:.2f}")
    return f"| {' | '.join([label, figure.name, figure.unit, *cells])} |"
