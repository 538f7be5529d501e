"""Deliveries, time-outs and passes find their rows by the index that is meant for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.store.acting import put
from tests.store.planned import BOTH_WAYS, FILL, Plan, nodes_of, plan_of, sqlite_plan
from tests.support.databases import Databases
from workhorse.domain.ids import new_run_id
from workhorse.store.base.database import Store
from workhorse.store.durable import delivering, links, putting, tokens
from workhorse.store.lifecycle import sweeping
from workhorse.store.live import noting

_ID = new_run_id()
_IDS = json.dumps([new_run_id() for _ in range(100)])
_ONE = json.dumps([_ID])
_NAMES = json.dumps(
    [{"n": n, "run_id": new_run_id(), "kind": "signal", "name": "word"} for n in range(100)]
)
_NEW = json.dumps(
    [
        {
            "run_id": new_run_id(), "kind": "child", "name": f"c{n}", "state": "value",
            "inbox": 1, "bytes": 0, "child": new_run_id(),
        }
        for n in range(100)
    ]
)  # fmt: skip
_COUNTS = json.dumps([{"id": new_run_id(), "added": 1, "wake": True} for _ in range(100)])
_BLOCKED = json.dumps([{"id": new_run_id(), "count": 1} for _ in range(100)])
_GONE = json.dumps([{"source": _ID, "run_id": new_run_id(), "name": "x"} for _ in range(100)])
_REFS = json.dumps([f"tok_{n}" for n in range(100)])

# What is done: its statement, its parameters, the indexes that it is to use.
_HOT: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "lock who gets it": ((delivering._lock_one,), {"id": _ID}, {"live_pkey"}),
    "look at one": (
        (putting._seen,),
        {"batch": json.dumps([{"n": 0, "run_id": _ID, "kind": "signal", "name": "word"}])},
        {"live_pkey", "deliveries_pkey", "boundaries_pkey"},
    ),
    "look": (
        (putting._seen,),
        {"batch": _NAMES},
        {"live_pkey", "deliveries_pkey", "boundaries_pkey"},
    ),
    "what stands": (
        (delivering._standing,),
        {"id": _ID, "kind": "signal", "name": "word"},
        {"deliveries_pkey"},
    ),
    "unread": ((delivering._unread,), {"id": _ID}, {"deliveries_pkey", "boundaries_pkey"}),
    "store": ((putting._insert,), {"batch": _NEW}, {"outcomes_pkey"}),
    "count": ((putting._count,), {"batch": _COUNTS}, {"live_pkey"}),
    "promote": ((sweeping._promote, False), {}, {"live_due", "live_pkey"}),
    "overdue waits": (
        (delivering._overdue_waits,),
        {"ids": _IDS},
        {"boundaries_wake", "deliveries_pkey"},
    ),
    "tokens": ((tokens._lock,), {"refs": _REFS}, {"tokens_pkey"}),
    "tokens that are due": ((tokens._due,), {}, {"tokens_due"}),
    "settle tokens": (
        (tokens._settle,),
        {"refs": _REFS, "state": "value", "value": "1", "key": None},
        {"tokens_pkey"},
    ),
    "note": ((noting._note,), {"sources": _REFS}, set()),
    "oldest noted": ((links.oldest_noted, 100), {}, {"freed_at"}),
    "lock notes": ((links.lock_noted,), {"sources": _IDS}, {"freed_pkey"}),
    "forget": ((links.forget,), {"sources": _IDS}, {"freed_pkey", "links_pkey"}),
    "defer": ((links.defer,), {"sources": _IDS}, {"freed_pkey"}),
    "a page of one": ((links.page_of_links, 20), {"sources": _ONE}, {"links_pkey"}),
    "a page of links": ((links.page_of_links, 100), {"sources": _IDS}, {"links_pkey"}),
    "lock who waits": ((links.lock_waiting,), {"ids": _IDS}, {"live_pkey", "runs_pkey"}),
    "unfinished": ((links.unfinished,), {"ids": _IDS}, {"live_pkey"}),
    "ends": ((links.ends_of_runs,), {"ids": _IDS}, {"outcomes_pkey", "runs_pkey"}),
    "unblock": ((links.unblock,), {"batch": _BLOCKED}, {"live_pkey"}),
    "remove links": ((links.remove_links,), {"batch": _GONE, "sources": _ONE}, {"links_pkey"}),
    "unarmed": ((links.unarmed, False), {}, {"links_unarmed"}),
    "unarmed of these": (
        (links.unarmed, True),
        {"sources": _IDS},
        {"links_unarmed", "links_pkey"},
    ),
    "watch": ((links.watch,), {"ids": _IDS}, {"live_pkey"}),
    "armed": ((links.note_armed,), {"sources": _IDS}, {"links_pkey", "links_unarmed"}),
    "children": ((links.children_left, 100), {"parents": _ONE}, {"runs_parent", "live_pkey"}),
    "children of many": (
        (links.children_left, 100),
        {"parents": _IDS},
        {"runs_parent", "live_pkey"},
    ),
    "parents": ((links.parents_left,), {"parents": _IDS}, {"runs_parent", "live_pkey"}),
}

_MORE = """
    insert into workhorse.boundaries (run_id, name, kind, seq, bytes, wake_at, absolute, fence,
           created_at)
    select r.id, 'b' || i, case when i % 4 = 0 then 'signal' else 'checkpoint' end, i, 10,
           case when i % 4 = 0 then now() + interval '1 day' end, false, 1, now()
      from (select id from workhorse.runs limit 2500) r, generate_series(1, 20) i;
    insert into workhorse.deliveries (run_id, kind, name, state, inbox, bytes, created_at)
    select run_id, 'signal', name, 'value', seq, 1, now() from workhorse.boundaries;
    insert into workhorse.tokens (ref, state, due_at, created_at, settled_at)
    select 'ref' || n, case when n % 2 = 0 then 'open' else 'value' end,
           now() + n * interval '1 second', now(), case when n % 2 = 1 then now() end
      from generate_series(1, 30000) n;
    insert into workhorse.links (kind, source, run_id, name, armed)
    select 'token', 'ref' || n % 3000, id, 't' || n, n % 100 <> 0
      from (select id, row_number() over () as n from workhorse.runs limit 30000) r;
    insert into workhorse.freed (source, at)
    select 'ref' || n, now() - n * interval '1 ms' from generate_series(1, 20000) n;
    update workhorse.runs r set parent_id = p.id
      from (select id, row_number() over () as n from workhorse.runs) c,
           (select id, row_number() over () as n from workhorse.runs limit 2000) p
     where r.id = c.id and p.n = c.n / 20 and c.n < 40000;
    analyze;
