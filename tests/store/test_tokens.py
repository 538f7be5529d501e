"""Wait tokens: settled once, by a value or by their time, and handed to all who wait for them."""

from __future__ import annotations

import json

import pytest

from tests.store.acting import (
    SUCCEED,
    a_claimed,
    an_entry,
    do,
    end,
    hinted,
    lease_of,
    live_row,
    promoted,
    put_many,
    reach,
    rows,
    state_of,
    take,
    take_one,
)
from tests.store.rivals import Rival
from tests.store.waiting import (
    a_ref,
    complete,
    delivered,
    freed,
    linked,
    links_of,
    notes,
    passed,
    send,
    waiting_for,
)
from workhorse.domain.boundaries import LOADED_BYTES, DeliveryResult
from workhorse.domain.ids import RunId
from workhorse.domain.runs import RunState
from workhorse.errors import DeliveryConflictError, TokenNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.pages import PAGE
from workhorse.store.durable.freeing import SMALL_PASS, free, freed_sources
from workhorse.store.durable.tokens import (
    complete_token,
    create_token,
    expire_tokens,
    settle_due,
    token_ends,
)
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sweeping import promote
from workhorse.store.live.noting import note_freed
from workhorse.store.operators.operating import cancel

DELIVERED, DUPLICATE, ALREADY_SETTLED = (
    DeliveryResult.DELIVERED,
    DeliveryResult.DUPLICATE,
    DeliveryResult.ALREADY_SETTLED,
)


def _token(store: Store, ref: str) -> tuple[str, str | None]:
    found = rows(store, "select state, value from {s}tokens where ref = :ref", ref=ref)
    return found[0].state, found[0].value


# -- completed -----------------------------------------------------------------------------------


def test_a_completed_token_is_handed_to_who_waits_for_it(store: Store) -> None:
    ref = a_ref(store)
    one, two = linked(store, ref), linked(store, ref)
    other = linked(store, a_ref(store))

    assert complete(store, ref, '{"paid":true}') is DELIVERED
    assert state_of(store, one) is RunState.WAITING  # the fact commits first
    swept = passed(store, ref)

    assert (swept.count, swept.full, sorted(hinted(swept.hints))) == (2, False, sorted([one, two]))
    for run_id in (one, two):
        assert delivered(store, run_id) == [(f"t {ref}", "value", '{"paid":true}')]
        assert (state_of(store, run_id), live_row(store, run_id).inbox) == (RunState.READY, 1)
    assert state_of(store, other) is RunState.WAITING
    assert (links_of(store, ref), notes(store)) == (0, [])


def test_a_token_that_nobody_waits_for_leaves_nothing_behind(store: Store) -> None:
    ref = a_ref(store)
    complete(store, ref)

    assert passed(store, ref).count == 0
    assert (notes(store), _token(store, ref)) == ([], ("value", '"paid"'))


def test_who_comes_to_a_settled_token_goes_on_at_once(store: Store) -> None:
    ref = a_ref(store)
    complete(store, ref)
    passed(store, ref)

    claimed = a_claimed(store)
    settled = end(store, claimed, waiting_for(ref))

    assert settled.written == {claimed.id: RunState.READY}
    assert delivered(store, claimed.id) == [(f"t {ref}", "value", '"paid"')]
    assert links_of(store, ref) == 0


def test_a_settled_token_is_counted_with_what_its_own_run_was_sent(store: Store) -> None:
    """Two of three runs come to settled tokens in one batch; one of them had a signal before."""
    refs = [a_ref(store), a_ref(store)]
    for value, ref in enumerate(refs):
        complete(store, ref, f"{value}")
    one, other, third = take(store, *put_many(store, 3)).runs
    send(store, other.id)

    entries = [an_entry(run, waiting_for(ref)) for run, ref in zip((one, other), refs, strict=True)]
    store.run(settle, entries, reach=reach)

    found = rows(store, "select run_id, name, value, inbox from {s}deliveries")
    assert sorted((str(row.run_id), row.inbox, row.name, row.value) for row in found) == sorted(
        [
            (one.id, 1, f"t {refs[0]}", "0"),
            (other.id, 1, "word", '"go"'),
            (other.id, 2, f"t {refs[1]}", "1"),
        ]
    )
    assert [live_row(store, run.id).inbox for run in (one, other, third)] == [1, 2, 0]


