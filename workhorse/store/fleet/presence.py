"""Who is alive: the beats of workers and of maintenance.

A beat is one small write of one row by its key, and touches no index. Nothing that is decided about
a run hangs on it: leases are what says who may write.

Source: docs/design.md, section 9; docs/adr/0024-processes-that-beat.md
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    delete,
    literal_column,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.sql.expression import Executable

from workhorse.domain.presence import (
    BEATS_MISSED,
    KEPT_MS,
    Process,
    ProcessKind,
    ProcessView,
    state_of,
)
from workhorse.store.base.database import Tx, writes_once
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.pages import PAGE, Swept
from workhorse.store.base.schema import processes

_SAID: Final[dict[str, Any]] = {
    "key": Text(),
    "id": Text(),
    "kind": Text(),
    "host": Text(),
    "pid": BigInteger(),
    "version": Text(),
    "build": Text(),
    "lane": Text(),
    "queues": Text(),
    "slots": Integer(),
    "every_ms": BigInteger(),
    "stopping": Boolean(),
}
"""What a process says by a beat; its instants are the database's."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A build, and queues that a live worker of it serves."""

    build: str
    queues: tuple[str, ...]


@writes_once
def beat(tx: Tx, process: Process, *, up_ms: int, stopping: bool = False) -> None:
    """Say that a process is alive.

    Args:
        up_ms: For how long it has been up.
        stopping: Whether it claims nothing more.
    """
    tx.write(_beat, **_said(process, up_ms, stopping))


@writes_once
def beat_and_look(tx: Tx, process: Process, *, up_ms: int, stopping: bool = False) -> list[Serving]:
    """As `beat`; answer which builds other live workers have, and what they serve.

    Workers without a build, and those that stop, are left out.
    """
    said = _said(process, up_ms, stopping)
    if tx.dialect.one_statement:
        rows = tx.fetch(_beat_and_look, **said)
    else:
        tx.write(_beat, **said)
        rows = tx.fetch(_look, said_key=process.key)
    return [Serving(row.build, tuple(json.loads(row.queues))) for row in rows]


def leave(tx: Tx, key: str) -> None:
    """Take a process off the list: it has ended as it should."""
    tx.write(_leave, said_key=key)


def list_processes(tx: Tx) -> list[ProcessView]:
    """Return the processes whose last beat is less than an hour old, by kind, id and start."""
    return [_view(tx, row) for row in tx.fetch(_list)]


def prune(tx: Tx, limit: int = PAGE) -> Swept:
    """Take a page of processes off the list that have not been heard of for an hour."""
    count = len(tx.fetch(_prune, most=limit, kept_ms=KEPT_MS))
    return Swept(count, count == limit)


def _said(process: Process, up_ms: int, stopping: bool) -> dict[str, Any]:
    return {
        "said_key": process.key,
        "said_id": process.id,
        "said_kind": process.kind.value,
        "said_host": process.host,
        "said_pid": process.pid,
        "said_version": process.version,
        "said_build": process.build,
        "said_lane": process.lane,
        "said_queues": json.dumps(list(process.queues)),
        "said_slots": process.slots,
        "said_every_ms": process.every_ms,
        "said_stopping": stopping,
        "up_ms": -up_ms,
    }


def _view(tx: Tx, row: Any) -> ProcessView:
    kind = ProcessKind(row.kind)
    state = state_of(kind, age_ms=row.age_ms, every_ms=row.every_ms, stopping=bool(row.stopping))
    return ProcessView(
        key=row.key,
        id=row.id,
        kind=kind,
        state=state,
        host=row.host,
        pid=row.pid,
        version=row.version,
        build=row.build,
        lane=row.lane,
        queues=tuple(json.loads(row.queues)),
        slots=row.slots,
        every_ms=row.every_ms,
        started_at=tx.dialect.read_instant(row.started_at),
        beat_at=tx.dialect.read_instant(row.beat_at),
        age_ms=int(row.age_ms),
    )


# -- statements ----------------------------------------------------------------------------------


def alive(d: Dialect) -> ColumnElement[bool]:
    """Say that a process's last beat is not older than its kind may be, nor from the future."""
    bound = literal_column(str(BEATS_MISSED), BigInteger) * processes.c.every_ms
    return and_(
        processes.c.beat_at > d.after(d.now, -bound), processes.c.beat_at < d.after(d.now, bound)
    )


def _upsert(d: Dialect) -> Any:
    said = [bindparam(f"said_{name}", type_=kind).label(name) for name, kind in _SAID.items()]
    started = d.after(d.clock, bindparam("up_ms", type_=BigInteger))
    insert = upsert(d, processes).from_select(
        [*_SAID, "started_at", "beat_at"],
        # The condition keeps SQLite from reading ON as a join's.
        select(*said, started, d.clock).where(
            true() if d.one_statement else literal_column("1 = 1")
        ),
    )
    new = insert.excluded
    same = and_(processes.c.host == new.host, processes.c.pid == new.pid)
    return insert.on_conflict_do_update(
        index_elements=["key"],
        set_={
            **{name: new[name] for name in (*_SAID, "beat_at") if name != "key"},
            # What the first beat says stands, unless it is another process under the same key.
            "started_at": case((same, processes.c.started_at), else_=new.started_at),
        },
    )


def _beat(d: Dialect) -> Executable:
    statement: Executable = _upsert(d)
    return statement


def _look(d: Dialect) -> Executable:
    return (
        select(processes.c.build, processes.c.queues)
        .where(
            processes.c.kind == literal_column("'worker'"),
            processes.c.key != bindparam("said_key", type_=Text),
            processes.c.build != literal_column("''"),
            not_(processes.c.stopping),
            alive(d),
        )
        .distinct()
    )


def _beat_and_look(d: Dialect) -> Executable:
    written = _upsert(d).returning(processes.c.key).cte("written")
    return _look(d).add_cte(written)  # type: ignore[attr-defined, no-any-return]


def _leave(_d: Dialect) -> Executable:
    return delete(processes).where(processes.c.key == bindparam("said_key", type_=Text))


def _list(d: Dialect) -> Executable:
    kept = literal_column(str(KEPT_MS), BigInteger)
    return (
        select(processes, d.millis(processes.c.beat_at, d.now).label("age_ms"))
        .where(processes.c.beat_at > d.after(d.now, -kept))
        .order_by(processes.c.kind, processes.c.id, processes.c.started_at, processes.c.key)
    )


def _prune(d: Dialect) -> Executable:
    kept = bindparam("kept_ms", type_=BigInteger)
    gone = (
        select(processes.c.key)
        .where(
            or_(
                processes.c.beat_at <= d.after(d.now, -kept),
                # Written by a clock that was ahead, and not corrected by a beat since.
                processes.c.beat_at > d.after(d.now, kept),
            )
        )
        .limit(bindparam("most", type_=BigInteger))
        # Whoever beats just now holds its row, and is not gone.
        .with_for_update(skip_locked=True)
    )
    return delete(processes).where(d.among(processes.c.key, gone)).returning(processes.c.key)


__all__ = [
    "Serving",
    "alive",
    "beat",
    "beat_and_look",
    "leave",
    "list_processes",
    "prune",
]
