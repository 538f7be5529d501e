"""Stores and workers' surroundings whose tables are looked through when their test has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.rig import Rig
from tests.store.invariants import check_invariants
from workhorse.store.base.database import ManualClock, Store


@pytest.fixture
def store(database_url: str, clock: ManualClock) -> Iterator[Store]:
    """A store whose time is `clock`'s; what must always hold is checked at the end."""
    store = Store.open(database_url, clock=clock)
    yield store
    check_invariants(store)
    store.close()


@pytest.fixture
def postgresql_store(postgresql_url: str, clock: ManualClock) -> Iterator[Store]:
    """As `store`, on PostgreSQL alone: for what row locks decide."""
    store = Store.open(postgresql_url, clock=clock)
    yield store
    check_invariants(store)
    store.close()


@pytest.fixture
def rig(store: Store) -> Iterator[Rig]:
    """A worker's surroundings; time in the store is `clock`'s."""
    rig = Rig(store)
    yield rig
    rig.close()


@pytest.fixture(params=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of handler: plain, then async."""
    kind: str = request.param
    return kind
