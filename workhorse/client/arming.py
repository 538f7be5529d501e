"""Runs that others come after are watched from the commit of these on; their end frees them.

Between the enqueue and this, a run that is come after may end unseen. Whoever enqueued looks at
once; where he does not get to it, maintenance does within a second.

Source: docs/design.md, section 8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.errors import WorkhorseError
from workhorse.store.base.database import Store
from workhorse.store.durable.freeing import arm
from workhorse.telemetry import get_logger

_log = get_logger("client")


class Arming:
    """Has predecessors watched; never raises, since the runs that come after them are committed."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def arm(self, predecessors: Sequence[RunId]) -> list[Hint]:
        """Have runs watched; return the wakeups for those that come after them and need not wait.

        One bounded pass: what is more is left to maintenance.
        """
        if not predecessors:
            return []
        try:
            return self._store().run(arm, sources=list(predecessors)).hints
        except WorkhorseError as error:
            _log.warning(
                "runs that others come after are not watched yet (%s); maintenance does it",
                type(error).__name__,
            )
            return []
