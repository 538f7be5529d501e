"""The ways in which a case is tried: on both databases, with both kinds of handlers and lanes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cases.scene import SETTINGS, Scene, Setting
from tests.runtime.rig import Rig
from workhorse.store.base.database import ManualClock, Store


@pytest.fixture(params=SETTINGS, ids=str)
def setting(request: pytest.FixtureRequest) -> Setting:
    """Each kind of handler, and wakeups on, off and hostile; the worst with both kinds."""
    setting: Setting = request.param
    return setting


@pytest.fixture
def scene(store: Store, clock: ManualClock, setting: Setting) -> Iterator[Scene]:
    """A worker's surroundings in a setting, on SQLite and then on PostgreSQL."""
    rig = Rig(store)
    yield Scene(rig, setting, clock)
    rig.close()
