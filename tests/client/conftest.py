"""An app on each database whose lane records, and engines of its callers' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, make_url

from tests.client.lanes import RecordingLane
from workhorse.app import Workhorse
from workhorse.domain.ids import RunId
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.sighting import sight


@pytest.fixture
def lane(store: Store) -> RecordingLane:
    """The app's lane; it looks at the store over connections that are not the app's."""

    def look(run_id: RunId) -> bool:
        return run_id in store.read(sight, [run_id])

    return RecordingLane(look)


@pytest.fixture
def app(database_url: str, lane: RecordingLane, clock: ManualClock) -> Iterator[Workhorse]:
    """An app on SQLite and then on PostgreSQL."""
    with Workhorse(database_url=database_url, lane=lane, clock=clock, hint_stride=10) as app:
        yield app


@pytest.fixture
def double(app: Workhorse) -> Task[int, int]:
    """A task."""

    @app.task("double")
    def double(number: int) -> int:
        return number * 2

    return double


def driver_url(database_url: str, *, asynchronous: bool = False) -> str:
    """Return a database's URL as a caller's own engine takes it."""
    url = make_url(database_url)
    if url.get_backend_name() == "postgresql":
        name = "postgresql+psycopg"
    else:
        name = "sqlite+aiosqlite" if asynchronous else "sqlite"
    return url.set(drivername=name).render_as_string(hide_password=False)


@pytest.fixture
def async_url(database_url: str) -> str:
    """What an async engine of the caller's takes."""
    return driver_url(database_url, asynchronous=True)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine of the caller's own on the app's database."""
    engine = create_engine(driver_url(database_url))
    yield engine
    engine.dispose()
