"""`MISSING`: what stands where there is no value, since null is one."""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal


class Missing(Enum):
    """The type of `MISSING`, which is its only member."""

    MISSING = "MISSING"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "MISSING"

    __str__ = __repr__


MISSING: Final = Missing.MISSING
"""There is no value: it is false, and no JSON value equals it."""
