"""Hot statements find their rows by the index that is meant for them (docs/cases.md, case 16)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.store.acting import TASK, put
from tests.store.planned import BOTH_WAYS, FILL, Plan, nodes_of, plan_of, sqlite_plan
from tests.support.databases import Databases
from workhorse.domain.ids import new_run_id
from workhorse.store.base.database import Store, Tx
from workhorse.store.lifecycle import claiming, picking, settling, sighting, sweeping
from workhorse.store.lifecycle.cursors import probes_of
from workhorse.store.live import ending, leasing
from workhorse.store.operators import viewing

_IDS = json.dumps([new_run_id() for _ in range(100)])
_LEASES = json.dumps([{"id": new_run_id(), "token": number} for number in range(1, 101)])
_FIRST = "00000000-0000-0000-0000-000000000000"
_SCAN = {"probes": probes_of([TASK, "other"], None)}
_CLAIM = {
    "queue": "default",
    "tasks": json.dumps([TASK, "other"]),
    "free": 100,
    "token": 7,
    "lease_ms": 30_000,
}
_ENDS = json.dumps(
    [
        {"id": new_run_id(), "token": number, "final": True, "state": "succeeded", "result": "null"}
        for number in range(1, 101)
    ]
)

# What is done, its statement, its parameters, and the indexes of `live` that it may use.
_HOT: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "claim by ids": (
        (claiming._claim, True, False, True),
        {**_CLAIM, "ids": _IDS},
        {"live_pkey", "live_session", "live_turn"},
    ),
    "claim by scan": (
        (claiming._claim, False, True, True),
        {**_CLAIM, **_SCAN},
        {"live_ready", "live_pkey", "live_session", "live_turn"},
    ),
    "claim by ids, filled up": (
        (claiming._claim, True, True, True),
        {**_CLAIM, **_SCAN, "ids": _IDS},
        {"live_ready", "live_pkey", "live_session", "live_turn"},
    ),
    "look up a claim": ((claiming._read_claimed,), {"token": 7}, {"live_running"}),
    "sight": (
        (sighting._sight,),
        {"ids": _IDS},
        {"live_pkey", "live_session", "live_turn"},
    ),
    "renew": ((leasing._renew,), {"batch": _LEASES, "lease_ms": 30_000}, {"live_pkey"}),
    "end": ((ending._end, True), {"batch": _ENDS}, {"live_pkey"}),
    "end from outside": ((ending._end, False), {"batch": _ENDS}, {"live_pkey"}),
    "give back": ((settling._give,), {"batch": _LEASES}, {"live_pkey"}),
    "next turns": (
        (ending._next_turns,),
        {"sessions": '["s1","s2"]'},
        {"live_session", "live_turn"},
    ),
    "recover": ((sweeping._expired, "expired", False), {}, {"live_running"}),
    "recover in place": (
        (sweeping._expired, "expired", True),
        {"ids": _IDS},
        {"live_pkey", "live_running"},
    ),
    "finish cancelled": (
        (sweeping._expired, "cancelled", False),
        {},
        {"live_running", "live_cancelled"},
    ),
    "promote": ((sweeping._promote, False), {}, {"live_due", "live_pkey"}),
    "promote in place": ((sweeping._promote, True), {"ids": _IDS}, {"live_due", "live_pkey"}),
    "deadlines": ((sweeping._overdue,), {}, {"live_deadline"}),
    "far timers": (
        (sweeping._far,),
        {"farthest_ms": 900_000, "without": "[]"},
        {"live_unsent"},
    ),
    "top up": ((viewing._ready,), {"queue": "default", "most": 1_000}, {"live_ready"}),
    "rehint": ((viewing._ready_page, False, 1_000), {"queue": "default"}, {"live_ready"}),
    "rehint, a further page": (
        (viewing._ready_page, True, 1_000),
        {
            "queue": "default",
            "task": TASK,
            "rank": 50,
            "ready_at": datetime.now(UTC) - timedelta(hours=1),
            "last": _FIRST,
        },
        {"live_ready"},
    ),
    "open queues": ((viewing._open_queues,), {}, {"live_ready"}),
}


@pytest.fixture(scope="module")
def filled(postgres: Databases, migrated_postgresql: str) -> Iterator[Store]:
    """20,000 ready, 20,000 scheduled and 5,000 running runs, by the server's own clock."""
    name = postgres.create(template=migrated_postgresql)
    store = Store.open(postgres.url(name), connections=1)
    with store.engine.begin() as conn:
        raw = conn.connection.driver_connection
        assert raw is not None
        raw.execute(FILL)  # as it is: the driver looks for no parameters where none are given
    yield store
    store.close()
    postgres.drop(name)


@BOTH_WAYS
@pytest.mark.parametrize("what", _HOT)
def test_case_16_a_hot_statement_uses_its_index(filled: Store, what: str, how: Plan) -> None:
    plan = plan_of(filled, *_HOT[what][:2], how)

    nodes = list(nodes_of(plan))
    read_whole = {
        node.get("Relation Name") for node in nodes if node["Node Type"] == "Seq Scan"
    } & {"live", "runs", "outcomes"}
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    told = json.dumps(plan)[:4000]
    assert not read_whole, told
    indexes = _HOT[what][2]
    assert {name for name in used if name.startswith("live_")} <= indexes, told
    assert used & indexes, told


