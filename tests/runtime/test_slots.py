"""Slots: counting, and whose turn it is."""

from __future__ import annotations

import threading

import pytest

from tests.support.eventually import eventually
from workhorse.runtime.claims.slots import Slots


def reserve(slots: Slots, queue: str, wanted: int, timeout: float | None = 0.0) -> int:
    with slots.turn(queue) as turn:
        return turn.reserve(wanted, timeout)


def test_no_more_are_taken_than_are_free() -> None:
    slots = Slots(5, ["a"])

    assert reserve(slots, "a", 3) == 3
    assert reserve(slots, "a", 3) == 2
    assert reserve(slots, "a", 3) == 0
    slots.give_back(2)
    assert slots.free == 2


def test_a_queue_that_was_served_waits_behind_those_that_want_to_be() -> None:
    slots = Slots(1, ["a", "b"])
    assert reserve(slots, "a", 1) == 1

    with slots.turn("b") as turn_of_b, slots.turn("a") as turn_of_a:
        slots.give_back(1)
        assert turn_of_a.wait(0) == 0
        assert turn_of_b.wait(0) == 1
        assert turn_of_a.reserve(1, 0) == 0
        assert turn_of_b.reserve(1, 0) == 1

    slots.give_back(1)
    assert reserve(slots, "a", 1) == 1


def test_a_queue_that_leaves_the_line_delays_nobody() -> None:
    slots = Slots(1, ["a", "b"])
    assert reserve(slots, "a", 1) == 1
    slots.give_back(1)

    with slots.turn("b") as turn_of_b, slots.turn("a") as turn_of_a:
        assert turn_of_a.wait(0) == 0
        turn_of_b.leave()
        assert turn_of_a.reserve(1, 0) == 1


def test_who_waits_is_woken_by_a_slot() -> None:
    slots = Slots(1, ["a"])
    reserve(slots, "a", 1)
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(reserve(slots, "a", 1, 10)))
    waiting.start()

    slots.give_back(1)

    waiting.join(10)
    assert got == [1]


def test_closing_ends_all_waits() -> None:
    slots = Slots(1, ["a"])
    reserve(slots, "a", 1)
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(reserve(slots, "a", 1, None)))
    waiting.start()

    slots.close()

    waiting.join(10)
    assert got == [0]
    eventually(lambda: not waiting.is_alive())


@pytest.mark.parametrize(("size", "taken"), [(1, 1), (50, 50), (60, 50), (400, 200)])
def test_of_many_slots_one_claim_takes_half(size: int, taken: int) -> None:
    """The other half is for a claim that is on its way while these are handled."""
    slots = Slots(size, ["a"])
    with slots.turn("a") as turn:
        assert turn.reserve(10_000) == taken
    assert slots.free == size - taken
