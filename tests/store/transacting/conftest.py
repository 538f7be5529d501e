"""The operations' store, as a worker has it, beside the one that a test looks through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.transacting.paying import make_tables
from workhorse.store.base.database import ManualClock, Store


@pytest.fixture
def own(store: Store) -> Iterator[Store]:
    """The operations' store, as a worker has it; the user's tables `accounts` and `pairs` exist."""
    own = store.sibling(connections=5, bounded=False)
    make_tables(own)
    yield own
    own.close()


@pytest.fixture
def postgresql_store(postgresql_url: str, clock: ManualClock) -> Iterator[Store]:
    store = Store.open(postgresql_url, clock=clock)
    make_tables(store)
    yield store
    store.close()


@pytest.fixture
def sqlite_own(sqlite_url: str, clock: ManualClock) -> Iterator[Store]:
    store = Store.open(sqlite_url, clock=clock)
    make_tables(store)
    yield store
    store.close()


@pytest.fixture
def postgresql_own(postgresql_store: Store) -> Iterator[Store]:
    own = postgresql_store.sibling(connections=5, bounded=False)
    yield own
    own.close()
