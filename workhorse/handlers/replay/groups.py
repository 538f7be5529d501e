"""`children`: several runs of one task, with a limit and a policy for failures.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from workhorse.domain.boundaries import (
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    NewBoundary,
    Wait,
)
from workhorse.domain.names import check_boundary
from workhorse.domain.recording import Record
from workhorse.errors import ChildFailedError, ConfigurationError, WaitConflictError
from workhorse.handlers.replay.children import (
    Launch,
    begin_child,
    check_child,
    check_policy,
    id_of,
    new_run,
)
from workhorse.handlers.replay.flights import Steps
from workhorse.handlers.replay.state import Replay
from workhorse.handlers.replay.waiting import value_of
from workhorse.waits import ChildWait

if TYPE_CHECKING:
    from workhorse.handlers.tasks import Task

_CHILD: Final = BoundaryKind.CHILD
_GROUP: Final = BoundaryKind.GROUP
_FAILURES: Final = ("raise", "return", "cancel")
_FAILED: Final = frozenset({DeliveryState.FAILED, DeliveryState.CANCELLED})


def children(
    replay: Replay,
    name: str,
    task: Task[Any, Any],
    payloads: Iterable[object],
    *,
    max_parallel: int | None,
    on_failure: str,
    on_parent_end: str,
    options: Mapping[str, Any],
) -> Steps[list[Any]]:
    """Start runs and wait for all of them, or for the first that fails."""
    specs = [
        ChildWait(task=task, payload=payload, options=options, on_parent_end=on_parent_end)
        for payload in payloads
    ]
    _check(replay, name, len(specs), max_parallel, on_failure, on_parent_end)
    members = {f"{name}[{at}]": spec for at, spec in enumerate(specs)}
    texts = {member: check_child(replay, member, spec) for member, spec in members.items()}
    if specs:
        new_run(replay, specs[0], "null")  # all have these options: none may start with bad ones
    yield from _group(replay, name, len(specs))
    for member in members:
        if member in replay.boundaries:
            replay.touch(member)

    if on_failure != "return" and (failed := _first_failed(replay, members)) is not None:
        if on_failure == "cancel":
            yield from _cancel_rest(replay, name, members)
        yield from begin_child(replay, failed.name, members[failed.name], texts[failed.name])
        yield from value_of(replay, members[failed.name], failed)  # raises

    waits = yield from _start(replay, members, texts, max_parallel or len(specs))
    if waits:
        replay.suspend(waits)
    results: list[Any] = []
    for member, spec in members.items():
        try:
            results.append((yield from value_of(replay, spec, _end(replay, member))))
        except ChildFailedError as failure:  # only where the caller wants to see them all
            results.append(failure)
    return results


def _start(
    replay: Replay, members: Mapping[str, ChildWait], texts: Mapping[str, str], most: int
) -> Steps[list[Wait]]:
    """Start as many as may run at once; return the open waits."""
    waits: list[Wait] = []
    launches: list[tuple[str, Launch]] = []
    running = sum(
        member in replay.boundaries and (_CHILD, member) not in replay.deliveries
        for member in members
    )
    for member, spec in members.items():
        if member not in replay.boundaries:
            if running >= most:
                continue
            running += 1
        begun = yield from begin_child(replay, member, spec, texts[member])
        if isinstance(begun, Launch):
            launches.append((member, begun))
        elif isinstance(begun, Wait):
            waits.append(begun)
    for member, launch in launches:
        yield from replay.answer(launch.flight, launch.new, launch.written)
        begun = yield from begin_child(replay, member, members[member], texts[member])
        if isinstance(begun, Wait):
            waits.append(begun)
    return waits


def _group(replay: Replay, name: str, count: int) -> Steps[None]:
    """Take the name, and note how many they are: that must not change."""
    detail = json.dumps({"count": count})
    entered = yield from replay.enter(_GROUP, name)
    if isinstance(entered, Boundary):
        if entered.detail is None or json.loads(entered.detail).get("count") != count:
            raise WaitConflictError(
                f"{replay.owner}: children '{name}' were started for another number of payloads, "
                "and go on; give the new ones a name of their own"
            )
        return
    with entered as flight:
        replay.may_start()
        new = replay.number(NewBoundary(name=name, kind=_GROUP, seq=0, detail=detail))
        yield from replay.write(flight, Record(lease=replay.lease, boundary=new))
    yield from _group(replay, name, count)


def _first_failed(replay: Replay, members: Mapping[str, ChildWait]) -> Delivered | None:
    """Return the failure that came first: the same one in each activation."""
    ends = (replay.deliveries.get((_CHILD, member)) for member in members)
    failed = [end for end in ends if end is not None and end.state in _FAILED]
    return min(failed, key=lambda end: end.inbox, default=None)


def _cancel_rest(replay: Replay, name: str, members: Mapping[str, ChildWait]) -> Steps[None]:
    """Ask once that the others end."""
    mark = f"{name}[cancel]"
    entered = yield from replay.enter(_GROUP, mark)
    if isinstance(entered, Boundary):
        return
    with entered as flight:
        replay.may_start()
        rest = tuple(
            id_of(replay.boundaries[member])
            for member in members
            if member in replay.boundaries and (_CHILD, member) not in replay.deliveries
        )
        detail = json.dumps({"cancelled": len(rest)})
        new = replay.number(NewBoundary(name=mark, kind=_GROUP, seq=0, detail=detail))
        record = Record(lease=replay.lease, boundary=new, cancels=rest)
        yield from replay.write(flight, record)


def _end(replay: Replay, member: str) -> Delivered:
    return replay.deliveries[(_CHILD, member)]


def _check(
    replay: Replay,
    name: str,
    count: int,
    max_parallel: object,
    on_failure: object,
    on_parent_end: object,
) -> None:
    check_boundary(name)
    check_boundary(f"{name}[{max(count - 1, 0)}]")
    check_boundary(f"{name}[cancel]")
    check_policy(replay, name, on_parent_end)
    if on_failure not in _FAILURES:
        raise ConfigurationError(
            f"{replay.owner}: on_failure of '{name}' must be 'raise', 'return' or 'cancel'"
        )
    if max_parallel is not None and (type(max_parallel) is not int or max_parallel < 1):
        raise ConfigurationError(
            f"{replay.owner}: max_parallel of '{name}' must be a whole number from 1, or None"
        )
