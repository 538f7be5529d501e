"""What the database does for each statement of an operation, and how many rows it touches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg import ClientCursor
from sqlalchemy import event

from workhorse.store.base.database import Store
from workhorse.store.base.dialect import CLOCK

_EXPLAIN = "explain (analyze, buffers, format json)"

Plan = Callable[[Any, str, dict[str, Any]], Any]
"""Plans a statement: `custom_plan` or `generic_plan`."""

FILL = """
    insert into workhorse.runs (id, task, queue, payload, priority, created_at)
    select gen_random_uuid(), case when n % 4 = 0 then 'unknown' else 'orders.ship' end,
           case when n % 2 = 0 then 'default' else 'other' end, '{}', n % 101, now()
      from generate_series(1, 45000) n;
    insert into workhorse.live (id, queue, task, state, rank, ready_at, due_at, wake_sent, attempt,
           fence, token, lease_expires_at, inbox, hand_backs, active_ms, session, line_at,
           deadline_at, started_at)
    select id, queue, task,
           case when n <= 20000 then 'ready' when n <= 40000 then 'scheduled' else 'running' end,
           100 - priority,
           case when n <= 20000 then now() - n * interval '1 second' end,
           case when n > 20000 and n <= 40000 then now() + n * interval '1 minute' end,
           n % 2 = 0, 1, case when n > 40000 then 1 else 0 end,
           case when n > 40000 then n end, case when n > 40000 then now() + interval '30 s' end,
           0, 0, 0,
           case when n % 10 = 0 then 's' || n end, case when n % 10 = 0 then now() end,
           case when n % 20 = 0 then now() + interval '1 day' end,
           case when n > 40000 then now() end
      from (select *, row_number() over () as n from workhorse.runs) r;
    insert into workhorse.outcomes (id, state, attempt, fence, token, result, finished_at)
    select gen_random_uuid(), 'succeeded', 1, 1, n, 'null', now()
      from generate_series(1, 20000) n;
    analyze;
"""
"""20,000 ready, 20,000 scheduled and 5,000 running runs, and 20,000 outcomes."""


@dataclass(frozen=True)
class Planned:
    """A statement as it was executed.

    Args:
        sql: Its text.
        touched: Rows that its scans returned, and those that they read and threw away.
        blocks: Blocks of 8 kB that it asked for, however often.
        whole: Tables that it read whole.
        plan: All of it.
    """

    sql: str
    touched: int
    blocks: int
    whole: set[str]
    plan: Any = field(repr=False)

    def __str__(self) -> str:
        return f"{self.touched} rows, {self.blocks} blocks: {self.sql}\n{json.dumps(self.plan)}"


@contextmanager
def planned(store: Store, *, generic: bool = False) -> Iterator[list[Planned]]:
    """Execute each statement of the store twice, and take the first one back; PostgreSQL only.

    Args:
        generic: Plan without looking at the values, as for a statement that was prepared long ago.
    """
    found: list[Planned] = []

    def look(conn: Any, cursor: Any, sql: str, params: Any, *_: Any) -> None:
        if not re.match(r"\s*(select|insert|update|delete|with)\b", sql, re.I):
            return
        raw = conn.connection.driver_connection
        alone = raw.autocommit  # a statement that is a transaction by itself
        raw.execute("begin" if alone else "savepoint planned")
        try:
            plan = (generic_plan if generic else custom_plan)(raw, sql, params, _EXPLAIN)
        finally:
            raw.execute("rollback" if alone else "rollback to savepoint planned")
        nodes = list(nodes_of(plan))
        found.append(
            Planned(
                sql,
                sum(map(_touched, nodes)),
                sum(plan[0]["Plan"].get(f"Shared {how} Blocks", 0) for how in ("Hit", "Read")),
                {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"},
                plan,
            )
        )

    event.listen(store.engine, "before_cursor_execute", look)
    try:
        yield found
    finally:
        event.remove(store.engine, "before_cursor_execute", look)


def nodes_of(plan: Any) -> Iterator[dict[str, Any]]:
    """Return the nodes of a plan."""
    if isinstance(plan, list):
        for part in plan:
            yield from nodes_of(part)
    elif isinstance(plan, dict):
        if "Node Type" in plan:
            yield plan
        for key in ("Plan", "Plans"):
            yield from nodes_of(plan.get(key))


def _touched(node: dict[str, Any]) -> int:
    if "Scan" not in node["Node Type"] or node["Node Type"] in ("CTE Scan", "Function Scan"):
        return 0
    removed = sum(value for key, value in node.items() if key.startswith("Rows Removed by"))
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])


def custom_plan(raw: Any, sql: str, params: Any, explain: str = "explain (format json)") -> Any:
    """Plan a statement of the driver's for its values."""
    return raw.execute(f"{explain} {sql}", params).fetchone()[0]


def generic_plan(raw: Any, sql: str, params: Any, explain: str = "explain (format json)") -> Any:
    """Plan a statement without looking at the values, as one that was prepared long ago."""
    names: list[str] = []

    def number(seen: re.Match[str]) -> str:
        if seen[1] not in names:
            names.append(seen[1])
        return f"${names.index(seen[1]) + 1}"

    numbered = re.sub(r"%\((\w+)\)s", number, sql)
    marks = ", ".join(f"%({name})s" for name in names)
    raw.execute("set local plan_cache_mode = force_generic_plan")
    raw.execute(f"prepare planned as {numbered}")
    with ClientCursor(raw) as cursor:
        call = f"({marks})" if names else ""
        cursor.execute(f"{explain} execute planned{call}", params)
        found = cursor.fetchone()
    raw.execute("deallocate planned")
    assert found is not None
    return found[0]


BOTH_WAYS = pytest.mark.parametrize("how", [custom_plan, generic_plan], ids=["custom", "generic"])


def plan_of(store: Store, form: Any, params: dict[str, Any], how: Plan) -> Any:
    """Plan a statement of the store's on PostgreSQL; it is not executed."""
    prepared = store._statements.prepare(*form)
    assert not prepared.needs_clock
    with store.engine.connect() as conn:
        raw = conn.connection.driver_connection
        return how(raw, prepared.sql, {**prepared.defaults, **params})


def sqlite_plan(store: Store, form: Any, params: dict[str, Any]) -> list[str]:
    """Plan a statement of the store's on SQLite."""
    prepared = store._statements.prepare(*form)
    values = {**prepared.defaults, **params, CLOCK: 0}
    with store.engine.connect() as conn:
        found = conn.exec_driver_sql(f"explain query plan {prepared.sql}", values)
        return [row[3] for row in found]