@BOTH_WAYS
@pytest.mark.parametrize("what", ["rehint", "rehint, a further page"])
def test_a_page_of_ready_runs_is_read_off_its_index(filled: Store, what: str, how: Plan) -> None:
    """And not sorted: of a million ready runs, each page would read all."""
    (limit, scan) = nodes_of(plan_of(filled, *_HOT[what][:2], how))

    assert limit["Node Type"] == "Limit"
    assert scan["Node Type"] in ("Index Scan", "Index Only Scan")
    assert scan["Index Name"] == "live_ready"
    if "further" in what:  # it begins where the last page ended
        assert "ROW(task, rank, ready_at, id) >" in scan["Index Cond"]


@pytest.mark.parametrize("form", [(ending._end, True), (settling._give,), (leasing._renew,)])
def test_what_is_written_under_a_lease_names_no_state(store: Store, form: Any) -> None:
    """It would lure the planner into reading every leased row; the token implies it."""
    sql = store._statements.prepare(*form).sql
    conditions = re.findall(r"where.*?(?:for update|returning|$)", sql.lower(), re.S)

    assert conditions
    assert not [part for part in conditions if re.search(r"live\.state\s*(=|in)", part)]


def test_limits_stand_in_the_statement(store: Store) -> None:
    """With a parameter for its limit, a page's generic plan sorts the whole backlog."""
    for form in (
        (sweeping._expired, "expired", False),
        (sweeping._promote, False),
        (sweeping._overdue,),
        (sweeping._far,),
    ):
        assert "LIMIT 100" in store._statements.prepare(*form).sql
    assert "LIMIT 200" in store._statements.prepare(claiming._claim, False, True, True).sql


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
def test_plans_are_those_that_go_by_indexes(postgresql_url: str, pooler: bool) -> None:
    store = Store.open(postgresql_url, pooler=pooler)
    wanted = {
        "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_mergejoin": "off",
        "random_page_cost": "1.1", "jit": "off",
    }  # fmt: skip

    def show(tx: Tx) -> dict[str, str]:
        return {name: tx.conn.exec_driver_sql(f"show {name}").scalar_one() for name in wanted}

    assert store.run(show) == wanted
    store.close()


# -- SQLite --------------------------------------------------------------------------------------


_ON_SQLITE: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "pick by scan": (
        (picking.picked_ids, False, True, True),
        {**_CLAIM, **_SCAN},
        ["SEARCH c USING (COVERING )?INDEX live_ready \\(queue=\\? AND task=\\?"],
    ),
    "pick by ids, filled up": (
        (picking.picked_ids, True, True, True),
        {**_CLAIM, **_SCAN, "ids": _IDS},
        [
            "SEARCH c USING (COVERING )?INDEX live_ready \\(queue=\\? AND task=\\?",
            "SEARCH live USING PRIMARY KEY \\(id=\\?",
        ],
    ),
    "recover": ((sweeping._expired, "expired", False), {}, ["live USING INDEX live_running"]),
    "promote": (
        (sweeping._promote, False),
        {},
        ["SEARCH live USING (COVERING )?INDEX live_due \\(due_at>\\? AND due_at<\\?"],
    ),
    "deadlines": (
        (sweeping._overdue,),
        {},
        ["SEARCH live USING COVERING INDEX live_deadline \\(deadline_at>\\? AND deadline_at"],
    ),
    "far timers": (
        (sweeping._far,),
        {"farthest_ms": 900_000, "without": "[]"},
        ["SEARCH live USING INDEX live_unsent"],
    ),
    "rehint": (
        (viewing._ready_page, False, 1_000),
        {"queue": "default"},
        ["SEARCH live USING (COVERING )?INDEX live_ready \\(queue=\\?\\)"],
    ),
    "rehint, a further page": (
        (viewing._ready_page, True, 1_000),
        {"queue": "default", "task": TASK, "rank": 50, "ready_at": 0, "last": _FIRST},
        [
            "INDEX live_ready \\(queue=\\? AND \\(task,rank,ready_at,id\\)>",
        ],
    ),
    "take": (
        (claiming._take,),
        {**_CLAIM, "chosen": _IDS},
        ["SEARCH live USING PRIMARY KEY \\(id=\\?"],
    ),
    "end": (
        (ending._ending, True),
        {"batch": _ENDS},
        ["SEARCH live USING PRIMARY KEY \\(id=\\?"],
    ),
    "give back": (
        (settling._give,),
        {"batch": _LEASES},
        ["SEARCH live USING PRIMARY KEY \\(id=\\?"],
    ),
    "extend": (
        (leasing._extend,),
        {"batch": _LEASES, "lease_ms": 1},
        ["SEARCH live USING PRIMARY KEY \\(id=\\?"],
    ),
    "next turns": (
        (ending._next_turns,),
        {"sessions": '["s"]'},
        ["SEARCH live USING (COVERING )?INDEX live_session \\(session=\\?"],
    ),
}


@pytest.mark.parametrize("what", _ON_SQLITE)
def test_case_16_a_hot_statement_uses_its_index_on_sqlite(sqlite_store: Store, what: str) -> None:
    form, params, wanted = _ON_SQLITE[what]
    put(sqlite_store)

    plan = sqlite_plan(sqlite_store, form, params)

    for pattern in wanted:
        assert any(re.search(pattern, step) for step in plan), plan
    if what.startswith("rehint"):
        assert not [step for step in plan if "TEMP B-TREE" in step], plan
    whole = [step for step in plan if re.fullmatch(r"SCAN (live|runs|outcomes|c|n|e|o)", step)]
    assert not whole, plan
