"""How many calls to SQS things cost: tests hold the product to it, and docs/cost.md reckons so."""

from __future__ import annotations

from typing import Final

ALONE: Final = 3.0
"""A run whose wakeup travels alone: a send, a receive, a delete."""
TEN_AT_ONCE: Final = 0.35
"""A run of a busy fleet that is fed ten or more at a time, each with a wakeup of its own."""
BULK: Final = 0.05
"""A run of a bulk enqueue with one wakeup for ten."""
NEARLY_BUSY: Final = 1.2
"""A run of a fleet that is just not busy, fed ten at a time: the dearest that was found."""
IDLE_A_MINUTE: Final = 3.0
"""Receives of a worker that waits, for each queue."""
MAINTENANCE_A_MINUTE: Final = 2
"""Looks at a queue's length, for each queue."""
