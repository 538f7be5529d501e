"""What tests of programs and of lanes are built from.

Nothing is imported before it is asked for: `LaneSuite` needs pytest, and a kit needs the database.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workhorse.client.replay_check import ReplayCheck as ReplayCheck
    from workhorse.client.replay_check import check_replay as check_replay
    from workhorse.errors import ReplayDivergenceError as ReplayDivergenceError
    from workhorse.store.base.clock import ManualClock as ManualClock
    from workhorse.testing.captured import SentWakeup as SentWakeup
    from workhorse.testing.crashes import Crash as Crash
    from workhorse.testing.crashes import CrashMissedError as CrashMissedError
    from workhorse.testing.kit import Kit as Kit
    from workhorse.testing.kit import NotAtRestError as NotAtRestError
    from workhorse.testing.lane_suite import LaneSuite as LaneSuite

_HOMES = {
    "Crash": "workhorse.testing.crashes",
    "CrashMissedError": "workhorse.testing.crashes",
    "Kit": "workhorse.testing.kit",
    "LaneSuite": "workhorse.testing.lane_suite",
    "ManualClock": "workhorse.store.base.clock",
    "NotAtRestError": "workhorse.testing.kit",
    "ReplayCheck": "workhorse.client.replay_check",
    "ReplayDivergenceError": "workhorse.errors",
    "SentWakeup": "workhorse.testing.captured",
    "check_replay": "workhorse.client.replay_check",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "LaneSuite" and home not in sys.modules:
        import pytest

        # Asserts explain themselves only where pytest knows of the module before its import.
        pytest.register_assert_rewrite(home)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
