"""An app whose own database must never be touched, and a kit of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workhorse import Workhorse
from workhorse.testing import Kit, ManualClock


@pytest.fixture
def forbidden(tmp_path: Path) -> Path:
    """The file of the app's own database; it is not to come into being."""
    return tmp_path / "forbidden.sqlite3"


@pytest.fixture
def app(forbidden: Path) -> Workhorse:
    return Workhorse(database_url=f"sqlite:///{forbidden}")


@pytest.fixture
def kit(app: Workhorse, clock: ManualClock, forbidden: Path) -> Iterator[Kit]:
    with Kit(app, clock=clock) as kit:
        yield kit
    assert not forbidden.exists()
