"""Children: runs that a handler starts once and waits for.

Source: docs/design.md, section 7.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from workhorse.domain.boundaries import Boundary, BoundaryKind, Delivered, NewBoundary, Wait
from workhorse.domain.ids import RunId
from workhorse.domain.missing import MISSING
from workhorse.domain.recording import NewChild, Record, RecordAnswer
from workhorse.domain.runs import NewRun, first_line
from workhorse.domain.values import fingerprint
from workhorse.errors import ChildFailedError, ConfigurationError, WaitConflictError
from workhorse.handlers.producing import checked_run
from workhorse.handlers.recording import Pending
from workhorse.handlers.replay.flights import Flight, Steps
from workhorse.handlers.replay.state import Replay
from workhorse.waits import ChildWait

if TYPE_CHECKING:
    from workhorse.handlers.tasks import Task

_CHILD: Final = BoundaryKind.CHILD
_POLICIES: Final = ("cancel", "keep")


class Launch:
    """A child whose start is under way."""

    __slots__ = ("flight", "new", "written")

    def __init__(self, flight: Flight, new: NewBoundary, written: Pending[RecordAnswer]) -> None:
        self.flight: Final = flight
        self.new: Final = new
        self.written: Final = written


def reach_child(replay: Replay, name: str, spec: ChildWait) -> Steps[Wait | Delivered]:
    """Start a child where it is not started yet; return what came of it, or the open wait."""
    begun = yield from begin_child(replay, name, spec)
    if isinstance(begun, Launch):
        yield from replay.answer(begun.flight, begun.new, begun.written)
        begun = yield from begin_child(replay, name, spec)
        assert not isinstance(begun, Launch)  # noqa: S101 - it stands now
    return begun


def begin_child(
    replay: Replay, name: str, spec: ChildWait, payload: str | None = None
) -> Steps[Wait | Delivered | Launch]:
    """As `reach_child`, without waiting for the start: many can start in one commit.

    Args:
        payload: Its JSON text, where the caller has it already.

    Raises:
        WaitConflictError: The name belongs to something else, or to another task or payload.
    """
    if payload is None:
        payload = check_child(replay, name, spec)
    entered = yield from replay.enter(_CHILD, name)
    if isinstance(entered, Boundary):
        names = (spec.task.name, *spec.task.aliases)
        if all(entered.fingerprint != _mark(task, payload) for task in names):
            raise WaitConflictError(
                f"{replay.owner}: child '{name}' was started with another task or payload, and "
                "goes on; give the new child a name of its own"
            )
        return replay.deliveries.get((_CHILD, name)) or Wait(kind=_CHILD, name=name)
    with entered as flight:
        replay.may_start()
        run = new_run(replay, spec, payload)
        new = replay.number(
            NewBoundary(
                name=name,
                kind=_CHILD,
                seq=0,
                fingerprint=_mark(spec.task.name, payload),
                detail=json.dumps(run.id),
            )
        )
        child = NewChild(run=run, on_parent_end=spec.on_parent_end)
        written = replay.launch(flight, Record(lease=replay.lease, boundary=new, child=child))
    return Launch(flight, new, written)


def id_of(stored: Boundary) -> RunId:
    """Return the run id of a child."""
    return RunId(json.loads(stored.detail or "null"))


def failure_of(replay: Replay, settled: Delivered, text: str) -> ChildFailedError:
    """Return the error that a child's end is for its parent."""
    end = json.loads(text) or {}
    error_type, said = end.get("error_type"), end.get("error_message")
    reason = str(end.get("reason") or settled.state.value)
    how = "was cancelled" if reason == "cancelled" else f"has failed ({reason})"
    return ChildFailedError(
        f"{replay.owner}: child '{settled.name}' (run {end.get('run_id')} of task "
        f"{end.get('task')!r}) {how}"
        + (f": {error_type}: {first_line(said)}" if error_type is not None else ""),
        run_id=end.get("run_id"),
        reason=reason,
        error_type=error_type,
        error_message=said,
    )


def check_policy(replay: Replay, name: str, on_parent_end: object) -> None:
    """Refuse what is no policy for the parent's end."""
    if on_parent_end not in _POLICIES:
        raise ConfigurationError(
            f"{replay.owner}: on_parent_end of '{name}' must be 'cancel' or 'keep'"
        )


def check_child(replay: Replay, name: str, spec: ChildWait) -> str:
    """Refuse what can never be started; return its payload's JSON text.

    Raises:
        ConfigurationError: The task is none, or an option cannot work for a child.
        UnstorableValueError, ValueTooLargeError: The payload cannot be stored.
    """
    from workhorse.handlers.tasks import Task  # it imports the contexts, and they import this

    if not isinstance(spec.task, Task):
        raise ConfigurationError(
            f"{replay.owner}: the task of child '{name}' is a {type(spec.task).__name__}; "
            "pass what app.task(...) made"
        )
    check_policy(replay, name, spec.on_parent_end)
    if spec.options.get("key") is not None:
        raise ConfigurationError(
            f"{replay.owner}: child '{name}' is started once by its name, and takes no key"
        )
    session = spec.options.get("session")
    if session is not None and session == replay.session:
        raise ConfigurationError(
            f"{replay.owner}: child '{name}' would wait for its parent's turn in the session, "
            "and its parent for it; give it another session, or none"
        )
    task: Task[Any, Any] = spec.task
    return task.encode_payload() if spec.payload is MISSING else task.encode_payload(spec.payload)


def new_run(replay: Replay, spec: ChildWait, payload: str) -> NewRun:
    """Return the run of a child, its options checked."""
    run = checked_run(spec.task, payload, replay.now(), **spec.options)
    return run._replace(parent=replay.lease.run_id, keep=spec.on_parent_end == "keep")


def _mark(task: str, payload: str) -> str:
    return fingerprint(f"[{json.dumps(task)},{payload}]")
