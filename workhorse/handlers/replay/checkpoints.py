"""`checkpoint`, `transaction`, `patched`, `token`: boundaries that hold a value of the handler's.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from workhorse.domain.boundaries import (
    MAX_CHECKPOINT_BYTES,
    Boundary,
    BoundaryKind,
    NewBoundary,
)
from workhorse.domain.instants import to_millis
from workhorse.domain.missing import MISSING
from workhorse.domain.names import check_boundary
from workhorse.domain.recording import NewToken, Record, RecordAnswer, Recorded
from workhorse.domain.references import new_reference
from workhorse.domain.values import MAX_PAYLOAD_BYTES, decode, encode, fingerprint
from workhorse.errors import CheckpointConflictError
from workhorse.handlers.producing import check_limit
from workhorse.handlers.replay.driving import refuse_awaitable
from workhorse.handlers.replay.flights import Invoke, Steps, within
from workhorse.handlers.replay.reading import boundary_value
from workhorse.handlers.replay.state import Replay

if TYPE_CHECKING:
    from sqlalchemy import Connection

_CHECKPOINT: Final = BoundaryKind.CHECKPOINT


def checkpoint(
    replay: Replay, name: str, operation: Callable[[], object], given: object = MISSING
) -> Steps[Any]:
    """Run an operation once and store its result."""
    entered = yield from replay.enter(_CHECKPOINT, name)
    mark = None if given is MISSING else _mark(replay, name, given)
    if isinstance(entered, Boundary):
        _check_mark(replay, entered, mark)
        if entered.value is not None:
            return decode(entered.value)
        return (yield from boundary_value(replay, entered))
    with entered as flight:
        replay.may_start()
        replay.limits.check_room(name)
        result = yield Invoke(operation, flight)
        new = replay.number(
            NewBoundary(
                name=name,
                kind=_CHECKPOINT,
                seq=0,
                value=_encode(replay, name, result),
                fingerprint=mark,
            )
        )
        answer = yield from replay.write(flight, Record(lease=replay.lease, boundary=new))
    return (yield from _first(replay, new, answer))


def transaction(replay: Replay, name: str, operation: Callable[[Connection], object]) -> Steps[Any]:
    """Run an operation with a connection; what it writes and its result commit together."""
    entered = yield from replay.enter(_CHECKPOINT, name)
    if isinstance(entered, Boundary):
        return (yield from boundary_value(replay, entered))
    flight = entered
    text, counted = "null", 0

    def work(connection: Connection) -> str:
        nonlocal text, counted
        before = within.set((*within.get(), flight))
        try:
            result = operation(connection)
        finally:
            within.reset(before)
        refuse_awaitable(f"{replay.owner}: transaction '{name}'", result)
        text = _encode(replay, name, result)
        size = len(text.encode())
        replay.take_bytes(name, size - counted)  # it may be called again, after a deadlock
        counted = size
        return text

    with flight:
        replay.may_start()
        new = replay.number(NewBoundary(name=name, kind=_CHECKPOINT, seq=0))
        written = replay.launch_transaction(flight, Record(lease=replay.lease, boundary=new), work)
        answer = yield from replay.answer(flight, new, written)
    return (yield from _first(replay, replace(new, value=text), answer))


def patched(replay: Replay, name: str) -> Steps[bool]:
    """Decide once which branch a run takes: the old one where it has been beyond this already."""
    entered = yield from replay.enter(BoundaryKind.PATCH, name)
    if isinstance(entered, Boundary):
        return bool((yield from boundary_value(replay, entered)))
    with entered as flight:
        replay.may_start()
        value = "false" if replay.unreached() else "true"
        new = replay.number(NewBoundary(name=name, kind=BoundaryKind.PATCH, seq=0, value=value))
        yield from replay.write(flight, Record(lease=replay.lease, boundary=new))
    return (yield from patched(replay, name))


def token(replay: Replay, name: str, timeout: timedelta | None) -> Steps[str]:
    """Make a wait token once, and return its reference."""
    check_boundary(name)  # before any message names it
    timeout_ms = None
    if timeout is not None:
        what = f"{replay.owner}: timeout of token '{name}'"
        timeout_ms = to_millis(check_limit(what, timeout))
    entered = yield from replay.enter(BoundaryKind.REFERENCE, name)
    if isinstance(entered, Boundary):
        return str((yield from boundary_value(replay, entered)))
    with entered as flight:
        replay.may_start()
        ref = new_reference()
        new = replay.number(
            NewBoundary(name=name, kind=BoundaryKind.REFERENCE, seq=0, value=json.dumps(ref))
        )
        made = NewToken(ref=ref, timeout_ms=timeout_ms)
        yield from replay.write(flight, Record(lease=replay.lease, boundary=new, token=made))
    return (yield from token(replay, name, timeout))


def _first(replay: Replay, new: NewBoundary, answer: RecordAnswer) -> Steps[Any]:
    """Return what is stored now, decoded: the handler never sees more than a replay will."""
    if answer.result is Recorded.EXISTS:
        stored = replay.boundaries[new.name]
        replay.check_kind(stored.kind, _CHECKPOINT, new.name)
        _check_mark(replay, stored, new.fingerprint)
        value = yield from boundary_value(replay, stored)
        if fingerprint(json.dumps(value)) != fingerprint(new.value or "null"):
            raise CheckpointConflictError(
                f"{replay.owner}: checkpoint '{new.name}' already holds a different value, which "
                "stands; give the new stage a name of its own"
            )
        return value
    return decode(new.value or "null")


def _encode(replay: Replay, name: str, result: object) -> str:
    return encode(f"{replay.owner}: checkpoint '{name}'", result, cap=MAX_CHECKPOINT_BYTES)


def _mark(replay: Replay, name: str, given: object) -> str:
    what = f"{replay.owner}: input of checkpoint '{name}'"
    return fingerprint(encode(what, given, cap=MAX_PAYLOAD_BYTES))


def _check_mark(replay: Replay, stored: Boundary, mark: str | None) -> None:
    """Refuse a changed input. One that was not given then, or is not now, changes nothing."""
    if mark is not None and stored.fingerprint is not None and mark != stored.fingerprint:
        raise CheckpointConflictError(
            f"{replay.owner}: checkpoint '{stored.name}' was stored for another input, and its "
            "value stands; give the stage with the new input a name of its own"
        )
