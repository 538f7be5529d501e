from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workhorse.client.checks import check_page, seconds_of
from workhorse.domain.ids import parse_run_id
from workhorse.domain.names import check_priority, check_queue, check_tags
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import OnFailure, RunState
from workhorse.domain.showing import member, shown
from workhorse.errors import WorkhorseError
from workhorse.handlers.producing import check_on_failure


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("a payload")

    __str__ = __repr__


def bomb() -> list[Any]:
    """Small in memory, and without an end as text."""
    one: list[Any] = ["x"]
    for _ in range(60):
        one = [one, one]
    return one


def deep() -> list[Any]:
    one: list[Any] = []
    for _ in range(100_000):
        one = [one]
    return one


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("mail", "'mail'"),
        ("a\nb\u202e", r"'a\nb\u202e'"),
        ("k" * 79, "'" + "k" * 76 + "..."),
        ("\ud800", r"'\ud800'"),
        (None, "None"),
        (True, "True"),
        (1.5, "1.5"),
        (10**80, "a whole number of more than 80 digits"),
        (b"x", "a value of type bytes"),
        (Unspeakable(), f"a value of type {__name__}.Unspeakable"),
    ],
    ids=lambda value: None,
)
def test_what_is_shown_of_a_value(value: object, said: str) -> None:
    assert shown(value) == said


@pytest.mark.parametrize("make", [bomb, deep, Unspeakable, lambda: 10**5000, lambda: "k" * 10**7])
@pytest.mark.parametrize(
    "check",
    [
        check_queue,
        check_priority,
        check_page,
        check_on_failure,
        parse_run_id,
        lambda value: RetryPolicy(max_attempts=value),
        lambda value: RetryPolicy(factor=value),
        lambda value: RetryPolicy(jitter=value),
    ],
    ids=[
        "queue", "priority", "page", "on_failure", "run id", "max_attempts", "factor", "jitter"
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused_all_the_same(
    check: Callable[[Any], object], make: Callable[[], Any]
) -> None:
    with pytest.raises(WorkhorseError) as refused:
        check(make())

    assert len(str(refused.value)) < 400
    assert str(refused.value).isprintable()


def test_tags_that_are_no_list_and_a_time_out_beyond_all_floats_are_refused() -> None:
    with pytest.raises(WorkhorseError, match="tags are a list of names; got int"):
        check_tags(5)
    with pytest.raises(WorkhorseError, match="timeout is inf"):
        seconds_of(10**400)


def test_a_member_is_found_by_its_text_alone() -> None:
    assert member(RunState, "ready") is RunState.READY
    assert member(RunState, RunState.READY) is RunState.READY
    assert member(RunState, "gone") is None
    assert member(OnFailure, 5) is None
