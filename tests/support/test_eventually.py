"""The polling helper returns what it waited for, and says what it waited for in vain."""

import asyncio

import pytest

from tests.support.eventually import eventually, eventually_async


def test_it_returns_the_first_true_value() -> None:
    values = iter([0, "", None, 7, 8])

    assert eventually(lambda: next(values), every=0) == 7


def test_a_failed_assertion_means_not_yet() -> None:
    values = iter([1, 2, 3])

    def third() -> bool:
        assert next(values) == 3
        return True

    assert eventually(third, every=0)


def test_another_error_passes_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 // 0)


def test_the_message_shows_the_predicate_and_the_last_look() -> None:
    with pytest.raises(AssertionError, match=r"within 0.01 s: .*never.*\n.*returned ''"):
        eventually(lambda: "never"[:0], within=0.01)


def test_the_message_uses_the_name_that_it_was_given() -> None:
    def fails() -> bool:
        raise AssertionError("three are missing")

    with pytest.raises(AssertionError, match=r"the queue is empty\n.*three are missing"):
        eventually(fails, within=0.01, what="the queue is empty")


def test_the_async_form_lets_the_loop_go_on() -> None:
    async def main() -> bool:
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, done.set)
        return await eventually_async(done.is_set)

    assert asyncio.run(main())