"""
_TABLES = {"live", "runs", "outcomes", "boundaries", "deliveries", "tokens", "links", "freed"}


@pytest.fixture(scope="module")
def crowded(postgres: Databases, migrated_postgresql: str) -> Iterator[Store]:
    """45,000 unfinished runs, 50,000 boundaries and deliveries, 30,000 tokens and links."""
    name = postgres.create(template=migrated_postgresql)
    store = Store.open(postgres.url(name), connections=1)
    with store.engine.begin() as conn:
        raw = conn.connection.driver_connection
        assert raw is not None
        raw.execute(FILL)
        raw.execute(_MORE)
    yield store
    store.close()
    postgres.drop(name)


@BOTH_WAYS
@pytest.mark.parametrize("what", _HOT)
def test_it_uses_its_index(crowded: Store, what: str, how: Plan) -> None:
    form, params, indexes = _HOT[what]

    plan = plan_of(crowded, form, params, how)

    nodes = list(nodes_of(plan))
    whole = {node.get("Relation Name") for node in nodes if node["Node Type"] == "Seq Scan"}
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    told = json.dumps(plan)[:4000]
    assert not whole & _TABLES, told
    assert used <= indexes, told
    assert used or not indexes, told


def test_limits_stand_in_the_statement(store: Store) -> None:
    for form in (
        (links.page_of_links, 100), (links.children_left, 100), (links.oldest_noted, 100),
        (links.unarmed, False), (tokens._due,),
    ):  # fmt: skip
        assert "LIMIT 100" in store._statements.prepare(*form).sql
    assert "LIMIT 20" in store._statements.prepare(links.page_of_links, 20).sql


@pytest.mark.parametrize("what", [what for what in _HOT if what != "note"])
def test_it_reads_no_table_whole_on_sqlite(sqlite_store: Store, what: str) -> None:
    form, params, _ = _HOT[what]
    put(sqlite_store)

    plan = sqlite_plan(sqlite_store, form, params)

    # One that is read in the order of an index ends at its limit.
    whole = [
        step
        for step in plan
        if step.startswith("SCAN ") and step.split()[1] in _TABLES and "INDEX" not in step
    ]
    assert not whole, plan
