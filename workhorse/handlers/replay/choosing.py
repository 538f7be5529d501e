"""`wait_any`: the first of several waits; the others are closed.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from workhorse.domain.boundaries import (
    AWAITED,
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    NewBoundary,
    Wait,
)
from workhorse.domain.instants import EPOCH
from workhorse.domain.names import check_boundary
from workhorse.domain.recording import Record
from workhorse.errors import ConfigurationError, InvalidNameError, WaitConflictError
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.reading import boundary_value
from workhorse.handlers.replay.state import Replay
from workhorse.handlers.replay.waiting import reach, value_of
from workhorse.waits import First, WaitFor

_ANY: Final = BoundaryKind.ANY


def wait_any(replay: Replay, waits: Mapping[str, WaitFor], name: str | None) -> Steps[First]:
    """Wait until the first of several is settled; decide once which one that was."""
    mark = _checked(replay, waits, name)
    names = sorted(waits)
    entered = yield from replay.enter(_ANY, mark)
    if isinstance(entered, Boundary):
        return (yield from _decided(replay, waits, entered, names))
    with entered as flight:
        winner = _first(replay, waits)
        if winner is None:
            open_waits: list[Wait] = []
            for each, spec in waits.items():
                reached = yield from reach(replay, each, spec)
                if not isinstance(reached, Wait):
                    winner = each
                    break
                open_waits.append(reached)
            if winner is None:
                replay.suspend(open_waits)
        else:  # its boundary is written where it was settled before anybody waited
            yield from reach(replay, winner, waits[winner])
        replay.may_start()
        new = replay.number(
            NewBoundary(
                name=mark,
                kind=_ANY,
                seq=0,
                value=json.dumps({"winner": winner}),
                detail=json.dumps(names),
            )
        )
        flight.closes = closes = tuple(
            (spec.kind, each)
            for each, spec in waits.items()
            if each != winner
            and spec.kind in AWAITED
            and (spec.kind, each) not in replay.deliveries
        )
        yield from replay.write(flight, Record(lease=replay.lease, boundary=new, closes=closes))
    return (yield from wait_any(replay, waits, name))


def name_of(waits: Mapping[str, WaitFor], name: str | None) -> str | None:
    """Return the name of a choice among waits; None where it cannot have one."""
    if name is not None or not hasattr(waits, "keys") or not waits:
        return name
    return f"any:{min(map(str, waits))}"


def _decided(
    replay: Replay, waits: Mapping[str, WaitFor], stored: Boundary, names: list[str]
) -> Steps[First]:
    for each in names:
        if each in replay.boundaries:
            replay.touch(each)
    if json.loads(stored.detail or "null") != names:
        raise WaitConflictError(
            f"{replay.owner}: wait_any '{stored.name}' was decided among other waits, which "
            "stands; give the new choice a name of its own"
        )
    winner = (yield from boundary_value(replay, stored))["winner"]
    reached = yield from reach(replay, winner, waits[winner])
    if isinstance(reached, Wait) and reached.kind is BoundaryKind.TIMER and reached.new is None:
        return First(winner, None)  # the database's clock was set back since it was chosen
    if isinstance(reached, Wait):
        raise WaitConflictError(
            f"{replay.owner}: '{winner}', which came first in wait_any '{stored.name}', is another "
            "kind of wait now; keep the kind of a wait, or give it a name of its own"
        )
    return First(winner, (yield from value_of(replay, waits[winner], reached)))


def _first(replay: Replay, waits: Mapping[str, WaitFor]) -> str | None:
    """Return which of these is settled already.

    What was delivered comes before a timer that has passed, in the order in which it came; so a
    value that came after the timer's time, but before anybody saw that, still counts. A time-out is
    no value: between it and a timer their times decide, however late both were seen.
    """
    came = [
        found
        for each, spec in waits.items()
        if (found := replay.deliveries.get((spec.kind, each))) is not None
    ]
    first = min(came, key=_place_of, default=None)
    passed = [
        stored
        for each, spec in waits.items()
        if spec.kind is BoundaryKind.TIMER
        and (stored := replay.boundaries.get(each)) is not None
        and stored.due
    ]
    timer = min(passed, key=_time_of, default=None)
    if first is None or timer is None:
        settled = first or timer
        return None if settled is None else settled.name
    waited = replay.boundaries.get(first.name)
    if first.state is not DeliveryState.TIMED_OUT or waited is None:
        return first.name
    return timer.name if _time_of(timer) < _time_of(waited) else first.name


def _place_of(came: Delivered) -> tuple[bool, int]:
    # One that another choice has closed has no place of its own among those that came.
    return came.state is DeliveryState.CLOSED, came.inbox


def _time_of(stored: Boundary) -> tuple[datetime, int]:
    return stored.wake_at or EPOCH, stored.seq


def _checked(replay: Replay, waits: object, name: str | None) -> str:
    if not isinstance(waits, Mapping) or not waits:
        raise ConfigurationError(
            f"{replay.owner}: wait_any takes a dict of names and waits, at least one"
        )
    for each, spec in waits.items():
        check_boundary(each)
        if not isinstance(spec, WaitFor):
            raise ConfigurationError(
                f"{replay.owner}: '{each}' is a {type(spec).__name__}; make it with workhorse.waits"
            )
    mark = f"any:{min(waits)}" if name is None else check_boundary(name)
    if len(mark) > 200:
        raise InvalidNameError(
            f"{replay.owner}: the names of a wait_any are too long to make one for it; pass name="
        )
    if mark in waits:
        raise WaitConflictError(
            f"{replay.owner}: wait_any '{mark}' has the name of one of its own waits; "
            "give it another"
        )
    return mark
