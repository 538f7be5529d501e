"""Where scans start and when; a clock that the test holds, and no store."""

from __future__ import annotations

from typing import Any

from workhorse.runtime.claims.sweep import Sweep
from workhorse.store.lifecycle.claiming import Claim
from workhorse.store.lifecycle.cursors import Cursor, Head

HEAD = None
A, B, C = (Cursor(50, n, f"id-{n}") for n in (1, 2, 3))


def polling(**numbers: Any) -> Sweep:
    return Sweep(**{"poll_ms": 50, "idle_ms": 1_000, "head_ms": 1_000, **numbers})


def with_messages() -> Sweep:
    return Sweep(poll_ms=50, idle_ms=1_000, head_ms=1_000, net_ms=lambda: 30_000)


def full(cursor: Cursor, claimed: int = 0) -> Claim:
    return Claim([object()] * claimed, cursor, full=True)  # type: ignore[list-item]


def end(claimed: int = 0) -> Claim:
    return Claim([object()] * claimed)  # type: ignore[list-item]


def page(sweep: Sweep, now: float, claim: Claim, asked: int = 10) -> Cursor | Head | None:
    """Fetch a page: return where it started."""
    start = sweep.start(now)
    sweep.note(claim, asked=asked, now=now)
    return start


def test_a_new_sweep_is_due_at_once_and_starts_at_the_head() -> None:
    sweep = polling()

    assert sweep.due_in(5_000) <= 0
    assert sweep.start(5_000) is HEAD


def test_an_incomplete_page_is_followed_after_poll_ms_from_where_it_ended() -> None:
    """Also the tenth in a row: a long prefix that cannot run is passed at the same speed."""
    sweep = polling(head_ms=60_000)
    now = 0.0
    cursors = [A, B, C] * 4
    previous: Cursor | Head | None = HEAD
    for cursor in cursors:
        assert page(sweep, now, full(cursor, claimed=3)) == previous
        assert sweep.due_in(now) == 50
        assert sweep.pausing
        previous = cursor
        now += 50


def test_a_page_that_filled_all_slots_is_looked_at_again_at_once() -> None:
    """Its cursor is past runs that could have been taken, had there been more slots."""
    sweep = polling()

    assert page(sweep, 0, full(A, claimed=10)) is HEAD
    assert sweep.due_in(0) == 0
    assert not sweep.pausing
    assert page(sweep, 10, full(A, claimed=3)) is HEAD
    assert page(sweep, 60, full(B)) == A


def test_once_a_second_a_page_starts_at_the_very_head() -> None:
    sweep = polling()
    page(sweep, 0, full(A))

    assert page(sweep, 999, full(B)) == A
    assert page(sweep, 1_000, full(C)) is HEAD


def test_a_look_at_the_head_does_not_lose_the_place_of_the_long_sweep() -> None:
    """A prefix of many thousands that cannot run would otherwise hide what is behind it."""
    sweep = polling()
    page(sweep, 0, full(A))
    page(sweep, 500, full(B))

    assert page(sweep, 1_000, full(A)) is HEAD
    assert page(sweep, 1_050, full(C)) == B
    assert page(sweep, 1_100, full(C)) == C


def test_a_look_at_the_head_that_finds_more_than_slots_stays_there() -> None:
    sweep = polling()
    page(sweep, 0, full(A))
    page(sweep, 500, full(B))

    assert page(sweep, 1_000, full(A, claimed=10)) is HEAD
    assert page(sweep, 1_001, full(A, claimed=2)) is HEAD
    assert page(sweep, 1_051, end()) == B


def test_pauses_of_an_idle_queue_grow_to_a_second_and_shrink_with_the_first_find() -> None:
    sweep = polling()
    now, rests = 0.0, []
    for _ in range(7):
        page(sweep, now, end())
        rests.append(sweep.due_in(now))
        assert not sweep.pausing
        now += rests[-1]

    assert rests == [100, 200, 400, 800, 1_000, 1_000, 1_000]
    page(sweep, now, end(claimed=1))
    assert sweep.due_in(now) == 50


def test_the_end_of_a_sweep_is_followed_by_one_from_the_head() -> None:
    sweep = polling(head_ms=60_000)
    page(sweep, 0, full(A))
    page(sweep, 50, end())

    assert page(sweep, 1_050, end()) is HEAD


def test_with_messages_a_sweep_that_has_ended_waits_for_the_net() -> None:
    sweep = with_messages()
    page(sweep, 0, full(A))
    assert sweep.due_in(0) == 50

    page(sweep, 50, end(claimed=5))

    assert sweep.due_in(50) == 30_000


