"""Each kind of name keeps its rule, and an error shows what was given, in bounds."""

from collections.abc import Callable
from typing import Any

import pytest

from workhorse.domain.names import (
    check_boundary,
    check_environment,
    check_key,
    check_priority,
    check_queue,
    check_request,
    check_schema,
    check_session,
    check_tags,
    check_task,
)
from workhorse.errors import InvalidNameError, WorkhorseError


@pytest.mark.parametrize("name", ["a", "default", "high-priority_2", "0", "-", "q" * 60])
def test_a_queue_may_be_called(name: str) -> None:
    assert check_queue(name) == name


@pytest.mark.parametrize(
    "name", ["", "q" * 61, "Orders", "a b", "a.fifo", "a/b", "ü", "a\n", "a\0", "٣", None, 1, b"a"]
)
def test_a_queue_may_not_be_called(name: Any) -> None:
    with pytest.raises(InvalidNameError, match="1 to 60 characters of a-z0-9_-"):
        check_queue(name)


@pytest.mark.parametrize("name", ["", "staging", "team_2", "e" * 20])
def test_an_environment_may_be_called(name: str) -> None:
    assert check_environment(name) == name


@pytest.mark.parametrize("name", ["e" * 21, "Staging", "a-b", "a b", "a\n", None])
def test_an_environment_may_not_be_called(name: Any) -> None:
    with pytest.raises(InvalidNameError, match="at most 20 characters of a-z0-9_"):
        check_environment(name)


@pytest.mark.parametrize("name", ["workhorse", "_w", "a2", "s" * 40])
def test_a_schema_may_be_called(name: str) -> None:
    assert check_schema(name) == name


@pytest.mark.parametrize("name", ["", "2a", "s" * 41, "a-b", 'a"; drop table b; --', "a\n", None])
def test_a_schema_may_not_be_called(name: Any) -> None:
    with pytest.raises(InvalidNameError, match="no digit first"):
        check_schema(name)


printable = pytest.mark.parametrize(
    ("check", "what", "most"),
    [
        (check_task, "task", 200),
        (check_boundary, "boundary", 200),
        (check_key, "idempotency key", 256),
        (check_request, "request id", 200),
        (check_session, "session", 256),
    ],
)


@printable
def test_a_printable_name_has_from_one_character_to_its_most(
    check: Callable[[object], str], what: str, most: int
) -> None:
    for name in ("a", "orders.ship", "Grüße, 世界 😀", " ", "'; drop", "x" * most):
        assert check(name) == name
    for name in ("", "x" * (most + 1)):
        with pytest.raises(InvalidNameError, match=f"{what} has .* may have 1 to {most}"):
            check(name)


@printable
@pytest.mark.parametrize("name", ["a\nb", "a\0b", "\x1b[31m", "\u202e", "\ud800", "\u2028"])
def test_what_cannot_be_printed_is_refused_and_shown_escaped(
    check: Callable[[object], str], what: str, most: int, name: str
) -> None:
    with pytest.raises(InvalidNameError, match=f"{what} .* cannot be printed") as refused:
        check(name)

    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


@printable
def test_what_is_no_text_is_refused(check: Callable[[object], str], what: str, most: int) -> None:
    for name in (None, 7, b"name", ["name"]):
        with pytest.raises(InvalidNameError, match=f"{what} must be text; got"):
            check(name)


def test_tags_are_kept_once_each_and_in_order() -> None:
    assert check_tags([]) == ()
    assert check_tags(["b", "a", "b", "c"]) == ("b", "a", "c")
    assert check_tags(tag for tag in ("x" * 100,)) == ("x" * 100,)


def test_a_run_has_at_most_twenty_tags_repeats_not_counted() -> None:
    twenty = [f"tag {number}" for number in range(20)]

    assert len(check_tags(twenty + twenty)) == 20
    with pytest.raises(InvalidNameError, match="at most 20 tags; got 21"):
        check_tags([*twenty, "one more"])


def test_a_tag_is_printable_and_has_at_most_a_hundred_characters() -> None:
    for tags in ([""], ["x" * 101], ["a\n"], [7]):
        with pytest.raises(InvalidNameError, match="tag "):
            check_tags(tags)


def test_a_single_text_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(InvalidNameError, match="tags are a list of names; got the single text"):
        check_tags("urgent")


@pytest.mark.parametrize("priority", [0, 1, 50, 100])
def test_a_priority_is_from_0_to_100(priority: int) -> None:
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [-1, 101, 50.0, True, "50", None])
def test_another_priority_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidNameError, match="not a whole number from 0 to 100"):
        check_priority(priority)


def test_what_was_given_is_shown_in_bounds() -> None:
    with pytest.raises(WorkhorseError) as refused:
        check_queue("Q" * 10_000)

    assert len(str(refused.value)) < 200
