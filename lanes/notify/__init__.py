"""Wakeups over PostgreSQL's LISTEN and NOTIFY.

Source: docs/adr/0019-notify-lane.md
"""

from lanes.notify.keeper import Timing
from lanes.notify.lane import NotifyLane

__all__ = ["NotifyLane", "Timing"]
