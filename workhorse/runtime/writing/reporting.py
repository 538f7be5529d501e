"""What a worker says and counts about activations that are settled.

Nothing here says more of an error than its type: its text may hold what the handler worked on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from workhorse.domain.ids import RunId
from workhorse.domain.outcomes import Finish, HandBack, Retry, Settlement, Suspend
from workhorse.domain.runs import RunState
from workhorse.runtime.activations.activation import Activation
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")

_REMEMBERED: Final = 1_000


class Reports:
    """Logs and counts settles; for the threads that settle, one after the other."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._warned: OrderedDict[RunId, None] = OrderedDict()

    def settled(self, answers: Sequence[tuple[Activation, RunState | None]]) -> None:
        """Say what was written for activations; None for nothing."""
        labels: dict[str, int] = {}
        lost = 0
        for activation, written in answers:
            if written is RunState.SUCCEEDED:
                label = "succeeded"
            elif written is not None:
                label = _label(written, activation.settlement)
                if written is not RunState.CANCELLED:
                    _say_failure(activation)
            elif activation.lost:
                continue
            else:
                lost += 1
                _log.warning(
                    "run %s: its lease is gone: taken, or given back by a lost commit",
                    activation.claimed.id,
                )
                continue
            labels[label] = labels.get(label, 0) + 1
            if activation.swallowed:
                self._say_swallowed(activation)
        for label, count in labels.items():
            self._counters.add(Metric.RUNS_SETTLED, count, label=label)
        self._counters.add(Metric.LEASES_LOST, lost)

    def _say_swallowed(self, activation: Activation) -> None:
        """Warn once for a run, which may come to many waits."""
        run_id = activation.claimed.id
        if run_id in self._warned:
            return
        self._warned[run_id] = None
        while len(self._warned) > _REMEMBERED:
            self._warned.popitem(last=False)
        _log.warning(
            "run %s: the handler of task %r caught what ends its activation at a wait, and went "
            "on; the run is suspended all the same, and what the handler came to is dropped. Let "
            "BaseException pass, or catch Exception instead",
            run_id,
            activation.task.name,
        )


def _say_failure(activation: Activation) -> None:
    match activation.settlement:
        case Retry(delay_ms, reason, failure):
            what_next = f"it is tried again in {delay_ms / 1000:.1f} s"
        case Finish(RunState.FAILED, reason, _, failure) if failure is not None:
            what_next = "the run has failed; `workhorse runs show` has its error"
        case _:
            return
    _log.warning(
        "run %s: attempt %d of task %r has failed (%s, %s); %s",
        activation.claimed.id,
        activation.claimed.attempt,
        activation.task.name,
        reason,
        failure.error_type,
        what_next,
    )


def _label(written: RunState, settlement: Settlement | None) -> str:
    if written.finished:
        return written.value
    match settlement:
        case Retry():
            return "retry"
        case HandBack():
            return "handed_back"
        case Suspend() | Finish() | None:
            return "parked"
