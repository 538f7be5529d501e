"""Retry policies: bounds, jitter, and the form that travels in the run's row."""

import json
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.domain.retry import DEFAULT_RETRY, RetryPolicy
from workhorse.errors import ConfigurationError, InvalidInstantError

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 1000),
    first=st.timedeltas(timedelta(0), timedelta(days=30)),
    factor=st.floats(1, 100) | st.integers(1, 100),
    longest=st.timedeltas(timedelta(0), timedelta(days=30)),
    jitter=st.booleans(),
)


def test_the_default_is_ten_attempts_from_a_second_doubling_to_five_minutes() -> None:
    assert DEFAULT_RETRY.max_attempts == 10
    assert DEFAULT_RETRY.jitter
    assert [DEFAULT_RETRY.bound_ms(attempt) for attempt in range(1, 12)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
        32_000,
        64_000,
        128_000,
        256_000,
        300_000,
        300_000,
    ]


@given(policies, st.integers(1, 1000), st.integers())
def test_a_rest_is_never_longer_than_its_bound_nor_negative(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    rest = policy.rest_ms(attempt, random.Random(seed))

    assert min(1, policy.bound_ms(attempt)) <= rest <= policy.bound_ms(attempt)
    assert timedelta(milliseconds=policy.bound_ms(attempt)) < policy.longest + timedelta(
        milliseconds=1
    )


@given(policies, st.integers(1, 999))
def test_bounds_never_shrink_from_attempt_to_attempt(policy: RetryPolicy, attempt: int) -> None:
    assert policy.bound_ms(attempt) <= policy.bound_ms(attempt + 1)


def test_growth_beyond_any_number_ends_at_the_longest_rest() -> None:
    for factor in (100, 100.0, 1.5):
        policy = RetryPolicy(max_attempts=1000, factor=factor, longest=timedelta(days=30))
        assert policy.bound_ms(1000) == 30 * 24 * 3600 * 1000


def test_full_jitter_spreads_rests_evenly_from_zero_to_the_bound() -> None:
    draw = random.Random(7)
    rests = [DEFAULT_RETRY.rest_ms(4, draw) for _ in range(2_000)]

    eighths = [sum(1 for rest in rests if rest // 1_001 == part) for part in range(8)]
    assert all(180 < count < 320 for count in eighths)
    assert {min(rests) < 50, max(rests) > 7_950} == {True}


def test_who_is_to_rest_is_never_ready_at_once() -> None:
    policy = RetryPolicy(first=timedelta(milliseconds=1))
    draw = random.Random(1)

    assert {policy.rest_ms(1, draw) for _ in range(100)} == {1}


def test_without_jitter_a_rest_is_its_bound() -> None:
    policy = RetryPolicy(first=timedelta(milliseconds=1500), factor=1, jitter=False)

    assert [policy.rest_ms(attempt, random.Random(0)) for attempt in (1, 2, 9)] == [1500] * 3


def test_a_first_rest_of_zero_makes_every_rest_zero() -> None:
    policy = RetryPolicy(first=timedelta(0), factor=100)

    assert [policy.rest_ms(attempt, random.Random(0)) for attempt in (1, 500)] == [0, 0]


def test_a_rest_is_rounded_up_to_a_millisecond() -> None:
    policy = RetryPolicy(first=timedelta(microseconds=1), factor=1, jitter=False)

    assert policy.bound_ms(1) == 1


@pytest.mark.parametrize("attempts", [0, -1, 1001, 2.0, True, "3", None])
def test_an_odd_number_of_attempts_is_refused(attempts: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_attempts is .* from 1 to 1,000"):
        RetryPolicy(max_attempts=attempts)


@pytest.mark.parametrize("factor", [0.99, 0, -1, 100.1, float("inf"), float("nan"), True, "2"])
def test_an_odd_factor_is_refused(factor: Any) -> None:
    with pytest.raises(ConfigurationError, match="factor is .* from 1 to 100"):
        RetryPolicy(factor=factor)


@pytest.mark.parametrize("name", ["first", "longest"])
@pytest.mark.parametrize("value", [timedelta(days=31), timedelta(-1), 5, None])
def test_an_odd_duration_is_refused_by_its_name(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(InvalidInstantError, match=name):
        RetryPolicy(**arguments)


@pytest.mark.parametrize("jitter", ["no", 0, None])
def test_jitter_is_yes_or_no(jitter: Any) -> None:
    with pytest.raises(ConfigurationError, match="jitter is .* True or False"):
        RetryPolicy(jitter=jitter)


def test_the_default_policy_takes_no_room_in_a_row() -> None:
    assert DEFAULT_RETRY.to_json() is None
    assert RetryPolicy(factor=2).to_json() is None
    assert RetryPolicy.from_json(None) == DEFAULT_RETRY


@given(policies, st.integers(1, 1000))
def test_a_policy_comes_back_from_its_row_with_the_same_rests(
    policy: RetryPolicy, attempt: int
) -> None:
    back = RetryPolicy.from_json(policy.to_json())

    assert back.bound_ms(attempt) == policy.bound_ms(attempt)
    assert (back.max_attempts, back.jitter) == (policy.max_attempts, policy.jitter)


def test_a_row_keeps_a_policy_in_names_that_later_versions_read() -> None:
    policy = replace(DEFAULT_RETRY, max_attempts=3, first=timedelta(seconds=2), jitter=False)

    assert json.loads(policy.to_json() or "") == {
        "max_attempts": 3,
        "first_ms": 2000,
        "factor": 2.0,
        "longest_ms": 300_000,
        "jitter": False,
    }
