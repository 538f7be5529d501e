"""The order of builds: what a deployment calls itself, and which of two is the older one.

Builds are compared as people number them: digits that stand together are a number, all else is
text. So `9` is before `10`, `2026.11.30-7` before `2026.11.30-10` and `v1.9` before `v1.10`; what
goes on is behind what ends there (`1.0` before `1.0.1`, and before `1.0-rc1` too).

A hash says nothing of when it was made. Those of git stand in an order, as any text does, but in
none that a deployment could go by.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile("([0-9]+)")


def build_order(build: str) -> tuple[str | int, ...]:
    """Return what builds are ordered by: texts and numbers in turn, a text first."""
    parts = _NUMBER.split(build)
    # Numbers stand at the odd places, so that no text is ever compared with a number.
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts))


def is_older(build: str, than: str) -> bool:
    """Say whether a build is older than another one; one that is not named is neither."""
    return bool(build and than) and build_order(build) < build_order(than)
