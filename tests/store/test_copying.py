"""A rerun takes over boundaries, and what came for them: all, none, or up to a named one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.store.acting import (
    FAIL,
    RETRY_NOW,
    a_claimed,
    end,
    live_row,
    reach,
    rows,
    take_one,
)
from tests.store.passing import passed, received
from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.domain.ids import RunId
from workhorse.errors import BoundaryNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.operators.inspecting import list_waits, read_boundaries, read_deliveries
from workhorse.store.operators.operating import rerun

ANY, CHILD, HUMAN, SIGNAL, TIMER, TOKEN = (
    BoundaryKind.ANY,
    BoundaryKind.CHILD,
    BoundaryKind.HUMAN,
    BoundaryKind.SIGNAL,
    BoundaryKind.TIMER,
    BoundaryKind.TOKEN,
)


def _again(store: Store, run_id: RunId, boundaries: str, request_id: str = "r") -> RunId:
    return store.run(
        rerun,
        run_id,
        by="ann",
        why="",
        request_id=request_id,
        reach=reach,
        boundaries=boundaries,
    ).run_id


def _durable(store: Store) -> RunId:
    """A run that has passed one of each, and ends as failed."""
    run = a_claimed(store)
    passed(store, run, "charge", value='{"id":1}', fingerprint="f")
    passed(store, run, "paid", SIGNAL)
    received(store, run.id, "shipped", value='"unread"')
    received(store, run.id, "paid", value='"yes"', by="ann", why="ok")
    passed(store, run, "label", CHILD, detail='"id"', fingerprint="g")
    received(store, run.id, "label", CHILD, state=DeliveryState.FAILED, value='{"reason":"error"}')
    passed(store, run, "open child", CHILD, detail='"id"')
    passed(store, run, "open token", TOKEN, detail='"ref"')
    passed(store, run, "nap", TIMER, delay_ms=60_000)
    passed(store, run, "approve", HUMAN, detail='"context"', delay_ms=5_000)
    received(store, run.id, "done", TOKEN, value="1")  # it belongs to no wait that was reached
    end(store, run, FAIL)
    return run.id


def _kept(store: Store, run_id: RunId) -> tuple[list[str], list[tuple[int, str]]]:
    return (
        [each.name for each in store.run(read_boundaries, run_id)],
        [(each.inbox, each.name) for each in store.run(read_deliveries, run_id)],
    )


@pytest.mark.parametrize(
    ("boundaries", "passed_there", "came"),
    [
        ("none", [], []),
        ("charge", ["charge"], []),
        ("paid", ["charge", "paid"], ["paid"]),
        ("label", ["charge", "paid", "label"], ["paid", "label"]),
        ("open token", ["charge", "paid", "label"], ["paid", "label"]),
        ("nap", ["charge", "paid", "label", "nap"], ["paid", "label"]),
        (
            "all",
            ["charge", "paid", "label", "nap", "approve"],
            ["shipped", "paid", "label"],
        ),
    ],
)
def test_boundaries_are_taken_over_up_to_the_named_one(
    store: Store, boundaries: str, passed_there: list[str], came: list[str]
) -> None:
    new = _again(store, _durable(store), boundaries)

    assert _kept(store, new) == (passed_there, list(enumerate(came, start=1)))
    assert live_row(store, new).inbox == (max(1, len(came)) if passed_there else 0)


def test_what_is_taken_over_is_what_stood_there(store: Store, clock: ManualClock) -> None:
    old = _durable(store)
    clock.advance(1_000)
    new = _again(store, old, "all")

    def whole(run_id: RunId, table: str, left: str) -> list[Any]:
        return [
            {name: value for name, value in row._mapping.items() if name not in left.split()}
            for row in rows(store, f"select * from {{s}}{table} where run_id = :id", id=run_id)  # noqa: S608
        ]

    changed = "run_id fence created_at inbox"
    for table in ("boundaries", "deliveries"):
        before, after = whole(old, table, changed), whole(new, table, changed)
        assert all(row in before for row in after)
    assert {row.fence for row in rows(store, _BOUNDARIES, id=new)} == {0}
    assert {each.created_at for each in store.run(read_boundaries, new)} == {clock.now}
    assert {each.at for each in store.run(read_deliveries, new)} == {clock.now}


_BOUNDARIES = "select * from {s}boundaries where run_id = :id"


def test_a_claim_of_the_new_run_brings_what_was_taken_over(store: Store) -> None:
    old = _durable(store)

    for boundaries, names in (("charge", ["charge"]), ("paid", ["charge", "paid"]), ("none", [])):
        claimed = take_one(store, _again(store, old, boundaries, request_id=boundaries))
        assert [each.name for each in claimed.history.boundaries] == names
        assert claimed.history.count == len(names)
        end(store, claimed, RETRY_NOW)


def test_what_another_run_was_sent_settles_nothing_here(store: Store) -> None:
    """What is open of a child or a token is left out, or nobody would ever end it."""
    old, beside = _durable(store), a_claimed(store)
    for name, kind in (("open child", CHILD), ("open token", TOKEN), ("word", SIGNAL)):
        received(store, beside.id, name, kind, value="1")

    new = _again(store, old, "open token")

    assert _kept(store, new)[0] == ["charge", "paid", "label"]
    assert (live_row(store, new).inbox, live_row(store, beside.id).inbox) == (2, 3)


def test_what_was_sent_of_another_kind_belongs_to_no_boundary_of_its_name(store: Store) -> None:
    run = a_claimed(store)
    passed(store, run, "part", CHILD, detail='"id"')
    passed(store, run, "word", SIGNAL)
    for name, kind in (("part", SIGNAL), ("word", SIGNAL), ("word", HUMAN)):
        received(store, run.id, name, kind, value=f'"{kind}"')
    end(store, run, FAIL)

    new = _again(store, run.id, "word")

    assert [each.name for each in store.run(read_boundaries, new)] == ["word"]
    assert [each.kind for each in store.run(read_deliveries, new)] == [SIGNAL]


def test_what_nobody_has_asked_for_comes_along_though_nothing_was_passed(store: Store) -> None:
    run = a_claimed(store)
    received(store, run.id, "word", value='"unread"')
    end(store, run, FAIL)

    claimed = take_one(store, _again(store, run.id, "all"))

    assert [each.value for each in claimed.history.deliveries] == ['"unread"']


def test_waits_that_were_open_are_open_again(store: Store) -> None:
    new = _again(store, _durable(store), "all")

    assert [(wait.run_id, wait.name) for wait in store.run(list_waits)] == [
        (new, "approve"),
        (new, "nap"),
    ]


def test_the_next_delivery_is_counted_on(store: Store) -> None:
    new = _again(store, _durable(store), "all")

    received(store, new, "approve", HUMAN)

    assert [each.inbox for each in store.run(read_deliveries, new)] == [1, 2, 3, 4]


def test_a_rerun_of_a_rerun_takes_over_what_that_had(store: Store) -> None:
    first = _again(store, _durable(store), "paid")
    claimed = take_one(store, first)
    passed(store, claimed, "ship", value="1")
    end(store, claimed, FAIL)

    second = _again(store, first, "all")

    assert _kept(store, second) == (["charge", "paid", "ship"], [(1, "paid")])


def test_a_name_that_is_not_there_is_refused_with_what_is_there(store: Store) -> None:
    old = _durable(store)

    with pytest.raises(BoundaryNotFoundError, match="no boundary 'chrge'.*'charge', 'paid'"):
        _again(store, old, "chrge")

    assert rows(store, "select * from {s}audit") == []
    assert len(rows(store, "select * from {s}runs")) == 1


def test_a_run_with_very_many_boundaries_lists_the_first(store: Store) -> None:
    run = a_claimed(store)
    for at in range(51):
        passed(store, run, f"step {at}")
    end(store, run, FAIL)

    with pytest.raises(BoundaryNotFoundError, match=r"'step 49', \.\.\.$"):
        _again(store, run.id, "nope")


def test_the_same_request_copies_once(store: Store) -> None:
    old = _durable(store)
    new = _again(store, old, "all")
    kept = _kept(store, new)

    assert _again(store, old, "none") == new
    assert _kept(store, new) == kept


def _chosen(store: Store) -> RunId:
    """A run whose choice has closed one wait of each kind, and one that it never got to."""
    run = a_claimed(store)
    losers = [("asked", SIGNAL), ("approved", HUMAN), ("part", CHILD), ("paid", TOKEN)]
    for name, kind in losers:
        passed(store, run, name, kind, detail='"id"')
    passed(store, run, "won", SIGNAL)
    received(store, run.id, "won", value="1")
    for name, kind in [*losers, ("never reached", TOKEN)]:
        received(store, run.id, name, kind, state=DeliveryState.CLOSED)
    names = json.dumps(["approved", "asked", "never reached", "paid", "part", "won"])
    passed(store, run, "any:approved", ANY, value='{"winner":"won"}', detail=names)
    passed(store, run, "after it")
    end(store, run, FAIL)
    return run.id


@pytest.mark.parametrize(
    ("boundaries", "left"), [("all", []), ("after it", []), ("any:approved", ["after it"])]
)
def test_what_a_choice_has_closed_stays_so_where_the_choice_comes_along(
    store: Store, boundaries: str, left: list[str]
) -> None:
    old = _chosen(store)
    names, came = _kept(store, old)

    new = _again(store, old, boundaries)

    assert _kept(store, new) == ([name for name in names if name not in left], came)


@pytest.mark.parametrize(
    ("boundaries", "passed_there", "came"),
    [
        ("asked", ["asked"], []),
        ("part", ["asked", "approved"], []),
        ("won", ["asked", "approved", "won"], [(1, "won")]),
    ],
)
def test_what_a_choice_has_closed_is_open_again_where_it_does_not(
    store: Store, boundaries: str, passed_there: list[str], came: list[tuple[int, str]]
) -> None:
    """Children and tokens are left out: the new run starts, or links, anew."""
    new = _again(store, _chosen(store), boundaries)

    assert _kept(store, new) == (passed_there, came)
    assert {wait.name for wait in store.run(list_waits, run_id=new)} == {*passed_there} - {"won"}


def test_what_another_run_has_chosen_closes_nothing_here(store: Store) -> None:
    old, beside = _chosen(store), a_claimed(store)
    passed(store, beside, "any:asked", ANY, value="{}", detail='["approved", "asked"]')

    assert _kept(store, _again(store, old, "asked")) == (["asked"], [])
