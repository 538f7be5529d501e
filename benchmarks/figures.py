"""Medians of rounds: how figures are put together, rounded and shown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

Rounds = dict[str, list[float]]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    return statistics.quantiles(sorted(values), n=1000, method="inclusive")[int(share * 1000) - 1]


def rounded(value: float) -> float:
    """Four digits say all that such a measurement knows."""
    return float(f"{value:.4g}")


def add(rounds: Rounds, figures: Mapping[str, float]) -> None:
    """Add what one round has measured."""
    for name, value in figures.items():
        rounds.setdefault(name, []).append(value)


def medians(rounds: Rounds) -> dict[str, float]:
    """Return each figure's median."""
    return {name: rounded(statistics.median(values)) for name, values in rounds.items()}


def shown(value: float | None) -> str:
    """Return a figure for a table; a dash where there is none."""
    return "-" if value is None else f"{rounded(value):,.10g}"