def test_a_sweep_that_is_started_anew_looks_at_the_head_first() -> None:
    sweep = with_messages()
    page(sweep, 0, full(A))
    page(sweep, 50, full(B))

    sweep.start_now()

    assert sweep.due_in(60) <= 0
    assert page(sweep, 60, full(C)) is HEAD
    assert page(sweep, 110, end()) == B


# -- rings ---------------------------------------------------------------------------------------


def half(bound: float) -> float:
    return bound / 2


def vain_rings(sweep: Sweep, count: int) -> None:
    for _ in range(count):
        sweep.rung(0)
        page(sweep, 0, end())


def test_a_ring_makes_a_page_due_at_once_and_from_the_head() -> None:
    sweep = polling()
    page(sweep, 0, full(A, claimed=3))

    sweep.rung(10)

    assert sweep.due_in(10) <= 0
    assert not sweep.pausing
    assert sweep.start(10) is HEAD


def test_rings_that_lead_to_nothing_are_answered_later_and_later() -> None:
    """A herd that hears each ring needs one worker to come; the others leave it to that one."""
    waits = []
    for vain in range(14):
        sweep = polling(draw=half)
        vain_rings(sweep, vain)
        sweep.rung(0)
        waits.append(max(0.0, sweep.due_in(0)))
        assert sweep.pausing == (vain >= 2)

    assert waits == [0, 0, 0.5, 1, 2, 4, 8, 16, 32, 50, 50, 50, 50, 50]


def test_a_ring_never_puts_off_a_page_that_is_due_before() -> None:
    sweep = polling(draw=lambda bound: bound, idle_ms=50)
    vain_rings(sweep, 12)
    sweep.rung(0)
    assert sweep.due_in(0) == 50

    sweep.rung(30)

    assert sweep.due_in(30) == 20


def test_who_finds_something_answers_at_once_again() -> None:
    """Also by a scan that no ring led to."""
    sweep = polling(draw=half)
    vain_rings(sweep, 9)
    page(sweep, 100, end(claimed=1))

    sweep.rung(200)

    assert sweep.due_in(200) <= 0


def test_scans_that_no_ring_led_to_are_not_in_vain() -> None:
    """An idle worker scans once a second anyway; the first ring after an hour is answered."""
    sweep = polling(draw=half)
    for now in range(0, 10_000, 1_000):
        page(sweep, now, end())

    sweep.rung(9_500)

    assert sweep.due_in(9_500) <= 0


def test_a_ring_in_vain_does_not_make_an_idle_worker_scan_more_often() -> None:
    sweep = polling(draw=half)
    for _ in range(6):
        page(sweep, 0, end())
    assert sweep.due_in(0) == 1_000

    vain_rings(sweep, 1)

    assert sweep.due_in(0) == 1_000


HEADED = Head((A,))


def headed(sweep: Sweep, now: float, took_ms: float, claim: Claim | None = None) -> object:
    """Look at a head that leaves a place; return where it started."""
    start = sweep.start(now)
    claim = claim or Claim([object()], head=HEADED)  # type: ignore[list-item]
    sweep.note(claim, asked=10, now=now, took_ms=took_ms)
    return start


def test_a_slow_head_is_looked_at_from_behind_its_dead() -> None:
    sweep = polling()

    assert headed(sweep, 0, 30.0) is HEAD
    assert headed(sweep, 50, 2.0) is HEADED
    assert headed(sweep, 1_049, 2.0) is HEADED
    assert headed(sweep, 1_050, 30.0) is HEAD


def test_no_rest_goes_beyond_the_next_look_at_the_very_head() -> None:
    """However far an idle worker's pauses have grown."""
    sweep = polling()
    for now in range(0, 10_000, 1_000):
        page(sweep, now, end())
    headed(sweep, 10_000, 30.0)
    headed(sweep, 10_050, 2.0)
    idle = Claim([], head=HEADED)
    for now in (10_100, 10_150, 10_250, 10_450, 10_850):
        assert headed(sweep, now, 2.0, idle) is HEADED

    assert sweep.due_in(10_850) == 200
    assert headed(sweep, 11_050, 30.0, idle) is HEAD


def test_a_page_of_a_long_sweep_says_nothing_of_the_head() -> None:
    sweep = polling()
    sweep.start(0)
    sweep.note(Claim([], A, full=True, head=HEADED), asked=10, now=0, took_ms=2.0)
    sweep.start(50)
    sweep.note(full(B), asked=10, now=50, took_ms=500.0)
    sweep.start(100)
    sweep.note(end(), asked=10, now=100, took_ms=500.0)

    assert headed(sweep, 150, 2.0) is HEAD
    assert headed(sweep, 200, 2.0) is HEAD
