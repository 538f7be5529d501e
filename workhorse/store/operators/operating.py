"""What operators do to runs and queues; each act is audited: who, what, why.

Whatever acts on a run from outside locks its live row by id first, and decides in the next
statement on what it found. In one statement, a cancel that met a settle would change nothing and
say nothing.

Source: docs/design.md, section 2
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Text, bindparam, func, null, select, update
from sqlalchemy.sql.expression import Executable

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Enqueued, NewRun, Reason, RunState
from workhorse.errors import RunNotFinishedError, RunNotFoundError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.schema import Id, audit, live, outcomes, queues, runs
from workhorse.store.live.ending import Ending, end_runs
from workhorse.store.operators.inspecting import require_seq
from workhorse.store.operators.viewing import show
from workhorse.store.producing.copying import copy_history
from workhorse.store.producing.enqueueing import enqueue

ALL: Final = "all"
NONE: Final = "none"


class CancelResult(StrEnum):
    """What a cancel came to."""

    CANCELLED = "cancelled"
    """The run was not running and has ended."""
    ASKED = "asked"
    """The run is running; whatever it settles with, it ends as cancelled."""
    ALREADY_FINISHED = "already_finished"
    """The run had ended before, and stands as it was."""


def cancel(
    tx: Tx, run_id: RunId, *, by: str, why: str, request_id: str
) -> tuple[CancelResult, list[Hint]]:
    """Cancel a run; answer what came of it, and the wakeups that must follow.

    The same request id gets the same answer, also once the run has ended by it.

    Raises:
        RunNotFoundError: No run has that id.
    """
    rows = tx.fetch(_lock_live, id=run_id)
    if not rows:
        if not tx.fetch(_outcome_state, id=run_id):
            raise _not_found(run_id)
        first = tx.fetch(_answer, act="cancel", subject=run_id, request_id=request_id)
        return (CancelResult(first[0].answer) if first else CancelResult.ALREADY_FINISHED), []
    hints: list[Hint] = []
    if rows[0].state == RunState.RUNNING:
        tx.write(_ask_cancel, id=run_id)
        result = CancelResult.ASKED
    else:
        finish = Finish(RunState.CANCELLED, Reason.CANCELLED)
        hints = end_runs(tx, [Ending(run_id, None, finish)], under_lease=False).hints
        result = CancelResult.CANCELLED
    note(tx, "cancel", run_id, by=by, why=why, request_id=request_id, answer=result)
    return result, hints


def rerun(
    tx: Tx,
    run_id: RunId,
    *,
    by: str,
    why: str,
    request_id: str,
    reach: Reach,
    boundaries: str = NONE,
) -> Enqueued:
    """Start a finished run again, as a new run that is linked to it: same payload, fresh budget.

    The same request id answers with the same new run.

    Args:
        run_id: The finished run.
        by: Who asks.
        why: For the audit.
        request_id: Names the request.
        reach: How far ahead a queue's wakeups can be sent.
        boundaries: What the new run takes over: `ALL`, `NONE`, or all up to the one of that name.

    Raises:
        RunNotFoundError: No run has that id.
        RunNotFinishedError: The run has not ended yet.
        BoundaryNotFoundError: The run has no boundary of that name.
    """
    view = show(tx, run_id)
    first = tx.fetch(_answer, act="rerun", subject=run_id, request_id=request_id)
    if first:
        return Enqueued(run_id=RunId(first[0].answer), queue=view.queue, created=False)
    if not view.state.finished:
        raise RunNotFinishedError(
            f"run {run_id} is {view.state}; only a finished run can be run again. Wait for its "
            "end, or cancel it first"
        )
    upto = None if boundaries in (ALL, NONE) else require_seq(tx, run_id, boundaries)
    new_id = new_run_id()
    if not note(tx, "rerun", run_id, by=by, why=why, request_id=request_id, answer=new_id):
        # Somebody else was quicker by a moment.
        first = tx.fetch(_answer, act="rerun", subject=run_id, request_id=request_id)
        return Enqueued(run_id=RunId(first[0].answer), queue=view.queue, created=False)
    spec = tx.fetch(_spec, id=run_id)[0]
    new = NewRun(
        id=new_id,
        task=view.task,
        queue=view.queue,
        payload=view.payload,
        priority=view.priority,
        session=view.session,
        tags=view.tags,
        timeout_ms=spec.timeout_ms,
        retry=RetryPolicy.from_json(spec.retry),
        traceparent=spec.traceparent,
    )
    answer = enqueue(tx, [new], reach=reach, rerun_of=run_id)[0]
    if boundaries != NONE:
        copy_history(tx, run_id, new_id, upto=upto)
    return answer


def pause_queue(tx: Tx, queue: str, *, by: str, why: str) -> bool:
    """Stop claims from a queue; answer whether it was open before. What runs goes on."""
    changed = bool(tx.fetch(_pause, name=queue, by=by, why=why))
    if changed:
        note(tx, "pause", queue, by=by, why=why)
    return changed


def resume_queue(tx: Tx, queue: str, *, by: str, why: str) -> bool:
    """Open a queue again; answer whether it was paused. Wakeups for what is ready must follow."""
    changed = tx.write(_resume, name=queue) > 0
    if changed:
        note(tx, "resume", queue, by=by, why=why)
    return changed


def note(
    tx: Tx,
    act: str,
    subject: str,
    *,
    by: str,
    why: str,
    request_id: str | None = None,
    answer: str | None = None,
) -> bool:
    """Write an act into the audit; answer False where the same request was noted before."""
    return bool(
        tx.fetch(
            _note,
            id=new_run_id(),
            act=act,
            subject=subject,
            by=by,
            why=why,
            request_id=request_id,
            answer=answer,
        )
    )


def _not_found(run_id: RunId) -> RunNotFoundError:
    return RunNotFoundError(
        f"run {run_id} is not in this store; check the id, the database and the environment"
    )


# -- statements ----------------------------------------------------------------------------------


def _id() -> Any:
    return bindparam("id", type_=Id)


def _lock_live(_d: Dialect) -> Executable:
    return select(live.c.state).where(live.c.id == _id()).with_for_update()


def _outcome_state(_d: Dialect) -> Executable:
    return select(outcomes.c.state).where(outcomes.c.id == _id())


def _ask_cancel(d: Dialect) -> Executable:
    return (
        update(live)
        .where(live.c.id == _id())
        .values(cancel_asked_at=func.coalesce(live.c.cancel_asked_at, d.clock))
    )


def _spec(_d: Dialect) -> Executable:
    return select(runs.c.timeout_ms, runs.c.retry, runs.c.traceparent).where(runs.c.id == _id())


def _note(d: Dialect) -> Executable:
    names = ("id", "act", "subject", "by", "why", "request_id", "answer")
    insert = upsert(d, audit).values(
        **{name: bindparam(name, type_=audit.c[name].type) for name in names}, at=d.clock
    )
    statement: Executable = insert.on_conflict_do_nothing(
        index_elements=["act", "subject", "request_id"]
    ).returning(audit.c.id)
    return statement


def _answer(_d: Dialect) -> Executable:
    return select(audit.c.answer).where(
        *(audit.c[name] == bindparam(name, type_=Text) for name in ("act", "subject", "request_id"))
    )


def _pause(d: Dialect) -> Executable:
    insert = upsert(d, queues).values(
        name=bindparam("name", type_=Text),
        paused_at=d.clock,
        paused_by=bindparam("by", type_=Text),
        paused_why=bindparam("why", type_=Text),
    )
    statement: Executable = insert.on_conflict_do_update(
        index_elements=["name"],
        set_={
            name: getattr(insert.excluded, name)
            for name in ("paused_at", "paused_by", "paused_why")
        },
        where=queues.c.paused_at.is_(null()),
    ).returning(queues.c.name)
    return statement


def _resume(_d: Dialect) -> Executable:
    return (
        update(queues)
        .where(queues.c.name == bindparam("name", type_=Text), queues.c.paused_at.is_not(null()))
        .values(paused_at=null(), paused_by=null(), paused_why=null())
    )
