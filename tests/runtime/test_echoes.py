"""How many messages a worker asks for, by what it has claimed and received before."""

from __future__ import annotations

import pytest

from workhorse.domain.sightings import Note
from workhorse.runtime.claims.echoes import Echoes

STALE: dict[str, int] = {Note.STALE: 10}


@pytest.fixture
def echoes() -> Echoes:
    echoes = Echoes(10_000)
    echoes.received(10, 0, 0)  # at the start; from now on a glance is 10 s away
    return echoes


def fed(echoes: Echoes) -> None:
    """Have a receive come full, of nothing but echoes."""
    echoes.received(10, 10, 0)
    echoes.claimed(0, STALE)


def test_one_calls_messages_are_asked_for_whatever_is_free(echoes: Echoes) -> None:
    assert [echoes.limit(free) for free in (1, 9, 10, 500)] == [1, 9, 10, 10]


def test_echoes_need_no_slot(echoes: Echoes) -> None:
    echoes.claimed(12, {})
    assert echoes.limit(1) == 7  # the start's receive came short: a message for two runs
    echoes.claimed(88, {})
    assert echoes.limit(1) == 50


def test_beside_scans_nothing_is_received_for_few_echoes(echoes: Echoes) -> None:
    fed(echoes)
    echoes.claimed(19, {})
    assert echoes.beside_scan(1, 0) == 0
    echoes.claimed(1, {})
    assert echoes.beside_scan(1, 0) == 10


def test_beside_scans_a_glance_is_taken_all_the_same(echoes: Echoes) -> None:
    assert echoes.beside_scan(3, 9_999) == 0
    assert echoes.beside_scan(3, 10_000) == 3


def test_a_receive_that_comes_short_says_that_there_are_no_more(echoes: Echoes) -> None:
    echoes.claimed(1_000, {})
    echoes.received(200, 4, 0)
    echoes.claimed(4, {Note.CLAIMED.value: 4})
    assert echoes.limit(1) == 1


def test_no_slot_for_what_was_received_says_that_a_message_stands_for_many_runs(
    echoes: Echoes,
) -> None:
    echoes.claimed(100, {})
    echoes.received(10, 10, 0)
    echoes.claimed(1, {Note.CLAIMED: 1, Note.CROWDED: 9})
    echoes.claimed(150, {})
    assert echoes.beside_scan(1, 0) == 0
    echoes.claimed(170, {})
    assert echoes.beside_scan(1, 0) == 10


def test_receives_full_of_echoes_make_the_next_ones_larger(echoes: Echoes) -> None:
    asked = []
    for _ in range(7):
        asked.append(echoes.limit(1))
        fed(echoes)
    assert asked == [1, 10, 20, 40, 80, 160, 200]
    echoes.received(200, 10, 0)
    echoes.claimed(0, STALE)
    assert echoes.limit(1) == 1


def test_what_is_expected_is_bounded(echoes: Echoes) -> None:
    echoes.claimed(10**9, {})
    assert echoes.limit(1) == 200
