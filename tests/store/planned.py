"""What the database does for each statement of an operation, and how many rows it touches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg import ClientCursor
from sqlalchemy import event

from workhorse.store.database import Store

_EXPLAIN = "explain (analyze, buffers, format json)"


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
            plan = _generic(raw, sql, params) if generic else _custom(raw, sql, params)
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


def _custom(raw: Any, sql: str, params: Any) -> Any:
    return raw.execute(f"{_EXPLAIN} {sql}", params).fetchone()[0]


def _generic(raw: Any, sql: str, params: Any) -> Any:
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
        cursor.execute(f"{_EXPLAIN} execute planned{call}", params)
        found = cursor.fetchone()
    raw.execute("deallocate planned")
    assert found is not None
    return found[0]
