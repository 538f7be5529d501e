"""Small multiples as an SVG, for light and dark pages: plain text in, plain text out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

COLOURS: Final = 6
_WIDTH, _HEIGHT = 380, 210
_GAP, _MARGIN = 20, 24
_COLUMNS: Final = 3
_HEAD: Final = 84
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 50, 26
_STYLE: Final = """
svg { --page: #ffffff; --ink: #1f2328; --soft: #656d76; --grid: #e4e7eb; --shade: #f6f8fa;
  --c0: #1f6feb; --c1: #d1620b; --c2: #11866f; --c3: #a3359b; --c4: #8c6d00; --c5: #8b949e;
  --f0: #d1242f; --f1: #1f6feb; --f2: #8c6d00; }
@media (prefers-color-scheme: dark) {
  svg { --page: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #262c36; --shade: #151b23;
    --c0: #58a6ff; --c1: #f0883e; --c2: #3fb99a; --c3: #d67fd0; --c4: #d4b106; --c5: #7d8590;
    --f0: #ff7b72; --f1: #58a6ff; --f2: #d4b106; } }
text { font: 11px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--soft); }
.page { fill: var(--page); } .shade { fill: var(--shade); }
.title { font-size: 19px; font-weight: 600; fill: var(--ink); } .sub { font-size: 12px; }
.name { font-size: 12.5px; font-weight: 600; fill: var(--ink); }
.end { text-anchor: end; } .mid { text-anchor: middle; }
.grid { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke-width: 1.4; stroke-linejoin: round; stroke-linecap: round; }
.f0 { stroke: var(--f0); } .f1 { stroke: var(--f1); } .f2 { stroke: var(--f2); }
"""


@dataclass(frozen=True)
class Line:
    """A series with its label; None breaks it: there was nothing to see."""

    label: str
    points: list[tuple[float, float | None]]
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """One of the small plots."""

    title: str
    unit: str
    lines: list[Line]
    log: bool = False
    floor: float = 0.0
    """Where a plain scale begins, at most."""


@dataclass(frozen=True)
class Picture:
    """All of it. Times are seconds from the begin."""

    title: str
    subtitle: str
    seconds: float
    panels: list[Panel]
    marks: list[tuple[float, int]] = field(default_factory=list)
    """When something was broken, and of which kind: an index into `kinds`."""
    kinds: list[str] = field(default_factory=list)


def thin(
    points: Sequence[tuple[float, float | None]],
    most: int = 180,
    of: Callable[[list[float]], float] = statistics.median,
) -> list[tuple[float, float | None]]:
    """Return fewer points: each stands for several; a gap stays one where all of them are gaps."""
    size = -(-len(points) // most)
    if size <= 1:
        return list(points)
    found: list[tuple[float, float | None]] = []
    for at in range(0, len(points), size):
        some = points[at : at + size]
        values = [value for _, value in some if value is not None]
        found.append((some[len(some) // 2][0], of(values) if values else None))
    return found


def draw(picture: Picture) -> str:
    """Return the picture as SVG."""
    rows = -(-len(picture.panels) // _COLUMNS)
    width = 2 * _MARGIN + _COLUMNS * _WIDTH + (_COLUMNS - 1) * _GAP
    height = _HEAD + rows * (_HEIGHT + _GAP) + _MARGIN - _GAP
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(picture.title)}">'
    )
    parts = [
        opening,
        f"<style>{_STYLE}{_colours()}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="title" x="{_MARGIN}" y="34">{escape(picture.title)}</text>',
        f'<text class="sub" x="{_MARGIN}" y="54">{escape(picture.subtitle)}</text>',
        *_kinds(picture),
    ]
    for nth, panel in enumerate(picture.panels):
        x = _MARGIN + (nth % _COLUMNS) * (_WIDTH + _GAP)
        y = _HEAD + (nth // _COLUMNS) * (_HEIGHT + _GAP)
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(panel, picture)
        parts.append("</g>")
    parts.append("</svg>\n")
    return "\n".join(parts)


def from_json(kept: dict[str, Any]) -> Picture:
    """Return a picture from what `dataclasses.asdict` made of it, by way of JSON."""
    panels = [
        Panel(
            each["title"], each["unit"],
            [
                Line(line["label"], [(at, value) for at, value in line["points"]], line["colour"])
                for line in each["lines"]
            ],
            each["log"], each["floor"],
        )
        for each in kept["panels"]
    ]  # fmt: skip
    marks = [(at, kind) for at, kind in kept["marks"]]
    return Picture(kept["title"], kept["subtitle"], kept["seconds"], panels, marks, kept["kinds"])


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return round numbers from `low` or below to `high` or above."""
    if high <= low:
        high = low + 1
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(step * each, 10) for each in range(first, last + 1)]


def _colours() -> str:
    return "".join(
        f".c{each} {{ stroke: var(--c{each}); }} .t{each} {{ fill: var(--c{each}); }}"
        for each in range(COLOURS)
    )


def _kinds(picture: Picture) -> list[str]:
    parts, x = [], float(_MARGIN)
    if picture.kinds:
        parts.append(f'<text x="{x}" y="72">what was broken, at the foot of each plot:</text>')
        x += 240
    for kind, name in enumerate(picture.kinds):
        parts.append(f'<path class="f{kind}" stroke-width="2" d="M{x} 63v10"/>')
        parts.append(f'<text x="{x + 7}" y="72">{escape(name)}</text>')
        x += 24 + 6.5 * len(name)
    return parts


def _panel(panel: Panel, picture: Picture) -> list[str]:
    inner, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    values = [value for line in panel.lines for _, value in line.points if value is not None]
    marks = _log_ticks(values) if panel.log else _plain_ticks(values, panel.floor)
    low, high = marks[0], marks[-1]

    def place_x(at: float) -> float:
        return round(_LEFT + inner * min(1.0, max(0.0, at / picture.seconds)), 1)

    def place_y(value: float) -> float:
        if panel.log:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return round(_TOP + tall * (1 - share), 1)

    unit = f" ({panel.unit})" if panel.unit else ""
    parts = [
        f'<rect class="shade" x="{_LEFT}" y="{_TOP}" width="{inner}" height="{tall}"/>',
        f'<text class="name" x="0" y="14">{escape(panel.title + unit)}</text>',
    ]
    for mark in marks:
        y = place_y(mark)
        parts.append(f'<path class="grid" d="M{_LEFT} {y}h{inner}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 5}" y="{y + 4}">{_short(mark)}</text>')
    minutes = picture.seconds / 60
    for minute in ticks(0, minutes, 6):
        if minute <= minutes * 1.001:
            x = place_x(minute * 60)
            text = f"{minute:g}" + (" min" if minute == 0 else "")
            parts.append(f'<text class="mid" x="{x}" y="{_HEIGHT - 10}">{text}</text>')
    for kind in range(len(picture.kinds)):
        at = "".join(
            f"M{place_x(when)} {_TOP + tall - 4}v8" for when, which in picture.marks
            if which == kind
        )  # fmt: skip
        if at:
            parts.append(f'<path class="f{kind}" stroke-width="1" opacity="0.75" d="{at}"/>')
    x = 0.0
    for line in panel.lines:
        parts.append(
            f'<text class="t{line.colour}" x="{x:.0f}" y="32">&#9644; {escape(line.label)}</text>'
        )
        x += 24 + 6.0 * len(line.label)
        path = _path([(place_x(at), None if v is None else place_y(v)) for at, v in line.points])
        if path:
            parts.append(f'<path class="line c{line.colour}" d="{path}"/>')
    return parts


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    words, joined = [], False
    for x, y in points:
        if y is None:
            joined = False
            continue
        words.append(f"{'L' if joined else 'M'}{x:g} {y:g}")
        joined = True
    return "".join(words)


def _plain_ticks(values: Sequence[float], floor: float) -> list[float]:
    return ticks(min(floor, min(values, default=0)), max(values, default=1) or 1)


def _log_ticks(values: Sequence[float]) -> list[float]:
    above = [value for value in values if value > 0] or [1.0]
    low = math.floor(math.log10(min(above)))
    high = max(math.ceil(math.log10(max(above))), low + 1)
    return [10.0**each for each in range(low, high + 1)]


def _short(value: float) -> str:
    for size, word in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{word}"
    return f"{value:g}"
