"""A maintenance over a store whose tables are looked through when the test has ended."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.maintenance.lanes import Outbox, TalkingLane
from tests.store.invariants import check_invariants
from workhorse.maintenance import Maintenance
from workhorse.store.base.database import ManualClock, Store
from workhorse.telemetry import Counters


@pytest.fixture
def store(database_url: str, clock: ManualClock) -> Iterator[Store]:
    """A store whose time is `clock`'s; what must always hold is checked at the end."""
    store = Store.open(database_url, clock=clock)
    yield store
    check_invariants(store)
    store.close()


@pytest.fixture
def lane() -> TalkingLane:
    """A lane whose queues are empty."""
    return TalkingLane()


@pytest.fixture
def outbox() -> Outbox:
    """What was published."""
    return Outbox()


@pytest.fixture
def counters() -> Counters:
    """What was counted."""
    return Counters()


@pytest.fixture
def maintenance(store: Store, lane: TalkingLane, outbox: Outbox, counters: Counters) -> Maintenance:
    """A maintenance of `store`."""
    return Maintenance(
        store=store, lane=lane, publish=outbox, counters=counters, draw=random.Random(1)
    )
