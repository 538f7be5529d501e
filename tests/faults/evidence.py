"""What the judge looks at: the ledger, the producers' record, and the store's tables by plain SQL.

Nothing here imports the product.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tests.faults import ledger
from tests.faults.ledger import Line

SET_BACK: Final = "set back"
CUT_OFF: Final = "cut off from the database"
"""Of a span of one group: what it said, or heard, was cut, late, halved or swallowed."""


class Run(NamedTuple):
    id: str
    task: str
    session: str | None
    key: str | None
    parent: str | None
    created_at: float


class Outcome(NamedTuple):
    id: str
    state: str
    reason: str | None
    attempt: int
    fence: int
    result: Any
    error_bytes: int
    started_at: float | None
    finished_at: float


class Attempt(NamedTuple):
    run: str
    attempt: int
    fence: int
    reason: str
    error_type: str | None
    message: str
    ended_at: float


class Boundary(NamedTuple):
    run: str
    name: str
    kind: str
    fence: int
    value: Any
    created_at: float


@dataclass
class Activation:
    """One call of a handler, as its ledger tells of it."""

    run: str
    fence: int
    nonce: str
    task: str
    group: int
    started: float
    effects: list[float] = field(default_factory=list)
    ended: float | None = None
    left_by: str | None = None
    """The exception by which the handler was left, a wait's own too."""
    over: float | None = None
    """When it ended or was left; None where its process died with it."""


@dataclass(frozen=True)
class Span:
    """A time in which something was broken; for one process group, or for all."""

    what: str
    began: float
    ended: float
    group: int = 0


@dataclass
class Evidence:
    """All that is known at the end. Instants are of CLOCK_MONOTONIC."""

    lease_s: float
    runs: dict[str, Run] = field(default_factory=dict)
    live: dict[str, tuple[str, int]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)
    book: list[tuple[str, int, str]] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    loose: list[tuple[str, str]] = field(default_factory=list)
    """Rows that hang on nothing: which table, and which run or source."""
    lines: list[Line] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    seen: list[tuple[float, str, str, int]] = field(default_factory=list)
    """Outcomes as they were seen on the way: when they were committed, run, state, fence."""

    def activations(self) -> dict[str, list[Activation]]:
        """Return the activations of each run, in the order of their starts."""
        by_nonce: dict[str, Activation] = {}
        by_run: dict[str, list[Activation]] = defaultdict(list)
        for line in self.lines:
            if line.what == ledger.START:
                one = Activation(line.run, line.fence, line.nonce, line.task, line.group, line.at)
                by_nonce[line.nonce] = one
                by_run[line.run].append(one)
            elif (known := by_nonce.get(line.nonce)) is not None:
                if line.what == ledger.EFFECT:
                    known.effects.append(line.at)
                elif line.what == ledger.END:
                    known.ended = known.over = line.at
                elif line.what in (ledger.ERROR, ledger.PAUSE):
                    known.left_by, known.over = line.why, line.at
        for each in by_run.values():
            each.sort(key=lambda one: one.started)
        return by_run

    def gaps(self) -> list[Span]:
        """Return the times in which processes did not run, by their own account."""
        return [
            Span("stalled", line.at - line.seconds, line.at, line.group)
            for line in self.lines
            if line.what == ledger.GAP
        ]

    def cut_off(self) -> list[Span]:
        """Return for how long each group was cut off: one harm that followed on another is one.

        Between two harms there was time for a renewal only if a third of a lease went by.
        """
        joined: dict[int, list[Span]] = defaultdict(list)
        for span in sorted(self.spans, key=lambda span: span.began):
            if span.what != CUT_OFF:
                continue
            before = joined[span.group]
            if before and span.began - before[-1].ended < self.lease_s / 3:
                last = before.pop()
                span = Span(CUT_OFF, last.began, max(last.ended, span.ended), span.group)
            before.append(span)
        return [span for spans in joined.values() for span in spans]

    @property
    def set_backs(self) -> list[Span]:
        """The intervals whose commits were lost: from the copy to the start with it."""
        return [span for span in self.spans if span.what == SET_BACK]


_LOOSE: Final = {
    "freed": "select source from workhorse.freed",
    "links": "select source || ' -> ' || run_id from workhorse.links l"
    " where not exists (select from workhorse.live where live.id = l.run_id)",
    **{
        table: f"select distinct run_id::text from workhorse.{table} t"  # noqa: S608
        " where not exists (select from workhorse.runs where runs.id = t.run_id)"
        for table in ("attempts", "boundaries", "deliveries", "progress", "keys")
    },
    "outcomes": "select id::text from workhorse.outcomes t"
    " where not exists (select from workhorse.runs where runs.id = t.id)",
    "live": "select id::text from workhorse.live t"
    " where not exists (select from workhorse.runs where runs.id = t.id)",
}


def gather(
    connection: psycopg.Connection[Any],
    folder: Path,
    *,
    lease_s: float,
    spans: Iterable[Span],
    seen: Sequence[tuple[float, str, str, int]] = (),
) -> Evidence:
    """Read everything."""
    offset = time.time() - time.monotonic()

    def at(instant: datetime) -> float:
        return instant.timestamp() - offset

    def rows(sql: str) -> list[Any]:
        return connection.execute(sql).fetchall()

    found = Evidence(lease_s, spans=list(spans), seen=list(seen))
    found.runs = {
        str(row[0]): Run(
            str(row[0]), row[1], row[2], row[3], str(row[4]) if row[4] else None, at(row[5])
        )
        for row in rows("select id, task, session, key, parent_id, created_at from workhorse.runs")
    }
    found.live = {
        str(row[0]): (row[1], row[2])
        for row in rows("select id, state, attempt from workhorse.live")
    }
    found.outcomes = {
        str(row[0]): Outcome(
            str(row[0]), row[1], row[2], row[3], row[4],
            json.loads(row[5]) if row[5] else None, row[6] or 0,
            at(row[7]) if row[7] else None, at(row[8]),
        )
        for row in rows(
            "select id, state, reason, attempt, fence, result,"
            " octet_length(error_message) + coalesce(octet_length(error_traceback), 0),"
            " started_at, finished_at from workhorse.outcomes"
        )
    }  # fmt: skip
    found.attempts = [
        Attempt(str(row[0]), row[1], row[2], row[3], row[4], row[5] or "", at(row[6]))
        for row in rows(
            "select run_id, attempt, fence, reason, error_type, left(error_message, 300), ended_at"
            " from workhorse.attempts"
        )
    ]
    found.boundaries = [
        Boundary(
            str(row[0]), row[1], row[2], row[3], json.loads(row[4]) if row[4] else None, at(row[5])
        )
        for row in rows(
            "select run_id, name, kind, fence, value, created_at from workhorse.boundaries"
        )
    ]
    found.book = [
        (str(row[0]), row[1], row[2])
        for row in rows("select run_id, fence, nonce from faults_book")
    ]
    found.orders = [str(row[0]) for row in rows("select run_id from faults_orders")]
    found.loose = [(table, str(row[0])) for table, sql in _LOOSE.items() for row in rows(sql)]
    found.lines = ledger.read(folder / ledger.HANDLERS)
    found.asked = list(ledger.read_fields(folder / ledger.PRODUCERS))
    return found
