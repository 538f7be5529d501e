"""Bugs that are put in on purpose are found, by few steps, and what is found can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.exploration import rules, steps
from tests.exploration.explorer import Explorer, FoundError
from tests.exploration.planted import BUGS, Bug, plant
from tests.exploration.steps import Bounds
from tests.exploration.world import World
from workhorse.store.base.database import ManualClock, Store

SMALL = Bounds(claims=2, naps=False)


@pytest.fixture
def store(sqlite_url: str, clock: ManualClock) -> Iterator[Store]:
    store = Store.open(sqlite_url, clock=clock)
    yield store
    store.close()


def _found(store: Store, clock: ManualClock, bounds: Bounds) -> FoundError:
    """Explore until something is found, and see that it is found again in real transactions."""
    explorer = Explorer(store, clock, bounds)
    with pytest.raises(FoundError) as explored:
        explorer.explore()
    with pytest.raises(FoundError) as replayed:
        explorer.replay(explored.value.path)
    print(explored.value)
    assert str(replayed.value) == str(explored.value)
    return explored.value


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS.keys())
def test_a_planted_bug_is_found(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    changed = plant(monkeypatch, bug)

    assert len(_found(store, clock, SMALL).path) <= 8
    assert changed


def test_recovery_that_does_not_ask_again_is_found(store: Store, clock: ManualClock) -> None:
    """It looks in one transaction and writes in another, under whatever lease is there by then."""
    found = _found(store, clock, replace(SMALL, split_recovery="unchecked"))

    assert "ended a lease that was live" in found.said


def test_recovery_in_two_transactions_does_no_harm_while_the_token_decides(
    store: Store, clock: ManualClock
) -> None:
    """What it saw expired is never revived, so that only another claim can come in between."""
    Explorer(store, clock, replace(SMALL, split_recovery="checked")).explore(depth=7)


def test_a_fence_in_the_tokens_place_is_found_once_the_database_was_set_back(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fence(world: World) -> int:
        return world.claims - (world.restored_at or 0) + 1

    monkeypatch.setattr(steps, "token_of", fence)
    monkeypatch.setattr(rules, "token_of", fence)
    # By itself it would do: no fence comes twice.
    Explorer(store, clock, SMALL).explore(depth=5)

    found = _found(store, clock, replace(SMALL, restores=True))

    assert "without the lease" in found.said
    assert "the database is set back" in [step.what for step in found.path]
