"""The steps of maintenance, in the order in which they are done.

Each is one bounded page in a transaction of its own, again while the page is full; the page's
wakeups are sent after its commit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

from workhorse.domain.hints import Hint
from workhorse.ports import Lane, LaneError
from workhorse.store.base.database import Store
from workhorse.store.base.pages import Swept
from workhorse.store.durable import freeing, tokens
from workhorse.store.fleet import presence
from workhorse.store.lifecycle import sweeping
from workhorse.store.operators import viewing
from workhorse.telemetry import Counters, Metric

MOST_TOP_UPS: Final = 100
"""Visible messages that a queue needs at most: who gets one scans for more."""
_NAMED: Final = 5
_IN_VAIN_S: Final = 15.0
"""How long a top-up looks at queues about which the broker says nothing."""

Publish = Callable[[Sequence[Hint]], Any]
"""Sends wakeups; never raises."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the steps work on."""

    store: Store
    lane: Lane
    publish: Publish
    counters: Counters
    hint_stride: int
    draw: random.Random


Page = Callable[[Parts], Swept]
"""Does one page of a step in a transaction of its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its name, which stands in its row, how often a fleet does it, and its page."""

    name: str
    interval_ms: int
    page: Page


def _recover(parts: Parts) -> Swept:
    swept = parts.store.run(sweeping.recover, reach=parts.lane.reach_ms, draw=parts.draw)
    parts.counters.add(Metric.RUNS_RECOVERED, swept.count)
    return swept


def _deadlines(parts: Parts) -> Swept:
    return parts.store.run(sweeping.end_overdue)


def _promote(parts: Parts) -> Swept:
    return parts.store.run(sweeping.promote)


def _cancellations(parts: Parts) -> Swept:
    return parts.store.run(sweeping.finish_cancelled, reach=parts.lane.reach_ms, draw=parts.draw)


def _tokens(parts: Parts) -> Swept:
    return parts.store.run(tokens.expire_tokens)


def _arm(parts: Parts) -> Swept:
    return parts.store.run(freeing.arm)


def _free(parts: Parts) -> Swept:
    return parts.store.run(freeing.free_noted)


def _far_timers(parts: Parts) -> Swept:
    return parts.store.run(sweeping.far_timers, reach=parts.lane.reach_ms)


def top_up(parts: Parts) -> Swept:
    """Send wakeups for ready runs of which too few are on their way: the net under lost sends.

    What the broker says of its backlog is an estimate: a throttle, not a proof. Nothing is written,
    so it may be done at any time, and by anybody. A queue that the broker says nothing about fails
    the step, once the others have got theirs.
    """
    hints: list[Hint] = []
    broken: dict[str, Exception] = {}
    in_vain_s = 0.0
    queues = parts.store.read(viewing.open_queues)
    # In any order: a few that take long are not always the same ones that come first.
    for queue in parts.draw.sample(queues, len(queues)):
        if in_vain_s > _IN_VAIN_S:
            break  # a broker that is away takes seconds for each, and has a whole fleet's queues
        began = monotonic()
        try:
            visible = parts.lane.backlog(queue)
        except Exception as error:  # noqa: BLE001 - raised below
            broken[queue] = error
            in_vain_s += monotonic() - began
            continue
        if visible is None:  # the lane has no messages: its workers scan
            continue
        ready, first = parts.store.read(viewing.ready_to_top_up, queue, MOST_TOP_UPS)
        wanted = min(MOST_TOP_UPS, -(-ready // parts.hint_stride))
        missing = max(0, wanted - visible)
        hints += [Hint(run_id, queue) for run_id in first[:missing]]
    parts.counters.add(Metric.TOP_UPS, len(hints))
    if broken:
        parts.publish(hints)
        raise _all_of(broken)
    return Swept(len(hints), False, hints)


def _all_of(broken: Mapping[str, Exception]) -> Exception:
    """Return one error for all queues: what is denied for one is mostly denied for many."""
    (_, error), *others = broken.items()
    if not isinstance(error, LaneError):
        return error
    more = ""
    if others:
        named = ", ".join(queue for queue, _ in others[:_NAMED])
        more = f"; so it is with {len(others)} more queues, or alike: {named}"
    finding = error.finding
    return LaneError(replace(finding, message=f"{finding.message} ({finding.code}){more}"))


def _processes(parts: Parts) -> Swept:
    return parts.store.run(presence.prune)


STEPS: Final[tuple[Step, ...]] = (
    Step("recover", 1_000, _recover),
    Step("deadlines", 1_000, _deadlines),
    Step("promote", 1_000, _promote),
    Step("cancellations", 1_000, _cancellations),
    # Last of these: whatever they brought to an end is handed on in the same pass.
    Step("tokens", 1_000, _tokens),
    Step("arm", 1_000, _arm),
    Step("free", 1_000, _free),
    Step("far_timers", 30_000, _far_timers),
    Step("top_up", 30_000, top_up),
    Step("processes", 60_000, _processes),
)
