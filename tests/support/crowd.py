"""Tables that have grown: many runs of the kinds that a claim must not be slowed by, quickly made.

The server fills its tables itself, one statement a table. Of ten runs two are pending, two of tasks
that no worker knows, two are due in a year, one stands in a paused queue, three have finished; and
some are running, as many whatever the size: a fleet holds what it has slots for.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from workhorse.store.base.database import Store

QUEUE: Final = "default"
TASK: Final = "orders.ship"
"""The task whose runs are pending in `QUEUE`; those of `unknown.0` to `unknown.19` are too."""
PAUSED: Final = "paused"
RUNNING: Final = 1_000

# The same for both databases, but for how they count, write an id, and tell the time.
_FILL: Final = (
    """
    insert into {s}runs (id, task, queue, payload, priority, created_at)
    select {id},
           case when n > {count} or n % 10 not in (2, 3) then 'orders.ship'
                else 'unknown.' || n / 10 % 20 end,
           case when n <= {count} and n % 10 = 6 then 'paused' else 'default' end,
           '{{"order":' || n || '}}', 50, {past}
      from {series}
    """,
    """
    insert into {s}live (id, queue, task, state, rank, ready_at, due_at, wake_sent, attempt, fence,
           token, lease_expires_at, inbox, hand_backs, active_ms, session, line_at, deadline_at,
           started_at)
    select {id},
           case when n <= {count} and n % 10 = 6 then 'paused' else 'default' end,
           case when n > {count} or n % 10 not in (2, 3) then 'orders.ship'
                else 'unknown.' || n / 10 % 20 end,
           case when n > {count} then 'running' when n % 10 in (4, 5) then 'scheduled'
                else 'ready' end,
           50,
           case when n <= {count} and n % 10 not in (4, 5) then {past} end,
           case when n <= {count} and n % 10 in (4, 5) then {future} end,
           {no}, 1,
           case when n > {count} then 1 else 0 end,
           case when n > {count} then n end,
           case when n > {count} then {lease} end,
           0, 0, 0,
           case when n % 50 = 1 then 's' || n end,
           case when n % 50 = 1 then {past} end,
           case when n % 50 = 4 then {future} end,
           case when n > {count} then {past} end
      from {series}
     where n > {count} or n % 10 < 7
    """,
    """
    insert into {s}outcomes (id, state, reason, attempt, fence, token, result, finished_at)
    select {id},
           case when n % 60 = 7 then 'failed' else 'succeeded' end,
           case when n % 60 = 7 then 'error' end,
           1, 1, n, 'null', {past}
      from {series}
     where n <= {count} and n % 10 >= 7
    """,
    """
    insert into {s}queues (name, paused_at, paused_by, paused_why)
    values ('paused', {past_of_queue}, 'a test', 'it is full')
    on conflict do nothing
    """,
)

# Ids rise as those of a producer do: 16 a millisecond.
_ON_POSTGRESQL: Final = {
    "s": '"{schema}".',
    "id": "(lpad(to_hex({base} + n / 16), 12, '0') || '7' || lpad(to_hex(n % 16 * 256), 3, '0')"
    " || '8' || substr(md5(n::text), 1, 15))::uuid",
    "past": "now() - interval '1 day' + n * interval '1 microsecond'",
    "future": "now() + interval '1 year' + n * interval '1 millisecond'",
    "lease": "now() + interval '50 minutes'",
    "past_of_queue": "now()",
    "no": "false",
    "series": "generate_series(1, {count} + {running}) n",
}
_ON_SQLITE: Final = {
    "s": "",
    "id": "printf('%08x-%04x-7%03x-8%03x-%012x', ({base} + n / 16) >> 16,"
    " ({base} + n / 16) & 65535, n % 16 * 256, n % 4096, n)",
    "past": "({now} - 86400000000 + n)",
    "future": "({now} + 31536000000000 + n * 1000)",
    "lease": "({now} + 3000000000)",
    "past_of_queue": "{now}",
    "no": "0",
    "series": "(with recursive c(n) as (select 1 union all select n + 1 from c"
    " where n < {count} + {running}) select n from c)",
}


def crowd(store: Store, count: int, *, running: int = RUNNING, analyze: bool = True) -> None:
    """Fill empty tables with some runs; everything in one transaction.

    Args:
        count: How many runs, but for the running ones.
        running: How many are running, under leases of nearly an hour.
        analyze: Whether the database looks at what it has got.
    """
    now = store.about_now()
    numbers = {
        "count": count,
        "running": running,
        "base": int(now.timestamp() * 1_000) - 86_400_000,
        "now": int(now.timestamp() * 1_000_000),
        "schema": store.schema,
    }
    on_postgresql = store.kind == "postgresql"
    parts = _ON_POSTGRESQL if on_postgresql else _ON_SQLITE
    filled = {name: part.format_map(numbers) for name, part in parts.items()}
    with store.engine.begin() as conn:
        if on_postgresql:
            conn.execute(text("set local lock_timeout = 0"))
        for statement in _FILL:
            sql = statement.format_map({**numbers, **filled})
            conn.exec_driver_sql(sql.replace("%", "%%") if on_postgresql else sql)
    if analyze:
        look(store)


def look(store: Store, *, vacuum: bool = False) -> None:
    """Let the database look at its tables now: collect statistics, and clean up where asked."""
    words = "vacuum analyze" if vacuum and store.kind == "postgresql" else "analyze"
    with store.engine.connect() as conn:
        raw = conn.connection.driver_connection
        assert raw is not None
        conn.rollback()
        if store.kind == "postgresql":
            raw.autocommit = True
        try:
            raw.execute(words)
        finally:
            if store.kind == "postgresql":
                raw.autocommit = False
