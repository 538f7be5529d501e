"""Stores whose tables are looked through when their test has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
def real_clock_store(database_url: str) -> Iterator[Store]:
    """A store whose time is the database's own; what must always hold is checked at the end."""
    store = Store.open(database_url)
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
def sqlite_store(sqlite_url: str, clock: ManualClock) -> Iterator[Store]:
    """As `store`, on SQLite alone."""
    store = Store.open(sqlite_url, clock=clock)
    yield store
    check_invariants(store)
    store.close()
