"""Runs come into the store.

Ids are the producer's, so an insert repeated after a lost answer cannot double: the live row is
written only together with the immutable one.

Source: docs/design.md, section 8; docs/cases.md, case 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    false,
    func,
    insert,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import Executable

from workhorse.domain.hints import Hint, Reach
from workhorse.domain.ids import RunId
from workhorse.domain.instants import to_micros
from workhorse.domain.retry import DEFAULT_RETRY
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.errors import IdempotencyConflictError, RunNotFoundError
from workhorse.store.connecting import LOCK_WAIT
from workhorse.store.database import Tx
from workhorse.store.dialect import Dialect
from workhorse.store.schema import Id, LinkKind, Number, keys, links, live, runs

_MOST_CHARS: Final = 8 * 1024 * 1024
_MOST_ROWS: Final = 1_000
_MOMENT_MS: Final = 100
_LOCK_NOT_GOT: Final = "55P03"
KEY_LIFE_MS: Final = 30 * 24 * 3600 * 1000

_PLAIN_COLUMNS = {
    "id": Id,
    "task": Text(),
    "queue": Text(),
    "payload": Text(),
    "priority": Number,
    "key": Text(),
    "session": Text(),
    "tags": Text(),
    "retry": Text(),
    "timeout_ms": Number,
    "traceparent": Text(),
}
_RUN_COLUMNS = _PLAIN_COLUMNS | {
    "rerun_of": Id,
    "delay_ms": Number,
    "run_at_us": Number,
    "deadline_ms": Number,
    "reach_ms": Number,
    "parent_id": Id,
    "keep": Boolean(),
    "on_failure": Text(),
    "blockers": Number,
}
_LINK_COLUMNS = {"source": Id, "run_id": Id}
_KEY_COLUMNS = {"task": Text(), "key": Text(), "run_id": Id, "fingerprint": Text()}


class KeysHeldError(Exception):
    """A key's owner has not committed yet and was not waited for; nothing was inserted."""


def enqueue(
    tx: Tx,
    new: Sequence[NewRun],
    *,
    reach: Reach,
    rerun_of: RunId | None = None,
    patient: bool = True,
) -> list[Enqueued]:
    """Insert runs; answer for each, in order, what became of it.

    A run whose idempotency key belongs to another run is not inserted: the answer names the owner.
    A key's owner that has not committed yet is waited for, unless `patient` is false: then it is
    given a moment.

    Runs that are to come after others are linked to them; `freeing.arm` must follow the commit. A
    run may come after one that stands before it in `new`.

    Raises:
        IdempotencyConflictError: A key belongs to a run with another payload; nothing is inserted.
        RunNotFoundError: A run is to come after one that is not there; nothing is inserted.
        KeysHeldError: Somebody else's transaction holds a key; only where not `patient`.
    """
    _check_predecessors(tx, new)
    others = _owned_by_others(tx, new, patient=patient)
    mine = [run for run in new if run.id not in others] if others else new
    if any(run.after for run in mine):
        mine = [_name_predecessors(run, others) for run in mine]
    due: dict[str, int | None] = {}
    for part in _parts(mine):
        due |= _insert(tx, part, reach, rerun_of)
    return [
        Enqueued(others[run.id], run.queue, created=False)
        if run.id in others
        else Enqueued(run.id, run.queue, created=True, due_in_ms=due.get(run.id))
        for run in new
    ]


def hints_of(
    new: Sequence[NewRun], done: Sequence[Enqueued], *, reach: Reach, stride: int = 1
) -> list[Hint]:
    """Return the wakeups that must follow the commit of an enqueue.

    Runs that were there before, by their key, have had theirs. What is due later than the lane can
    delay is left to maintenance, and who comes after other runs is woken by their end.

    Args:
        new: The runs, as they went to the store.
        done: Its answers, in the same order.
        reach: How far ahead a queue's wakeups can be sent, in milliseconds.
        stride: One wakeup for so many ready runs of a queue: who gets it scans for the others.
    """
    hints: list[Hint] = []
    ready: dict[str, int] = {}
    for run, answer in zip(new, done, strict=True):
        if not answer.created or run.after:
            continue
        if answer.due_in_ms is None:
            count = ready[answer.queue] = ready.get(answer.queue, 0) + 1
            if (count - 1) % stride == 0:
                hints.append(Hint(answer.run_id, answer.queue, 0, run.traceparent))
        elif answer.due_in_ms <= reach(answer.queue):
            delay_ms = max(0, answer.due_in_ms)
            hints.append(Hint(answer.run_id, answer.queue, delay_ms, run.traceparent))
    return hints


