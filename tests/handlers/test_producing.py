"""What a producer may say about a run: taken over exactly, or refused before anything is stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.handlers.producers import FakeProducer
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.values import fingerprint
from workhorse.errors import (
    ConfigurationError,
    InvalidInstantError,
    InvalidNameError,
    UnstorableValueError,
    ValueTooLargeError,
)
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.tasks import Task

NOW = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


@pytest.fixture
def producer() -> FakeProducer:
    return FakeProducer(NOW)


@pytest.fixture
def ship(producer: FakeProducer) -> Task[Any, Any]:
    registry = TaskRegistry()
    registry.bind(producer)
    return registry.register(
        lambda payload: None,
        "orders.ship",
        queue="orders",
        priority=70,
        timeout=timedelta(seconds=30),
        deadline=timedelta(hours=1),
        retry=RetryPolicy(max_attempts=2),
    )


def test_a_run_takes_from_its_task_what_its_producer_leaves_out(ship: Task[Any, Any]) -> None:
    run = ship.prepare({"id": 7}, queue=None, priority=None, retry=None).run

    assert (run.task, run.queue, run.payload) == ("orders.ship", "orders", '{"id":7}')
    assert (run.priority, run.retry.max_attempts) == (70, 2)
    assert (run.timeout_ms, run.deadline_ms) == (30_000, 3_600_000)
    assert (run.delay_ms, run.run_at) == (0, None)
    assert (run.key, run.fingerprint, run.session, run.tags) == (None, None, None, ())


def test_a_producer_who_says_nothing_says_that_all_is_the_tasks_own(ship: Task[Any, Any]) -> None:
    """The short way and the long one come to the same run, but for the id."""
    short, long = ship.prepare({"id": 7}).run, ship.prepare({"id": 7}, queue=None).run

    assert short.id < long.id
    assert short._replace(id=long.id) == long


def test_a_producer_says_it_all(ship: Task[Any, Any]) -> None:
    run = ship.prepare(
        [1],
        queue="slow",
        priority=0,
        delay=timedelta(microseconds=1),
        key="order 7",
        session="customer 3",
        tags=["eu", "b2b", "eu"],
        deadline=YEAR,
        timeout=timedelta(milliseconds=1),
        retry=RetryPolicy(max_attempts=1),
    ).run

    assert (run.queue, run.priority, run.retry.max_attempts) == ("slow", 0, 1)
    assert run.delay_ms == 1  # rounded up: what is waited for is never cut short
    assert (run.key, run.fingerprint) == ("order 7", fingerprint("[1]"))
    assert (run.session, run.tags) == ("customer 3", ("eu", "b2b"))
    assert (run.deadline_ms, run.timeout_ms) == (365 * 86_400_000, 1)


def test_the_fingerprint_of_a_key_does_not_depend_on_the_order_of_keys(
    ship: Task[Any, Any],
) -> None:
    first = ship.prepare({"a": 1, "b": 2}, key="k").run
    second = ship.prepare({"b": 2, "a": 1}, key="k").run
    assert first.fingerprint == second.fingerprint
    assert first.id != second.id


def test_case_9_an_instant_of_another_zone_is_the_same_instant(ship: Task[Any, Any]) -> None:
    kolkata = timezone(timedelta(hours=5, minutes=30))
    run_at = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=kolkata)

    stored = ship.prepare(run_at=run_at).run.run_at

    assert stored == run_at
    assert stored is not None
    assert stored.tzinfo is UTC
    assert stored.microsecond == 123_456


def test_case_9_a_past_instant_is_taken_as_it_is(ship: Task[Any, Any]) -> None:
    first = datetime.min.replace(tzinfo=UTC)
    assert ship.prepare(run_at=first).run.run_at == first


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2026, 3, 1)},  # noqa: DTZ001 - naive on purpose
        {"run_at": datetime.max.replace(tzinfo=UTC)},
        {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
        {"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))},
        {"run_at": NOW + YEAR + timedelta(microseconds=1)},
        {"run_at": "2026-03-01T00:00:00Z"},
        {"run_at": 1_772_323_200},
        {"delay": timedelta(microseconds=-1)},
        {"delay": YEAR + timedelta(microseconds=1)},
        {"delay": timedelta.max},
        {"delay": 10**12},
        {"delay": 1.5},
        {"delay": float("nan")},
        {"delay": timedelta(0), "run_at": NOW},
        {"deadline": timedelta(0)},
        {"deadline": timedelta.max},
        {"deadline": 5},
        {"timeout": timedelta(seconds=-1)},
        {"timeout": float("nan")},
    ],
)
def test_case_9_a_time_out_of_range_is_refused_at_the_call(
    ship: Task[Any, Any], producer: FakeProducer, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInstantError):
        ship.enqueue(1, **options)
    assert producer.enqueued == []


def test_case_9_exactly_a_year_ahead_is_allowed_by_the_producers_clock(
    ship: Task[Any, Any],
) -> None:
    """The clock is the one that a test may have set, not the host's."""
    assert ship.prepare(run_at=NOW + YEAR).run.run_at == NOW + YEAR
    assert ship.prepare(delay=YEAR).run.delay_ms == 365 * 86_400_000


