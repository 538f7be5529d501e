"""What has happened to a run: its failed attempts, and what operators did to it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Text, bindparam, select
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.runs import Reason
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect
from workhorse.store.base.schema import Id, Number, attempts, audit

MOST: Final = 1_000
"""More acts on one subject than anybody reads."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt; `fence` is that of its last claim."""

    attempt: int
    fence: int
    reason: Reason
    error_type: str | None
    error_message: str | None
    error_traceback: str | None
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Act:
    """What an operator did; `answer` is what came of it, e.g. the id of a new run."""

    at: datetime
    act: str
    by: str
    why: str
    answer: str | None


def attempts_of(tx: Tx, run_id: RunId) -> list[Attempt]:
    """Return a run's failed attempts, in order; empty also where there is no such run."""
    return [
        Attempt(
            row.attempt,
            row.fence,
            Reason(row.reason),
            row.error_type,
            row.error_message,
            row.error_traceback,
            tx.dialect.read_instant(row.ended_at),
        )
        for row in tx.fetch(_attempts, id=run_id)
    ]


def acts_on(tx: Tx, subject: str) -> list[Act]:
    """Return what operators did to a run, by its id, or to a queue, by its name; in order."""
    return [
        Act(tx.dialect.read_instant(row.at), row.act, row.by, row.why, row.answer)
        for row in tx.fetch(_acts, subject=subject, most=MOST)
    ]


def _attempts(_d: Dialect) -> Executable:
    return (
        select(attempts)
        .where(attempts.c.run_id == bindparam("id", type_=Id))
        .order_by(attempts.c.attempt)
    )


def _acts(_d: Dialect) -> Executable:
    return (
        select(audit)
        .where(audit.c.subject == bindparam("subject", type_=Text))
        .order_by(audit.c.at, audit.c.id)
        .limit(bindparam("most", type_=Number))
    )