def reset_key(tx: Tx, task: str, key: str) -> bool:
    """Free an idempotency key; answer whether it was taken. Its run is not touched."""
    return tx.write(_reset_key, task=task, key=key) > 0


def _owned_by_others(tx: Tx, new: Sequence[NewRun], *, patient: bool) -> dict[RunId, RunId]:
    """Take the keys that are free or expired; return the owner where it is another run."""
    first: dict[tuple[str, str | None], NewRun] = {}
    for run in new:
        if run.key is not None:
            known = first.setdefault((run.task, run.key), run)
            _compare(run, known.id, known.fingerprint)
    if not first:
        return {}
    batch = json.dumps(
        [
            {"task": r.task, "key": r.key, "run_id": r.id, "fingerprint": r.fingerprint}
            for r in first.values()
        ]
    )
    # It locks the keys that have an owner too, so none can be reset before the next statement reads
    # who owns them. (The upsert's own snapshot is older than an owner that it had to wait for.)
    with _waiting_for_owners(tx, patient=patient):
        tx.write(_take_keys, batch=batch, life_ms=KEY_LIFE_MS)
    owners: dict[tuple[str, str | None], RunId] = {}
    for task, key, owner, fingerprint in tx.fetch(_key_owners, batch=batch):
        _compare(first[task, key], str(owner), fingerprint)
        owners[task, key] = RunId(str(owner))
    owned = ((run.id, owners.get((run.task, run.key), run.id)) for run in new)
    return {run_id: owner for run_id, owner in owned if owner != run_id}


@contextmanager
def _waiting_for_owners(tx: Tx, *, patient: bool) -> Iterator[None]:
    if patient:
        tx.wait_for_locks()
        yield
        return
    if tx.dialect.name == "postgresql":
        tx.conn.exec_driver_sql(f"set local lock_timeout = {_MOMENT_MS}")
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_GOT:
            raise
        raise KeysHeldError from error
    if tx.dialect.name == "postgresql":
        # The moment is for keys alone: another lock keeps runs without keys waiting too.
        tx.conn.exec_driver_sql(f"set local lock_timeout = '{LOCK_WAIT}'")


def _check_predecessors(tx: Tx, new: Sequence[NewRun]) -> None:
    """Make sure that what runs come after is there, or is inserted before them."""
    if not any(run.after for run in new):
        return
    named = sorted({each for run in new for each in run.after})
    known = {str(row.id) for row in tx.fetch(_known, ids=json.dumps(named))}
    for run in new:
        missing = [each for each in run.after if each not in known]
        if missing:
            raise RunNotFoundError(
                f"run {missing[0]}, which a run of task {run.task!r} is to come after, is not in "
                "this store, nor before it in the same call; nothing was enqueued. Check the id, "
                "the database and the environment"
            )
        known.add(run.id)


def _name_predecessors(run: NewRun, others: Mapping[RunId, RunId]) -> NewRun:
    """Return a run that names each run that it comes after once: a key's owner where it has one."""
    if not run.after:
        return run
    return run._replace(after=tuple(dict.fromkeys(others.get(each, each) for each in run.after)))


def _compare(run: NewRun, owner: str, fingerprint: str | None) -> None:
    if run.fingerprint != fingerprint:
        raise IdempotencyConflictError(
            f"task {run.task!r}: the idempotency key {run.key!r} belongs to run {owner}, whose "
            "payload is another; that run stands and nothing was enqueued. Use a key of its own "
            "for the new work"
        )


def _parts(new: Sequence[NewRun]) -> Iterator[Sequence[NewRun]]:
    """Cut a batch where its statement would be too large: a database takes a gigabyte at most."""
    start = size = 0
    for at, run in enumerate(new):
        if at > start and (size > _MOST_CHARS or at - start >= _MOST_ROWS):
            yield new[start:at]
            start, size = at, 0
        size += len(run.payload)
    if new:
        yield new[start:]


