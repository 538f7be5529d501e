"""Says what is wrong with the lane: one plain line when it is found, and again when it changes.

Two look: a probe at the start, which tries without any effect what a worker does with its queues,
and the receives themselves. What both find is said once.

Source: docs/doctor.md
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from workhorse.domain.findings import Finding
from workhorse.ports import Lane, LaneError, probe_of
from workhorse.runtime.base.pace import Pace
from workhorse.telemetry import get_logger

_log = get_logger("worker")

SAID_AGAIN_MS: Final = 600_000
"""How often a trouble that stays is said again."""
_FLAPS_MS: Final = 60_000
"""A trouble that went and comes again within this time was said a moment ago."""
_PROBE_AGAIN_MS: Final = 60_000
_PROBE_AGAIN_AT_MOST_MS: Final = 600_000

_Trouble = tuple[str, str | None]
"""A code, or an error's type; and the permission that is missing."""


@dataclass(slots=True)
class _Queue:
    """What stands in the way of one queue."""

    probed: frozenset[_Trouble] = frozenset()
    received: frozenset[_Trouble] = frozenset()
    said_at: dict[_Trouble, float] = field(default_factory=dict)
    open: set[_Trouble] = field(default_factory=set)
    """What was said, and not yet that it is over."""

    @property
    def now(self) -> frozenset[_Trouble]:
        return self.probed | self.received


class LaneWatch:
    """Keeps what was said of the lane; safe in threads.

    Args:
        queues: The queues that are served.
        ended: Set when nothing more is to be claimed, nor said.
    """

    def __init__(
        self, lane: Lane, queues: Sequence[str], *, ended: threading.Event, pace: Pace
    ) -> None:
        self._lane = lane
        self._ended = ended
        self._pace = pace
        self._lock = threading.Lock()
        self._queues = {queue: _Queue() for queue in queues}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Probe the queues in the background, where the lane has a probe; holds up nobody."""
        if probe_of(self._lane) is not None:
            # Not one of the worker's loops: a probe may take seconds, and no stop waits for it.
            name = "workhorse-lane-probe"
            self._thread = threading.Thread(target=self._probe_all, name=name, daemon=True)
            self._thread.start()

    def failed(self, queue: str, error: Exception) -> None:
        """Take note that a receive failed."""
        if isinstance(error, LaneError):
            finding = error.finding
            trouble, said = _named(finding), finding.sentence
        else:
            trouble = (type(error).__name__, None)
            said = f"queue {queue}: the lane failed ({type(error).__name__}: {error})"
        self._note(queue, {trouble: f"{said}; meanwhile the queue is scanned"}, probe=False)

    def answered(self, queue: str) -> None:
        """Take note that a receive went well."""
        if self._queues[queue].received:  # looked at without the lock: only receives write it
            self._note(queue, {}, probe=False)

    def probed(self, queue: str, found: Sequence[Finding]) -> None:
        """Take note of what a probe found."""
        troubles = {_named(each): each.sentence for each in found if each.severity.bad}
        self._note(queue, troubles, probe=True)

    # -- parts -----------------------------------------------------------------------------------

    def _note(self, queue: str, troubles: dict[_Trouble, str], *, probe: bool) -> None:
        if self._ended.is_set():
            return  # a lane that is being closed is no trouble
        now = self._pace.now_ms()
        with self._lock:
            state = self._queues[queue]
            before = state.now
            if probe:
                state.probed = frozenset(troubles)
            else:
                state.received = frozenset(troubles)
            to_say = [
                said
                for trouble, said in troubles.items()
                if self._is_due(state, trouble, now, known=trouble in before)
            ]
            over = (before - state.now) & state.open
            state.open -= over
        for said in to_say:
            _log.warning("%s", said)
        for code, action in sorted(over, key=str):
            _log.info("queue %s: no longer %s%s", queue, code, f" ({action})" if action else "")

    def _is_due(self, state: _Queue, trouble: _Trouble, now: float, *, known: bool) -> bool:
        """Answer whether a trouble is to be said now, and take note of that."""
        said_at = state.said_at.get(trouble)
        rest = SAID_AGAIN_MS if known and trouble in state.open else _FLAPS_MS
        if said_at is not None and now - said_at < rest:
            return False
        state.said_at[trouble] = now
        state.open.add(trouble)
        return True

    def _probe_all(self) -> None:
        probe = probe_of(self._lane)
        assert probe is not None  # noqa: S101 - `start` has looked
        rest = float(_PROBE_AGAIN_MS)
        while True:
            well = True
            for queue in self._queues:
                if self._ended.is_set():
                    return
                try:
                    found = probe(queue)
                except Exception:  # noqa: BLE001 - a lane of somebody's own; receives tell as well
                    _log.debug("queue %s: the lane's probe failed", queue, exc_info=True)
                    continue
                self.probed(queue, found)
                well = well and not found
            # What is well at the start is looked at no more: from here on the calls tell.
            if well or self._pace.pause(self._ended, rest):
                return
            rest = min(rest * 2, _PROBE_AGAIN_AT_MOST_MS)


def _named(finding: Finding) -> _Trouble:
    return finding.code.value, finding.action
