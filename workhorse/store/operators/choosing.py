"""Runs that an operator means by what they have in common, and how far a request of his reaches.

A request about many runs is worked off in pages, and may be cut off between two. What its first
call saw is bounded then and noted in the audit: a repeat of the request finishes the same set, and
touches nothing that has come since.

Source: docs/design.md, section 2
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Text, bindparam, exists, select
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.instants import to_micros
from workhorse.domain.runs import RunState
from workhorse.errors import IdempotencyConflictError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, audit, live, outcomes, runs
from workhorse.store.operators.operating import note

MANY: Final = "*"
"""What an act on many runs is noted under, besides each run's own act."""
START: Final = RunId("00000000-0000-0000-0000-000000000000")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """What the runs have in common; None is anything. `finished` says which half of them is meant.

    `created_after` and `created_before` are instants, the first included and the second not.
    """

    finished: bool
    state: RunState | None = None
    task: str | None = None
    queue: str | None = None
    tag: str | None = None
    error_type: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether all runs of its half are meant."""
        return not self._given()

    def _given(self) -> dict[str, Any]:
        values = asdict(self)
        del values["finished"]
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> str:
        """Return it as text: the same for the same filter."""
        given = {name: _plain(value) for name, value in self._given().items()}
        return json.dumps(given, sort_keys=True)

    def params(self) -> dict[str, Any]:
        """Return its parts as parameters, by name."""
        return {name: _bound(value) for name, value in self._given().items()}


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a request reaches: no newer run than `until`, and nothing that came after `at`."""

    until: RunId
    at: datetime


def begin_request(
    tx: Tx,
    act: str,
    runs_meant: RunFilter,
    *,
    limit: int | None,
    by: str,
    why: str,
    request_id: str,
    dry: bool = False,
) -> Bound:
    """Note a request about many runs with what it sees, or find what its first call has seen.

    Args:
        act: What is done to them.
        runs_meant: Which runs.
        limit: The most runs, the oldest first; it bounds the request by the last of them.
        by: Who asks.
        why: For the audit.
        request_id: Names the request.
        dry: Note nothing.

    Raises:
        IdempotencyConflictError: The request id belongs to a request about other runs.
    """
    found = _noted(tx, act, request_id)
    if not found:
        until = _last_of(tx, runs_meant, limit)
        if dry:
            return Bound(until, tx.dialect.read_instant(tx.fetch(_clock)[0].now))
        answer = json.dumps({"until": until, "limit": limit, "filter": runs_meant.to_json()})
        note(tx, act, MANY, by=by, why=why, request_id=request_id, answer=answer)
        found = _noted(tx, act, request_id)  # of somebody else, where he was quicker by a moment
    noted, at = found[0]
    if (noted["filter"], noted["limit"]) != (runs_meant.to_json(), limit):
        raise IdempotencyConflictError(
            f"the request id {request_id!r} belongs to another {act}, with another filter or "
            "limit, which stands; nothing was done. Use an id of its own for the new request"
        )
    return Bound(RunId(noted["until"]), at)


def choose(
    tx: Tx, runs_meant: RunFilter, bound: Bound, *, after: RunId = START, limit: int = 100
) -> list[RunId]:
    """Return the next runs that are meant, by id, which is about the order they were made in."""
    params = runs_meant.params()
    rows = tx.fetch(
        _choose,
        runs_meant.finished,
        tuple(sorted(params)),
        **params,
        until=bound.until,
        at_us=to_micros(bound.at),
        after=after,
        most=limit,
    )
    return [RunId(str(row.id)) for row in rows]


def done_before(tx: Tx, act: str, ids: Sequence[RunId], request_id: str) -> set[RunId]:
    """Return those of some runs to which a request has done its act already."""
    rows = tx.fetch(_done, act=act, ids=json.dumps(list(ids)), request_id=request_id)
    return {RunId(row.subject) for row in rows}


def _last_of(tx: Tx, runs_meant: RunFilter, limit: int | None) -> RunId:
    if limit is not None:
        params = runs_meant.params()
        form = runs_meant.finished, tuple(sorted(params))
        if rows := tx.fetch(_nth, *form, **params, skipped=limit - 1):
            return RunId(str(rows[0].id))
    newest = tx.fetch(_newest)
    return RunId(str(newest[0].id)) if newest else START


def _noted(tx: Tx, act: str, request_id: str) -> list[tuple[dict[str, Any], datetime]]:
    return [
        (json.loads(row.answer), tx.dialect.read_instant(row.at))
        for row in tx.fetch(_request, act=act, subject=MANY, request_id=request_id)
    ]


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _bound(value: object) -> object:
    return to_micros(value) if isinstance(value, datetime) else value


# -- statements ----------------------------------------------------------------------------------


def _meant(d: Dialect, finished: bool, given: tuple[str, ...]) -> Any:
    table = outcomes if finished else live
    columns = {
        "state": table.c.state,
        "task": runs.c.task,
        "queue": runs.c.queue,
        "error_type": outcomes.c.error_type,
    }
    statement = select(table.c.id).join(runs, table.c.id == runs.c.id)
    for name in given:
        if name == "tag":
            each = d.elements(runs.c.tags)
            has_it = exists(
                select(each.c.value).where(each.c.value == bindparam("tag", type_=Text))
            )
            statement = statement.where(runs.c.tags.is_not(None), has_it)
        elif name == "created_after":
            statement = statement.where(runs.c.created_at >= _instant(d, name))
        elif name == "created_before":
            statement = statement.where(runs.c.created_at < _instant(d, name))
        else:
            statement = statement.where(columns[name] == bindparam(name, type_=Text))
    return statement.order_by(table.c.id)


def _instant(d: Dialect, name: str) -> Any:
    return d.instant_of(bindparam(name, type_=BigInteger))


def _choose(d: Dialect, finished: bool, given: tuple[str, ...]) -> Executable:
    at = d.instant_of(bindparam("at_us", type_=BigInteger))
    last = outcomes.c.id if finished else live.c.id
    statement = _meant(d, finished, given).where(
        last > bindparam("after", type_=Id),
        last <= bindparam("until", type_=Id),
        # Ids are drawn by their producers, whose clocks may be behind.
        runs.c.created_at <= at,
    )
    if finished:
        statement = statement.where(outcomes.c.finished_at <= at)
    limited: Executable = statement.limit(bindparam("most", type_=Number))
    return limited


def _nth(d: Dialect, finished: bool, given: tuple[str, ...]) -> Executable:
    statement: Executable = (
        _meant(d, finished, given).limit(1).offset(bindparam("skipped", type_=Number))
    )
    return statement


def _newest(_d: Dialect) -> Executable:
    return select(runs.c.id).order_by(runs.c.id.desc()).limit(1)


def _clock(d: Dialect) -> Executable:
    return select(d.clock.label("now"))


def _request(_d: Dialect) -> Executable:
    return select(audit.c.answer, audit.c.at).where(
        *(audit.c[name] == bindparam(name, type_=Text) for name in ("act", "subject", "request_id"))
    )


def _done(d: Dialect) -> Executable:
    return select(audit.c.subject).where(
        audit.c.act == bindparam("act", type_=Text),
        d.one_of(audit.c.subject, "ids"),
        audit.c.request_id == bindparam("request_id", type_=Text),
    )
