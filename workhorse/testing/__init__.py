"""What tests of programs and of lanes are built from.

Nothing is imported before it is asked for: `LaneSuite` needs pytest, other parts do not.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workhorse.testing.lane_suite import LaneSuite

__all__ = ["LaneSuite"]


def __getattr__(name: str) -> Any:
    if name == "LaneSuite":
        if "workhorse.testing.lane_suite" not in sys.modules:
            import pytest

            # Asserts explain themselves only where pytest knows of the module before its import.
            pytest.register_assert_rewrite("workhorse.testing.lane_suite")
        from workhorse.testing.lane_suite import LaneSuite

        return LaneSuite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