def _insert(
    tx: Tx, new: Sequence[NewRun], reach: Reach, rerun_of: RunId | None
) -> dict[str, int | None]:
    """Insert runs; return for each that may not be ready the time until it is due, else None."""
    if rerun_of is None and all(map(_is_plain, new)):
        _insert_plain(tx, new)
        return {}
    batch = _document([_row(run) | _placing(run, reach, rerun_of) for run in new])
    if tx.dialect.one_statement:
        rows = tx.fetch(_insert_both, batch=batch)
    else:
        fresh = json.dumps([row[0] for row in tx.fetch(_insert_runs, batch=batch)])
        rows = tx.fetch(_insert_live, batch=batch, fresh=fresh)
    due = {str(row[0]): row[1] for row in rows}
    # A run that an earlier try has inserted is linked already, and may have been freed since.
    after = [
        {"source": source, "run_id": run.id}
        for run in new
        if run.after and run.id in due
        for source in run.after
    ]
    if after:
        batch = json.dumps(after)
        tx.write(_insert_links, batch=batch)
        # One row of a chain is seen in its new place by the next pass alone.
        while any(run.session is not None for run in new) and tx.write(_line_up, batch=batch):
            pass
    if len(due) < len(new):
        # Some were inserted before, by a try whose answer was lost: they get the same answer.
        before = json.dumps([run.id for run in new if run.id not in due])
        due |= {str(row.id): row.due_in for row in tx.fetch(_due_of, ids=before)}
    return due


def stands_alone(run: NewRun) -> bool:
    """Say whether a run comes in by one statement: it is ready at once, and has no key."""
    return run.key is None and _is_plain(run)


def enqueue_alone(tx: Tx, run: NewRun, channels: Sequence[str] = ()) -> list[str]:
    """Insert a run that stands alone, and ring channels, by one statement; return those rung."""
    if not channels or not tx.dialect.one_statement:
        _insert_plain(tx, [run])
        return []
    batch = _document([_row(run)])
    rung = tx.fetch_raw(_insert_ringing, batch=batch, channels=json.dumps(list(channels)))
    return [row[0] for row in rung]


def _insert_plain(tx: Tx, new: Sequence[NewRun]) -> None:
    """Insert runs that are ready at once and depend on no others: the most frequent case.

    No row comes back. Those that a try inserted whose answer was lost were ready too.
    """
    batch = _document([_row(run) for run in new])
    if tx.dialect.one_statement:
        tx.write(_insert_both_plain, batch=batch)
    else:
        fresh = [row[0] for row in tx.fetch(_insert_runs_plain, batch=batch)]
        tx.write(_insert_live_plain, fresh=json.dumps(fresh))


def _is_plain(run: NewRun) -> bool:
    return (
        run.delay_ms == 0
        and run.run_at is None
        and run.deadline_ms is None
        and run.parent is None
        and not run.after
    )


def _row(run: NewRun) -> dict[str, Any]:
    """Return what the table of runs keeps of one; what is null is left out."""
    row: dict[str, Any] = {
        "id": run.id,
        "task": run.task,
        "queue": run.queue,
        "payload": run.payload,
        "priority": run.priority,
    }
    if run.key is not None:
        row["key"] = run.key
    if run.session is not None:
        row["session"] = run.session
    if run.tags:
        row["tags"] = json.dumps(run.tags)
    if run.retry is not DEFAULT_RETRY:
        row["retry"] = run.retry.to_json()
    if run.timeout_ms is not None:
        row["timeout_ms"] = run.timeout_ms
    if run.traceparent is not None:
        row["traceparent"] = run.traceparent
    return row


def _placing(run: NewRun, reach: Reach, rerun_of: RunId | None) -> dict[str, Any]:
    """Return what says when a run is due, and on whom it depends."""
    return {
        "rerun_of": rerun_of,
        "delay_ms": run.delay_ms,
        "run_at_us": None if run.run_at is None else to_micros(run.run_at),
        "deadline_ms": run.deadline_ms,
        "reach_ms": reach(run.queue),
        "parent_id": run.parent,
        "keep": run.keep if run.parent is not None else None,
        "on_failure": run.on_failure,
        "blockers": len(run.after),
    }