def test_a_settled_token_is_as_large_as_its_value(store: Store) -> None:
    """By that its value is left out of a claim, where it would keep many small ones away."""
    large = json.dumps("ä" * (LOADED_BYTES // 8))
    ref = a_ref(store)
    complete(store, ref, large)
    claimed = a_claimed(store)
    end(store, claimed, waiting_for(ref))

    (came,) = take_one(store, claimed.id).history.deliveries

    assert (came.value, came.left_out) == (None, True)
    assert rows(store, "select bytes from {s}deliveries")[0].bytes == len(large.encode())


def test_one_pass_wakes_who_waits_and_leaves_who_is_at_work(store: Store) -> None:
    ref, early = a_ref(store), a_ref(store)
    before, after = linked(store, ref), a_claimed(store)
    end(store, after, waiting_for(early, ref))
    complete(store, early)
    passed(store, early)
    at_work = take_one(store, after.id)
    last = linked(store, ref)
    complete(store, ref)

    swept = passed(store, ref)

    assert (swept.count, sorted(hinted(swept.hints))) == (3, sorted([before, last]))
    found = {run_id: live_row(store, run_id) for run_id in (before, at_work.id, last)}
    assert {run_id: (row.state, row.inbox) for run_id, row in found.items()} == {
        before: ("ready", 1),
        at_work.id: ("running", 2),
        last: ("ready", 1),
    }
    assert found[at_work.id].token == lease_of(at_work).token


def test_what_a_pass_leaves_stands_behind_the_rest(store: Store, clock: ManualClock) -> None:
    """What keeps one from being worked off may last; the others are not to wait for it."""
    first, second = a_ref(store), a_ref(store)
    for ref in (first, first, second):
        linked(store, ref)
    for ref in (first, second):
        complete(store, ref)
        clock.advance(1)
    assert store.run(freed_sources) == [first, second]

    assert passed(store, first, limit=1).count == 1

    assert store.run(freed_sources) == [second, first]


def test_a_run_may_wait_for_several_tokens(store: Store) -> None:
    refs = [a_ref(store) for _ in range(3)]
    claimed = a_claimed(store)
    end(store, claimed, waiting_for(*refs))
    for ref in refs[:2]:
        complete(store, ref)

    assert freed(store).count == 2

    assert sorted(name for name, _, _ in delivered(store, claimed.id)) == [
        f"t {ref}" for ref in refs[:2]
    ]
    assert (state_of(store, claimed.id), live_row(store, claimed.id).inbox) == (RunState.READY, 2)


@pytest.mark.parametrize(
    ("first_key", "key", "value", "result"),
    [
        ("k", "k", '{"b":1,"a":2}', DUPLICATE),
        ("k", "other", '{"a":2,"b":1}', ALREADY_SETTLED),
        ("k", None, '{"a":2,"b":1}', ALREADY_SETTLED),
        (None, None, '{"a":2,"b":1}', ALREADY_SETTLED),
    ],
)
def test_a_token_is_settled_once(
    store: Store, first_key: str | None, key: str | None, value: str, result: DeliveryResult
) -> None:
    ref = a_ref(store)
    complete(store, ref, '{"a":2,"b":1}', key=first_key)

    assert complete(store, ref, value, key=key) is result

    assert _token(store, ref) == ("value", '{"a":2,"b":1}')


def test_the_same_key_with_another_value_is_a_conflict(store: Store) -> None:
    ref = a_ref(store)
    complete(store, ref, '"first"', key="k")

    with pytest.raises(DeliveryConflictError) as caught:
        complete(store, ref, '"second"', key="k")

    assert "'k'" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (ref, "first", "second"))


def test_a_token_that_is_not_there(store: Store) -> None:
    with pytest.raises(TokenNotFoundError) as caught:
        complete(store, "tok_nobody_knows")

    assert "tok_nobody_knows" not in str(caught.value)


def test_making_a_token_twice_makes_one(store: Store) -> None:
    """The second try of a write whose answer was lost, also once somebody has completed it."""
    ref = a_ref(store)
    complete(store, ref)

    store.run(create_token, ref, timeout_ms=5)

    assert _token(store, ref) == ("value", '"paid"')


def test_an_ended_run_is_passed_by_and_its_link_goes(store: Store) -> None:
    ref = a_ref(store)
    gone, there = linked(store, ref), linked(store, ref)
    store.run(cancel, gone, by="ann", why="no", request_id="r")
    complete(store, ref)

    swept = passed(store, ref)

    assert hinted(swept.hints) == [there]
    assert (delivered(store, gone), links_of(store, ref), notes(store)) == ([], 0, [])


def test_a_run_that_is_not_waiting_just_now_finds_it_later(
    store: Store, clock: ManualClock
) -> None:
    """It waits for two tokens; the second comes while it looks at the first."""
    first, second = a_ref(store), a_ref(store)
    claimed = a_claimed(store)
    end(store, claimed, waiting_for(first, second))
    complete(store, first)
    passed(store, first)
    again = take_one(store, claimed.id)
    complete(store, second)

    assert (passed(store, second).hints, live_row(store, claimed.id).inbox) == ([], 2)

    settled = end(store, again, waiting_for(first, second))
    assert settled.written == {claimed.id: RunState.READY}


# -- time-outs -----------------------------------------------------------------------------------


def test_a_token_times_out_once_for_all(store: Store, clock: ManualClock) -> None:
    ref, later, open_end = a_ref(store, 1_000), a_ref(store, 2_000), a_ref(store)
    runs = [linked(store, ref), linked(store, ref)]
    others = [linked(store, later), linked(store, open_end)]
    clock.advance(1_000)

    assert store.run(expire_tokens).count == 1
    assert store.run(expire_tokens).count == 0
    freed(store)

    assert [_token(store, each)[0] for each in (ref, later, open_end)] == [
        "timed_out", "open", "open",
    ]  # fmt: skip
    for run_id in runs:
        assert delivered(store, run_id) == [(f"t {ref}", "timed_out", None)]
        assert state_of(store, run_id) is RunState.READY
    assert {state_of(store, run_id) for run_id in others} == {RunState.WAITING}
    assert complete(store, ref, key="k") is ALREADY_SETTLED


def test_a_promotion_settles_the_token_and_delivers_what_it_says(
    store: Store, clock: ManualClock
) -> None:
    """A worker may promote one of the runs before maintenance has looked at the token."""
    ref = a_ref(store, 1_000)
    one, two = linked(store, ref), linked(store, ref)
    clock.advance(1_000)

    assert promoted(store, [one]).count == 1

    assert _token(store, ref) == ("timed_out", None)
    assert delivered(store, one) == [(f"t {ref}", "timed_out", None)]
    assert (state_of(store, one), delivered(store, two)) == (RunState.READY, [])
    assert complete(store, ref) is ALREADY_SETTLED
    assert hinted(freed(store).hints) == [two]
    assert delivered(store, one) == delivered(store, two)
    assert (live_row(store, one).inbox, links_of(store, ref)) == (1, 0)


def test_a_promotion_of_a_run_whose_token_was_completed_delivers_the_value(
    store: Store, clock: ManualClock
) -> None:
    """It was settled before its time was recorded; no pass has come to the run yet."""
    ref = a_ref(store, 1_000)
    run_id = linked(store, ref)
    clock.advance(1_000)
    assert complete(store, ref) is DELIVERED

    promoted(store)

    assert delivered(store, run_id) == [(f"t {ref}", "value", '"paid"')]
    freed(store)
    assert (live_row(store, run_id).inbox, links_of(store, ref)) == (1, 0)


def test_a_wait_for_a_token_is_due_when_the_token_is(store: Store, clock: ManualClock) -> None:
    ref = a_ref(store, 5_000)
    clock.advance(2_000)
    run_id = linked(store, ref)
    clock.advance(2_999)
    assert promoted(store).count == 0
    clock.advance(1)
    assert promoted(store).count == 1
    assert state_of(store, run_id) is RunState.READY


def test_only_tokens_whose_time_has_come_are_settled_by_it(
    store: Store, clock: ManualClock
) -> None:
    due, later, open_end, completed = (
        a_ref(store, 1_000), a_ref(store, 1_001), a_ref(store), a_ref(store, 1_000),
    )  # fmt: skip
    not_asked, aside = a_ref(store, 1_000), a_ref(store)
    for ref in (completed, aside):
        complete(store, ref)
    clock.advance(1_000)

    asked = [due, later, open_end, completed, "tok_nobody_knows"]
    ends = store.run(settle_due, asked)

    assert {ref: (end.state, end.value) for ref, end in ends.items()} == {
        due: ("timed_out", None),
        completed: ("value", '"paid"'),
    }
    assert store.run(token_ends, asked) == ends
    assert {_token(store, ref)[0] for ref in (later, open_end, not_asked)} == {"open"}


def test_tokens_expire_in_pages(store: Store, clock: ManualClock) -> None:
    for _ in range(PAGE + 1):
        a_ref(store, 1_000)
    clock.advance(1_000)

    swept = [store.run(expire_tokens) for _ in range(2)]

    assert [(each.count, each.full) for each in swept] == [(PAGE, True), (1, False)]
    assert freed(store).count == 0
    assert notes(store) == []


# -- many runs -----------------------------------------------------------------------------------


def _link_many(store: Store, ref: str, count: int) -> list[RunId]:
    """Let many runs wait for a token, as one settle would."""
    ids = []
    for start in range(0, count, 100):
        batch = put_many(store, min(100, count - start))
        claimed = take(store, *batch).runs
        entries = [an_entry(each, waiting_for(ref)) for each in claimed]
        assert len(store.run(settle, entries, reach=reach).written) == len(batch)
        ids += batch
    return ids


def test_a_thousand_runs_each_go_on_once_though_the_caller_died_after_the_small_pass(
    store: Store,
) -> None:
    ref = a_ref(store)
    ids = _link_many(store, ref, 1_000)
    complete(store, ref)
    small = passed(store, ref, SMALL_PASS)
    assert (small.count, len(small.hints), small.full) == (SMALL_PASS, SMALL_PASS, True)
    assert notes(store) == [ref]

    rest = freed(store)

    woken = hinted(small.hints) + hinted(rest.hints)
    assert sorted(woken) == sorted(ids)
    states = "select state, inbox, count(*) from {s}live group by state, inbox"
    assert [tuple(row) for row in rows(store, states)] == [("ready", 1, 1_000)]
    assert rows(store, "select count(*) from {s}deliveries")[0][0] == 1_000
    assert (links_of(store, ref), notes(store)) == (0, [])


def test_a_pass_that_is_rolled_back_is_done_again(postgresql_store: Store) -> None:
    """Whoever dies half way through a pass leaves nothing of it."""
    store = postgresql_store
    ref = a_ref(store)
    ids = _link_many(store, ref, 30)
    complete(store, ref)

    with Rival(store) as other:
        assert other.call(free, ref, limit=SMALL_PASS).count == SMALL_PASS
        other.rollback()

    assert sorted(hinted(freed(store).hints)) == sorted(ids)
    assert {len(delivered(store, run_id)) for run_id in ids} == {1}


# -- races, forced into both orders --------------------------------------------------------------


@pytest.mark.parametrize("first", ["value", "time-out", "promotion"])
def test_a_value_and_the_tokens_time(
    postgresql_store: Store, clock: ManualClock, first: str
) -> None:
    store = postgresql_store
    ref = a_ref(store, 1_000)
    run_id = linked(store, ref)
    clock.advance(1_000)

    with Rival(store) as one, Rival(store) as two:
        if first == "value":
            assert one.call(complete_token, ref, '"paid"', key=None) is DELIVERED
            assert store.run(expire_tokens).count == 0  # it is left to whoever holds it
            # A promotion waits for it, and delivers what it says then.
            promotion = two.start(promote)
            two.wait_until_blocked()
            one.commit()
            assert promotion.result(30).count == 1
        else:
            if first == "time-out":
                assert one.call(expire_tokens).count == 1
            else:
                assert one.call(promote).count == 1
            answer = two.start(complete_token, ref, '"paid"', key="k")
            two.wait_until_blocked()
            one.commit()
            assert answer.result(30) is ALREADY_SETTLED
        two.commit()

    freed(store)
    promoted(store)
    expected = ("value", '"paid"') if first == "value" else ("timed_out", None)
    assert _token(store, ref) == expected
    assert delivered(store, run_id) == [(f"t {ref}", *expected)]
    assert (state_of(store, run_id), live_row(store, run_id).inbox) == (RunState.READY, 1)


@pytest.mark.parametrize("first", ["value", "wait"])
def test_a_value_and_a_run_that_comes_to_wait(postgresql_store: Store, first: str) -> None:
    store = postgresql_store
    ref = a_ref(store)
    claimed = a_claimed(store)
    entry = an_entry(claimed, waiting_for(ref))

    with Rival(store) as one, Rival(store) as two:
        if first == "value":
            one.call(complete_token, ref, '"paid"', key=None)
            settled = two.start(settle, [entry], reach=reach)
            two.wait_until_blocked()
            one.commit()
            assert settled.result(30).written == {claimed.id: RunState.READY}
        else:
            settled_first = one.call(settle, [entry], reach=reach)
            assert settled_first.written == {claimed.id: RunState.WAITING}
            answer = two.start(complete_token, ref, '"paid"', key=None)
            two.wait_until_blocked()
            one.commit()
            assert answer.result(30) is DELIVERED
        two.commit()

    freed(store)
    assert delivered(store, claimed.id) == [(f"t {ref}", "value", '"paid"')]
    assert state_of(store, claimed.id) is RunState.READY


def test_who_comes_to_wait_is_kept_by_nobody_who_waits_or_by_another_token(
    postgresql_store: Store,
) -> None:
    store = postgresql_store
    ref, another = a_ref(store), a_ref(store)
    one, other = a_claimed(store), a_claimed(store)

    with Rival(store) as rival:
        rival.call(settle, [an_entry(one, waiting_for(ref))], reach=reach)
        rival.call(complete_token, another, '"paid"', key=None)
        # It is not repeated, and a lock that is not got within two seconds is an error.
        settled = store.try_once(settle, [an_entry(other, waiting_for(ref))], reach=reach)
        rival.commit()

    assert settled.written == {other.id: RunState.WAITING}
    assert links_of(store, ref) == 2
    freed(store)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_two_passes(postgresql_store: Store, ends: str) -> None:
    """One has the token in hand; the other leaves it alone, and what is left goes on later."""
    store = postgresql_store
    ref = a_ref(store)
    ids = _link_many(store, ref, 30)
    complete(store, ref)

    with Rival(store) as one:
        assert one.call(free, ref, limit=SMALL_PASS).count == SMALL_PASS
        assert passed(store, ref).count == 0
        getattr(one, ends)()

    assert freed(store).count == (10 if ends == "commit" else 30)
    assert {len(delivered(store, run_id)) for run_id in ids} == {1}
    assert {live_row(store, run_id).inbox for run_id in ids} == {1}


def test_a_run_that_somebody_holds_is_left_to_the_next_pass(postgresql_store: Store) -> None:
    store = postgresql_store
    ref = a_ref(store)
    held, other = linked(store, ref), linked(store, ref)
    complete(store, ref)

    with Rival(store) as rival:
        rival.lock(held)
        swept = passed(store, ref)
        assert (swept.count, swept.full, hinted(swept.hints)) == (1, False, [other])
        assert (links_of(store, ref), notes(store)) == (1, [ref])
        assert passed(store, ref).count == 0

    assert hinted(freed(store).hints) == [held]


@pytest.mark.parametrize("gone", [True, False])
def test_a_note_that_is_about_to_go_is_written_again(postgresql_store: Store, gone: bool) -> None:
    """Else a link that the pass has not seen would lead from an end nobody looks at any more."""
    store = postgresql_store
    ref = a_ref(store)
    complete(store, ref)

    with Rival(store) as one, Rival(store) as two:
        if gone:
            one.call(free, ref)
        else:
            assert one.call(freed_sources) == [ref]
        noting = two.start(note_freed, [ref])
        two.wait_until_blocked()
        one.commit()
        noting.result(30)
        two.commit()

    assert notes(store) == [ref]
    freed(store)


def test_a_value_of_text_comes_through_as_it_is(store: Store) -> None:
    value = json.dumps({"text": 'quote " back \\ line\n ünïcode 🐎', "n": 12345678901234567890})
    ref = a_ref(store)
    run_id = linked(store, ref)
    complete(store, ref, value)
    freed(store)

    assert delivered(store, run_id) == [(f"t {ref}", "value", value)]
    size = rows(store, "select bytes from {s}deliveries")[0].bytes
    assert size == len(value.encode())


def test_a_wait_for_a_token_that_is_gone_fails(store: Store) -> None:
    """Nobody could ever complete it."""
    ref = a_ref(store)
    run_id = linked(store, ref)
    complete(store, ref)
    do(store, "delete from {s}tokens")

    passed(store, ref)

    assert delivered(store, run_id) == [(f"t {ref}", "failed", None)]
    end(store, take_one(store, run_id), SUCCEED)
