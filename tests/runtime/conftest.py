"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime import program
from tests.runtime.rig import Rig
from workhorse.store.base.database import Store


@pytest.fixture
def rig(store: Store) -> Iterator[Rig]:
    """A worker's surroundings; time in the store is `clock`'s."""
    rig = Rig(store)
    yield rig
    rig.close()


@pytest.fixture
def live_rig(real_clock_store: Store) -> Iterator[Rig]:
    """A worker's surroundings; time in the store is the database's own."""
    rig = Rig(real_clock_store)
    yield rig
    rig.close()


@pytest.fixture
def postgresql_rig(postgresql_url: str) -> Iterator[Rig]:
    """As `live_rig`, on PostgreSQL alone: for locks of rows."""
    store = Store.open(postgresql_url)
    rig = Rig(store)
    yield rig
    rig.close()
    store.close()


@pytest.fixture
def fleet(sqlite_url: str) -> Iterator[Rig]:
    """A store on a file, and the tasks of `program`: for enqueueing, and looking at its runs."""
    store = Store.open(sqlite_url)
    rig = Rig(store)
    rig.registry = program.registry
    yield rig
    rig.close()
    store.close()


@pytest.fixture(params=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of handler: plain, then async."""
    kind: str = request.param
    return kind
