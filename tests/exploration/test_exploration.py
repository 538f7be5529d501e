"""All interleavings of two workers and what can happen to one run, on the store's own functions."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.exploration.explorer import Explorer, FoundError
from tests.exploration.rules import LEGAL
from tests.exploration.steps import Bounds, Step
from tests.store.invariants import check_invariants
from workhorse.store.base.database import ManualClock, Store

IN_CI = bool(os.environ.get("CI"))


@pytest.fixture
def store(sqlite_url: str, clock: ManualClock) -> Iterator[Store]:
    store = Store.open(sqlite_url, clock=clock)
    yield store
    store.close()


def test_no_interleaving_breaks_a_rule(store: Store, clock: ManualClock) -> None:
    """Within the bounds it is complete; three claims take half a minute, two a few seconds."""
    explored = Explorer(store, clock, Bounds(claims=3 if IN_CI else 2)).explore()

    print(explored)
    assert explored.changes.keys() == LEGAL  # nothing that may happen has been left out
    assert explored.states > 2_000


def test_no_interleaving_breaks_a_rule_when_the_database_is_set_back(
    store: Store, clock: ManualClock
) -> None:
    """To an older copy, from which fences are issued a second time, while workers go on."""
    explorer = Explorer(store, clock, Bounds(claims=2, restores=True, naps=False))

    explored = explorer.explore(depth=8 if IN_CI else 7)

    print(explored)
    assert explored.states > 500


def test_what_is_explored_is_what_commits_would_show(store: Store, clock: ManualClock) -> None:
    """One of the longest ways, again in transactions that are committed."""
    explorer = Explorer(store, clock, Bounds(claims=2))
    explored = explorer.explore(depth=5)
    assert explored.farthest is not None
    path, seen = explored.farthest

    assert len(path) == explored.depth
    assert explorer.replay(path) == seen
    check_invariants(store)


def test_a_way_that_breaks_a_rule_is_printed_step_by_step() -> None:
    found = FoundError([Step("claims by a scan", 0), Step("the clock moves")], "it is lost")

    assert str(found).splitlines() == [
        "after 2 steps: it is lost",
        "  1. worker 1: claims by a scan",
        "  2. the clock moves",
    ]