def _document(rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(rows, separators=(",", ":"))


# -- statements ----------------------------------------------------------------------------------


def upsert(d: Dialect, table: Table) -> Any:
    """Return the dialect's insert that knows ON CONFLICT."""
    return (postgresql.insert if d.name == "postgresql" else sqlite.insert)(table)


def _take_keys(d: Dialect) -> Executable:
    u = d.rows("batch", _KEY_COLUMNS)
    expires = d.after(d.clock, bindparam("life_ms", type_=BigInteger))
    insert = upsert(d, keys).from_select(
        ["task", "key", "run_id", "fingerprint", "expires_at"],
        # The condition keeps SQLite from reading ON as a join's.
        select(u.c.task, u.c.key, u.c.run_id, u.c.fingerprint, expires)
        .where(true() if d.one_statement else literal_column("1 = 1"))
        # In one order, so that two bulk enqueues with keys in common cannot deadlock.
        .order_by(u.c.task, u.c.key),
    )
    statement: Executable = insert.on_conflict_do_update(
        index_elements=["task", "key"],
        set_={
            "run_id": insert.excluded.run_id,
            "fingerprint": insert.excluded.fingerprint,
            "expires_at": insert.excluded.expires_at,
        },
        where=keys.c.expires_at <= d.clock,
    )
    return statement


def _key_owners(d: Dialect) -> Executable:
    u = d.rows("batch", _KEY_COLUMNS)
    return select(keys.c.task, keys.c.key, keys.c.run_id, keys.c.fingerprint).join(
        u, and_(keys.c.task == u.c.task, keys.c.key == u.c.key)
    )


def _reset_key(d: Dialect) -> Executable:
    return delete(keys).where(
        keys.c.task == bindparam("task", type_=Text), keys.c.key == bindparam("key", type_=Text)
    )


def _runs_from(d: Dialect, u: FromClause, columns: Sequence[str]) -> Any:
    """Return the insert of a batch's immutable parts; what is there already is left alone."""
    insert = upsert(d, runs).from_select(
        [*columns, "created_at"],
        select(*(u.c[name] for name in columns), d.clock).where(
            true() if d.one_statement else literal_column("1 = 1")
        ),
    )
    return insert.on_conflict_do_nothing(index_elements=["id"])


_STORED = [*_PLAIN_COLUMNS, "rerun_of", "parent_id", "keep", "on_failure"]


def _live_rows(d: Dialect, u: FromClause, fresh: ColumnElement[bool]) -> Select[Any]:
    """Return the live rows of a batch: ready, or scheduled where they are due later.

    Those that come after others wait for them, without a time.
    """
    at = case(
        (u.c.run_at_us.is_not(null()), d.instant_of(u.c.run_at_us)),
        else_=d.after(d.clock, func.coalesce(u.c.delay_ms, literal_column("0"))),
    )
    placed = select(u, at.label("at"), d.clock.label("made_at")).where(fresh).subquery("p")
    p = placed.c
    blocked = p.blockers > literal_column("0")
    later = and_(p.at > p.made_at, not_(blocked))
    near = d.millis(p.made_at, p.at) <= p.reach_ms
    return select(
        p.id,
        p.queue,
        p.task,
        case(
            (blocked, literal_column("'waiting'")),
            (later, literal_column("'scheduled'")),
            else_=literal_column("'ready'"),
        ).label("state"),
        (literal_column("100", BigInteger) - p.priority).label("rank"),
        case((or_(blocked, later), null()), else_=p.made_at).label("ready_at"),
        case((later, p.at), else_=null()).label("due_at"),
        case((and_(later, near), true()), else_=false()).label("wake_sent"),
        literal_column("1").label("attempt"),
        literal_column("0").label("fence"),
        literal_column("0").label("inbox"),
        literal_column("0").label("hand_backs"),
        literal_column("0").label("active_ms"),
        p.session,
        case((p.session.is_(null()), null()), (later, p.at), else_=p.made_at).label("line_at"),
        case((p.deadline_ms.is_(null()), null()), else_=d.after(p.made_at, p.deadline_ms)).label(
            "deadline_at"
        ),
        # A child's end is always told.
        case((p.parent_id.is_not(null()), true()), else_=false()).label("watched"),
        p.blockers,
    )


_LIVE_COLUMNS = [
    "id", "queue", "task", "state", "rank", "ready_at", "due_at", "wake_sent", "attempt", "fence",
    "inbox", "hand_backs", "active_ms", "session", "line_at", "deadline_at", "watched", "blockers",
]  # fmt: skip


def _due_in(d: Dialect) -> ColumnElement[Any]:
    return case((live.c.due_at.is_(null()), null()), else_=d.millis(d.clock, live.c.due_at))


def _due_of(d: Dialect) -> Executable:
    return select(live.c.id, _due_in(d).label("due_in")).where(d.one_of(live.c.id, "ids"))


def _known(d: Dialect) -> Executable:
    return select(runs.c.id).where(d.one_of(runs.c.id, "ids"))


def _insert_links(d: Dialect) -> Executable:
    u = d.rows("batch", _LINK_COLUMNS)
    source = cast(u.c.source, Text)
    return insert(links).from_select(
        ["kind", "source", "run_id", "name", "armed"],
        select(
            literal(str(LinkKind.AFTER), Text),
            source,
            u.c.run_id,
            literal("after:", Text) + source,
            false(),
        ),
    )


def _line_up(d: Dialect) -> Executable:
    """Put runs behind those of their session that they come after.

    One of these may be due later, and would wait for its turn behind a run that waits for its end.
    """
    u = d.rows("batch", _LINK_COLUMNS)
    mine, other = live.alias("mine"), live.alias("other")
    behind = (
        select(mine.c.id, func.max(other.c.line_at).label("line_at"))
        .select_from(
            u.join(mine, mine.c.id == u.c.run_id).join(
                other,
                and_(
                    other.c.id == u.c.source,
                    other.c.session == mine.c.session,
                    tuple_(other.c.line_at, other.c.id) > tuple_(mine.c.line_at, mine.c.id),
                ),
            )
        )
        .group_by(mine.c.id)
        .subquery("behind")
    )
    return (
        update(live)
        .where(live.c.id == behind.c.id)
        .values(line_at=d.after(behind.c.line_at, literal_column("1", BigInteger)))
    )


def _insert_both(d: Dialect) -> Executable:
    u = select(d.rows("batch", _RUN_COLUMNS)).cte("u")  # read once, and used twice
    fresh = _runs_from(d, u, _STORED).returning(runs.c.id).cte("fresh")
    rows = _live_rows(d, u, u.c.id.in_(select(fresh.c.id)))
    return (
        postgresql.insert(live)
        .from_select(_LIVE_COLUMNS, rows)
        .add_cte(fresh)
        .returning(live.c.id, _due_in(d).label("due_in"))
    )


def _insert_runs(d: Dialect) -> Executable:
    statement: Executable = _runs_from(d, d.rows("batch", _RUN_COLUMNS), _STORED).returning(
        runs.c.id
    )
    return statement


def _insert_live(d: Dialect) -> Executable:
    u = d.rows("batch", _RUN_COLUMNS)
    rows = _live_rows(d, u, d.one_of(u.c.id, "fresh"))
    return (
        sqlite.insert(live)
        .from_select(_LIVE_COLUMNS, rows)
        .returning(live.c.id, _due_in(d).label("due_in"))
    )


# A plain batch is read once: the live rows are made of the immutable ones.


def _insert_both_plain(d: Dialect) -> Any:
    u = d.rows("batch", _PLAIN_COLUMNS)
    fresh = _runs_from(d, u, list(_PLAIN_COLUMNS)).returning(*_plain_parts(runs)).cte("fresh")
    rows = _plain_live_rows(fresh)
    return postgresql.insert(live).from_select(list(rows.selected_columns.keys()), rows)


def _insert_ringing(d: Dialect) -> Executable:
    placed = _insert_both_plain(d).returning(live.c.id).cte("placed")
    return ringing(d).add_cte(placed)


def ringing(d: Dialect) -> Select[Any]:
    """Ring channels, those that no other transaction rings just now; return these."""
    channel = d.each("channels").c.value
    free = func.pg_try_advisory_xact_lock(func.hashtextextended(channel, literal_column("0")))
    return select(channel, func.pg_notify(channel, literal_column("''"))).where(free)


def _insert_runs_plain(d: Dialect) -> Executable:
    u = d.rows("batch", _PLAIN_COLUMNS)
    statement: Executable = _runs_from(d, u, list(_PLAIN_COLUMNS)).returning(runs.c.id)
    return statement


def _insert_live_plain(d: Dialect) -> Executable:
    fresh = select(*_plain_parts(runs)).where(d.one_of(runs.c.id, "fresh")).subquery("fresh")
    rows = _plain_live_rows(fresh)
    return sqlite.insert(live).from_select(list(rows.selected_columns.keys()), rows)


def _plain_parts(t: Table) -> list[ColumnElement[Any]]:
    return [t.c.id, t.c.queue, t.c.task, t.c.priority, t.c.session, t.c.created_at]


def _plain_live_rows(fresh: FromClause) -> Select[Any]:
    """Return the live rows of runs that are ready."""
    f = fresh.c
    return select(
        f.id,
        f.queue,
        f.task,
        literal_column("'ready'").label("state"),
        (literal_column("100", BigInteger) - f.priority).label("rank"),
        f.created_at.label("ready_at"),
        false().label("wake_sent"),
        literal_column("1").label("attempt"),
        literal_column("0").label("fence"),
        literal_column("0").label("inbox"),
        literal_column("0").label("hand_backs"),
        literal_column("0").label("active_ms"),
        f.session,
        case((f.session.is_(null()), null()), else_=f.created_at).label("line_at"),
    )


__all__ = [
    "KeysHeldError",
    "enqueue",
    "enqueue_alone",
    "hints_of",
    "reset_key",
    "ringing",
    "stands_alone",
]
