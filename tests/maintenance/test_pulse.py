"""How maintenance says of itself whether it goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lanes.polling import PollingLane
from tests.runtime.faults import Away, FaultyStore
from tests.support.eventually import eventually
from workhorse.errors import StoreUnavailableError
from workhorse.maintenance import Maintenance
from workhorse.maintenance.pulse import SILENT_S, Pulse
from workhorse.store.base.database import Store
from workhorse.telemetry import Counters


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_before_the_first_pass_it_is_live_and_not_ready() -> None:
    health = Pulse(Clock()).health(stopping=False)
    assert (health.live, health.ready, health.passed_s_ago) == (True, False, None)


def test_a_pass_makes_it_ready_and_silence_takes_its_life() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    pulse.passed(store_answers=True)
    clock.now += SILENT_S - 1
    assert pulse.health(stopping=False).ready
    assert pulse.health(stopping=False).passed_s_ago == SILENT_S - 1

    clock.now += 1
    health = pulse.health(stopping=False)
    assert (health.live, health.ready) == (False, False)
    pulse.passed(store_answers=True)
    assert pulse.health(stopping=False).ready


def test_time_before_the_loop_begins_does_not_count() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    clock.now += 10 * SILENT_S
    pulse.goes_on()
    assert pulse.health(stopping=False).live


def test_a_store_that_is_away_leaves_it_live_and_not_ready() -> None:
    pulse = Pulse(Clock())
    pulse.passed(store_answers=False)
    health = pulse.health(stopping=False)
    assert (health.live, health.ready, health.store_answers) == (True, False, False)


def test_what_stops_is_not_ready() -> None:
    pulse = Pulse(Clock())
    pulse.passed(store_answers=True)
    assert not pulse.health(stopping=True).ready


@pytest.fixture
def faulty(store: Store) -> Iterator[FaultyStore]:
    faulty = FaultyStore(store)
    yield faulty
    faulty.close()


def test_the_loop_says_whether_the_store_answers(faulty: FaultyStore) -> None:
    away = Away()
    maintenance = Maintenance(
        store=faulty, lane=PollingLane(), publish=lambda hints: None, counters=Counters()
    )
    faulty.faults["take"] = away
    with maintenance:
        eventually(lambda: maintenance.health().passed_s_ago is not None)
        assert maintenance.health().live
        assert not maintenance.health().ready
        away.back.set()
        eventually(lambda: maintenance.health().ready, within=30)
    assert not maintenance.health().ready


def test_steps_that_wait_for_the_store_are_no_hang(faulty: FaultyStore) -> None:
    """Each is tried again for half a minute where connections time out, and there are many."""
    clock = Clock()
    lives: list[bool] = []
    maintenance = Maintenance(
        store=faulty, lane=PollingLane(), publish=lambda hints: None, counters=Counters()
    )
    maintenance._pulse = Pulse(clock)

    def away(_carry_out: object) -> object:
        lives.append(maintenance.health().live)
        clock.now += SILENT_S / 4
        raise StoreUnavailableError("away")

    faulty.faults["take"] = away
    done = maintenance.run_due()

    assert len(done.failed) == len(lives) > 4
    assert all(lives)
    clock.now += SILENT_S
    assert not maintenance.health().live


def test_a_store_that_is_away_before_the_first_pass_shows_too(store: Store) -> None:
    asked = threading.Event()

    def check() -> None:
        asked.set()
        raise StoreUnavailableError("away")

    maintenance = Maintenance(
        store=store, lane=PollingLane(), publish=lambda hints: None, counters=Counters(),
        check=check,
    )  # fmt: skip
    with maintenance:
        assert asked.wait(10)
        eventually(lambda: maintenance.health().passed_s_ago is not None)
        assert not maintenance.health().store_answers