def test_without_a_producer_the_hosts_clock_judges_a_far_instant() -> None:
    task = TaskRegistry().register(lambda: None, "ship")
    soon = datetime.now(UTC) + timedelta(days=1)

    assert task.prepare(run_at=soon).run.run_at == soon
    with pytest.raises(InvalidInstantError, match="365 days"):
        task.prepare(run_at=soon + YEAR)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": ""},
        {"queue": "Orders"},
        {"queue": "x" * 61},
        {"queue": 5},
        {"priority": -1},
        {"priority": 50.0},
        {"key": ""},
        {"key": "x" * 257},
        {"key": 7},
        {"session": ""},
        {"session": "a\0b"},
        {"tags": "eu"},
        {"tags": 5},
        {"tags": [""]},
        {"tags": ["x" * 101]},
        {"tags": [f"tag {number}" for number in range(21)]},
    ],
)
def test_a_name_out_of_form_is_refused_at_the_call(
    ship: Task[Any, Any], producer: FakeProducer, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidNameError):
        ship.enqueue(1, **options)
    assert producer.enqueued == []


def test_names_at_their_limits_pass(ship: Task[Any, Any]) -> None:
    run = ship.prepare(
        queue="x" * 60,
        key="k" * 256,
        session="s" * 256,
        tags=[f"{number:0100}" for number in range(20)],
    ).run
    assert len(run.tags) == 20
    assert ship.prepare(tags=None).run.tags == ()


def test_a_policy_that_is_none_is_refused(ship: Task[Any, Any]) -> None:
    with pytest.raises(ConfigurationError, match="RetryPolicy"):
        ship.prepare(retry=3)  # type: ignore[arg-type]


def test_an_option_that_does_not_exist_is_refused(ship: Task[Any, Any]) -> None:
    with pytest.raises(TypeError, match="que"):
        ship.enqueue(1, que="slow")  # type: ignore[call-arg]


def test_case_7_a_payload_at_the_cap_passes_and_above_it_is_refused(
    ship: Task[Any, Any], producer: FakeProducer
) -> None:
    cap = 1024 * 1024
    assert len(ship.prepare("x" * (cap - 2)).run.payload) == cap

    for size in (cap - 1, 64 * 1024 * 1024):
        with pytest.raises(ValueTooLargeError, match="payload of task 'orders.ship'") as raised:
            ship.enqueue("x" * size)
        assert (raised.value.size, raised.value.cap) == (size + 2, cap)
    assert producer.enqueued == []


def test_the_four_calls_reach_the_producer_with_what_they_were_given(
    ship: Task[Any, Any], producer: FakeProducer
) -> None:
    connection: Any = object()

    handles: list[Any] = [
        ship.enqueue(1, connection=connection, key="k"),
        asyncio.run(ship.enqueue_async(2, connection=connection, session="s")),
        ship.run_now(3, tags=["t"]),
        asyncio.run(ship.run_now_async(4, queue="slow")),
    ]

    [(first, over)] = producer.enqueued
    [(second, over_async)] = producer.enqueued_async
    [third], [fourth] = producer.ran, producer.ran_async
    assert [request.run.id for request in (first, second, third, fourth)] == handles
    assert [request.run.payload for request in (first, second, third, fourth)] == list("1234")
    assert over is over_async is connection
    assert (first.run.key, second.run.session) == ("k", "s")
    assert (third.run.tags, fourth.run.queue) == (("t",), "slow")
    assert first.task is ship


@pytest.mark.parametrize("options", [{"delay": timedelta(0)}, {"run_at": NOW}])
def test_run_now_is_not_for_later(
    ship: Task[Any, Any], producer: FakeProducer, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInstantError, match="no delay and no run_at"):
        ship.run_now(1, **options)
    with pytest.raises(InvalidInstantError, match="no delay and no run_at"):
        asyncio.run(ship.run_now_async(1, **options))
    assert (producer.ran, producer.ran_async) == ([], [])


def test_async_calls_check_before_anything_is_awaited_of_the_producer(
    ship: Task[Any, Any], producer: FakeProducer
) -> None:
    with pytest.raises(UnstorableValueError, match=r"\$\.a"):
        asyncio.run(ship.enqueue_async({"a": (1,)}))
    assert producer.enqueued_async == []


def test_a_task_of_no_app_says_so() -> None:
    task = TaskRegistry().register(lambda: None, "ship")
    with pytest.raises(ConfigurationError, match="belongs to no app"):
        task.enqueue()
