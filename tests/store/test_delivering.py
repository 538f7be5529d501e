"""Values from outside: kept, delivered, repeated, too late, too many; the first one stands."""

from __future__ import annotations

import pytest

from tests.store.acting import (
    LEASE_MS,
    SUCCEED,
    a_claimed,
    do,
    end,
    hinted,
    live_row,
    promoted,
    put,
    reach,
    recovered,
    rows,
    state_of,
    take_one,
    waiting,
)
from tests.store.rivals import Rival
from tests.store.waiting import (
    CHILD,
    HUMAN,
    SIGNAL,
    TOKEN,
    a_waiting,
    delivered,
    said,
    send,
    wait_again,
)
from workhorse.domain.boundaries import MAX_UNREAD, BoundaryKind, DeliveryResult, NewBoundary, Wait
from workhorse.domain.ids import new_run_id
from workhorse.domain.outcomes import Suspend
from workhorse.domain.runs import RunState
from workhorse.errors import (
    DeliveryConflictError,
    DeliveryLimitExceededError,
    RunNotFoundError,
)
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.delivering import was_delivered
from workhorse.store.durable.putting import NewDelivery
from workhorse.store.durable.putting import put as put_deliveries
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.lifecycle.sweeping import promote
from workhorse.store.live.ending import Ending, end_runs
from workhorse.store.operators.operating import cancel

DELIVERED, KEPT, DUPLICATE, ALREADY_SETTLED, RUN_FINISHED = (
    DeliveryResult.DELIVERED,
    DeliveryResult.KEPT,
    DeliveryResult.DUPLICATE,
    DeliveryResult.ALREADY_SETTLED,
    DeliveryResult.RUN_FINISHED,
)
HOUR_MS = 3_600_000


# -- delivered and kept --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SIGNAL, HUMAN])
@pytest.mark.parametrize("timeout_ms", [None, HOUR_MS])
def test_a_run_that_waits_for_the_name_goes_on(
    store: Store, clock: ManualClock, kind: BoundaryKind, timeout_ms: int | None
) -> None:
    run_id = a_waiting(store, kind=kind, timeout_ms=timeout_ms)

    result, hints = send(store, run_id, '{"a":1}', kind=kind, by="ann", why="it is due")

    assert (result, hinted(hints)) == (DELIVERED, [run_id])
    assert delivered(store, run_id) == [("word", "value", '{"a":1}')]
    row = live_row(store, run_id)
    assert (row.state, row.due_at, row.inbox) == ("ready", None, 1)
    claimed = take_one(store, run_id)
    assert [(each.name, each.value) for each in claimed.history.deliveries] == [("word", '{"a":1}')]
    found = rows(store, "select by, why, bytes from {s}deliveries")
    assert [tuple(row) for row in found] == [("ann", "it is due", 7)]


def test_a_value_that_nobody_waits_for_yet_is_kept(store: Store) -> None:
    ready, running, asleep = put(store), a_claimed(store), put(store, delay_ms=HOUR_MS)
    elsewhere = a_waiting(store, name="other")

    for run_id in (ready, running.id, asleep, elsewhere):
        before = state_of(store, run_id)
        assert send(store, run_id) == (KEPT, [])
        assert state_of(store, run_id) is before
        assert live_row(store, run_id).inbox == 1


def test_a_value_of_another_kind_settles_nothing(store: Store) -> None:
    """A decision is no signal, though both have one name."""
    run_id = a_waiting(store, kind=SIGNAL)

    assert send(store, run_id, kind=HUMAN)[0] is KEPT
    assert state_of(store, run_id) is RunState.WAITING
    assert send(store, run_id, kind=SIGNAL)[0] is DELIVERED


def test_a_wait_that_another_run_has_got_to_is_its_own(store: Store) -> None:
    a_waiting(store, name="word")
    run_id = a_waiting(store, name="other")

    assert send(store, run_id, name="word") == (KEPT, [])
    assert state_of(store, run_id) is RunState.WAITING


@pytest.mark.parametrize("names", [("word", "other"), ("other", "word")])
def test_of_two_values_at_once_the_one_that_is_waited_for_wakes_the_run(
    store: Store, names: tuple[str, str]
) -> None:
    run_id = a_waiting(store, name="word")
    new = [NewDelivery(run_id=run_id, kind=SIGNAL, name=name, value="1") for name in names]

    put_all = store.run(put_deliveries, new)

    assert (put_all.woken, hinted(put_all.hints)) == ([run_id], [run_id])
    assert (state_of(store, run_id), live_row(store, run_id).inbox) == (RunState.READY, 2)


def test_a_value_that_came_since_the_claim_is_not_waited_for(store: Store) -> None:
    claimed = a_claimed(store)
    send(store, claimed.id)

    assert wait_again(store, claimed, "word") is RunState.READY


def test_what_came_before_the_first_claim_comes_with_it(store: Store) -> None:
    run_id = put(store)
    send(store, run_id)

    history = take_one(store, run_id).history

    assert [(each.name, each.value) for each in history.deliveries] == [("word", '"go"')]


def test_deliveries_are_numbered_in_the_order_they_came(store: Store) -> None:
    run_id = put(store)
    for name in ("c", "a", "b"):
        send(store, run_id, name=name)

    found = rows(store, "select name, inbox from {s}deliveries order by inbox")

    assert [tuple(row) for row in found] == [("c", 1), ("a", 2), ("b", 3)]
    assert live_row(store, run_id).inbox == 3


def test_the_head_of_a_session_is_woken(store: Store) -> None:
    run_id = a_waiting(store, session="s")
    put(store, session="s")

    assert hinted(send(store, run_id)[1]) == [run_id]


# -- the first one stands ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_key", "key", "value", "result"),
    [
        ("k", "k", '{"a":1,"b":[2]}', DUPLICATE),
        ("k", "k", '{"b":[2],"a":1}', DUPLICATE),
        ("k", "other", '{"a":1,"b":[2]}', ALREADY_SETTLED),
        ("k", "other", '"x"', ALREADY_SETTLED),
        ("k", None, '{"a":1,"b":[2]}', ALREADY_SETTLED),
        (None, None, '{"a":1,"b":[2]}', ALREADY_SETTLED),
        (None, "k", '{"a":1,"b":[2]}', ALREADY_SETTLED),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
def test_a_second_delivery_changes_nothing(
    store: Store,
    first_key: str | None,
    key: str | None,
    value: str,
    result: DeliveryResult,
    kept: bool,
) -> None:
    run_id = put(store) if kept else a_waiting(store)
    first = '{"a":1,"b":[2]}'
    assert send(store, run_id, first, key=first_key)[0] in (DELIVERED, KEPT)

    assert send(store, run_id, value, key=key) == (result, [])

    assert delivered(store, run_id) == [("word", "value", first)]
    assert live_row(store, run_id).inbox == 1


def test_a_second_delivery_meets_what_came_under_its_own_name(store: Store) -> None:
    """By run, kind and name; one key may stand with all of them."""
    run_id, other = put(store), put(store)
    names = [
        (run_id, SIGNAL, "a"),
        (run_id, HUMAN, "a"),
        (run_id, SIGNAL, "b"),
        (other, SIGNAL, "a"),
    ]

    for result in (KEPT, DUPLICATE):
        for n, (to, kind, name) in enumerate(names):
            assert send(store, to, f"{n}", kind=kind, name=name, key="k") == (result, [])


def test_the_same_key_with_another_value_is_a_conflict(store: Store) -> None:
    run_id = a_waiting(store)
    send(store, run_id, '"first"', key="k")

    with pytest.raises(DeliveryConflictError) as caught:
        send(store, run_id, '"second"', key="k")

    assert all(part in str(caught.value) for part in (run_id, "'word'", "'k'", "stands"))
    assert "second" not in str(caught.value)
    assert "first" not in str(caught.value)
    assert delivered(store, run_id) == [("word", "value", '"first"')]


@pytest.mark.parametrize("key", [None, "k"])
def test_what_comes_after_the_time_out_is_too_late(
    store: Store, clock: ManualClock, key: str | None
) -> None:
    run_id = a_waiting(store, timeout_ms=1_000)
    clock.advance(1_000)
    promoted(store)

    assert send(store, run_id, key=key) == (ALREADY_SETTLED, [])
    assert delivered(store, run_id) == [("word", "timed_out", None)]


def test_a_wait_that_was_closed_takes_nothing(store: Store) -> None:
    claimed = a_claimed(store)
    end(store, claimed, waiting(SIGNAL, name="word"))
    do(
        store,
        "insert into {s}deliveries (run_id, kind, name, state, inbox, bytes, created_at)"
        " select id, 'signal', 'word', 'closed', 0, 0, created_at from {s}runs",
    )

    assert send(store, claimed.id, key="k") == (ALREADY_SETTLED, [])
    assert state_of(store, claimed.id) is RunState.WAITING


def test_a_finished_run_takes_nothing(store: Store) -> None:
    claimed = a_claimed(store)
    send(store, claimed.id, name="before", key="k")
    end(store, claimed, SUCCEED)

    assert send(store, claimed.id) == (RUN_FINISHED, [])
    assert send(store, claimed.id, name="before", key="k") == (RUN_FINISHED, [])
    assert [name for name, _, _ in delivered(store, claimed.id)] == ["before"]


def test_a_run_that_is_not_there_is_named(store: Store) -> None:
    run_id = new_run_id()
    put(store)
    end(store, a_claimed(store), SUCCEED)

    with pytest.raises(RunNotFoundError, match=run_id):
        send(store, run_id)


def test_what_a_run_has_ended_by_is_known_by_its_key_and_value(store: Store) -> None:
    claimed = a_claimed(store)
    send(store, claimed.id, '{"a":1,"b":2}', key="k")
    send(store, claimed.id, '"x"', name="other", key="k")
    end(store, claimed, SUCCEED)

    def known(value: str, *, key: str = "k", name: str = "word") -> bool:
        return store.run(was_delivered, claimed.id, SIGNAL, name, value, key=key)

    assert known('{"a":1,"b":2}')
    assert known('{"b":2,"a":1}')
    assert not known('"x"')
    assert not known('{"a":1,"b":2}', key="another")
    assert not known('{"a":1,"b":2}', name="never sent")


# -- time-outs -----------------------------------------------------------------------------------


def test_a_time_out_is_a_delivery(store: Store, clock: ManualClock) -> None:
    run_id = a_waiting(store, timeout_ms=HOUR_MS)
    clock.advance(HOUR_MS - 1)
    assert promoted(store).count == 0
    clock.advance(1)

    swept = promoted(store)

    assert (swept.count, delivered(store, run_id)) == (1, [("word", "timed_out", None)])
    row = live_row(store, run_id)
    assert (row.state, row.due_at, row.inbox) == ("ready", None, 1)
    assert promoted(store).count == 0


def test_a_value_after_the_instant_but_before_the_record_is_in_time(
    store: Store, clock: ManualClock
) -> None:
    run_id = a_waiting(store, timeout_ms=1_000)
    clock.advance(HOUR_MS)

    assert send(store, run_id)[0] is DELIVERED
    assert promoted(store).count == 0
    assert delivered(store, run_id) == [("word", "value", '"go"')]


def test_what_was_sent_of_another_kind_keeps_no_wait_from_its_time_out(
    store: Store, clock: ManualClock
) -> None:
    run_id = a_waiting(store, kind=HUMAN, timeout_ms=1_000)
    assert send(store, run_id, kind=SIGNAL)[0] is KEPT
    clock.advance(1_000)

    assert promoted(store).count == 1
    assert delivered(store, run_id) == [("word", "value", '"go"'), ("word", "timed_out", None)]


def test_each_wait_times_out_by_itself(store: Store, clock: ManualClock) -> None:
    """Of a run that waits for several, only those whose time has come; a value stays."""
    claimed = a_claimed(store)

    def wait(kind: BoundaryKind, name: str, delay_ms: int | None) -> Wait:
        new = NewBoundary(name=name, kind=kind, seq=1, delay_ms=delay_ms)
        return Wait(kind=kind, name=name, new=new)

    send(store, claimed.id, name="came")
    taken = [
        wait(SIGNAL, "came", 1_000), wait(SIGNAL, "soon", 1_000), wait(HUMAN, "both", 1_000),
        wait(SIGNAL, "later", 2_000), wait(SIGNAL, "never", None),
    ]  # fmt: skip
    end(store, claimed, Suspend(tuple(taken)))
    claimed = take_one(store, claimed.id)
    end(store, claimed, Suspend(tuple(Wait(kind=w.kind, name=w.name) for w in taken[1:])))
    clock.advance(1_000)

    promoted(store)

    assert sorted(delivered(store, claimed.id)) == [
        ("both", "timed_out", None), ("came", "value", '"go"'), ("soon", "timed_out", None),
    ]  # fmt: skip
    assert live_row(store, claimed.id).inbox == 3


def test_time_outs_that_are_recorded_late_are_numbered_by_their_times(
    store: Store, clock: ManualClock
) -> None:
    """By these numbers `wait_any` says who came first."""
    claimed = a_claimed(store)
    waits = tuple(
        Wait(
            kind=SIGNAL,
            name=name,
            new=NewBoundary(name=name, kind=SIGNAL, seq=seq, delay_ms=delay_ms),
        )
        for seq, (name, delay_ms) in enumerate({"third": 3, "first": 1, "second": 2}.items(), 1)
    )
    end(store, claimed, Suspend(waits))
    clock.advance(10)

    promoted(store)

    numbered = rows(store, "select name, inbox from {s}deliveries order by inbox")
    assert [tuple(row) for row in numbered] == [("first", 1), ("second", 2), ("third", 3)]


def test_a_timer_among_waits_makes_the_run_ready_and_settles_none(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)
    timer = NewBoundary(name="nap", kind=BoundaryKind.TIMER, seq=1, delay_ms=1_000)
    word = NewBoundary(name="word", kind=SIGNAL, seq=2)
    waits = (
        Wait(kind=BoundaryKind.TIMER, name="nap", new=timer),
        Wait(kind=SIGNAL, name="word", new=word),
    )
    end(store, claimed, Suspend(waits))
    assert state_of(store, claimed.id) is RunState.WAITING
    beside = a_claimed(store, lease_ms=HOUR_MS).id, a_waiting(store), put(store, delay_ms=HOUR_MS)
    clock.advance(1_000)

    assert promoted(store).count == 1
    assert (state_of(store, claimed.id), delivered(store, claimed.id)) == (RunState.READY, [])
    assert send(store, claimed.id)[0] is KEPT
    assert [state_of(store, each) for each in beside] == ["running", "waiting", "scheduled"]


def test_runs_that_sleep_and_runs_that_wait_are_promoted_together(
    store: Store, clock: ManualClock
) -> None:
    asleep, waits = put(store, delay_ms=1_000), a_waiting(store, timeout_ms=1_000)
    clock.advance(1_000)

    swept = promoted(store)

    assert (swept.count, swept.hints) == (2, [])  # their delayed messages are under way
    assert {state_of(store, run) for run in (asleep, waits)} == {RunState.READY}
    assert delivered(store, asleep) == []


def test_time_outs_in_place_are_of_the_named_runs_only(store: Store, clock: ManualClock) -> None:
    named, other = a_waiting(store, timeout_ms=10), a_waiting(store, timeout_ms=10)
    clock.advance(10)

    assert promoted(store, [named]).count == 1
    assert (delivered(store, named), delivered(store, other)) == (
        [("word", "timed_out", None)],
        [],
    )


# -- the limit -----------------------------------------------------------------------------------


def _fill(store: Store, run_id: str, count: int) -> None:
    """Leave unread signals with a run, as so many sends would."""
    each = (
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < :count)"
        if store.kind == "sqlite"
        else "with n(i) as (select * from generate_series(1, :count))"
    )
    do(
        store,
        "insert into {s}deliveries (run_id, kind, name, state, inbox, value, bytes, created_at) "  # noqa: S608
        + each
        + " select r.id, 'signal', 'n' || i, 'value', i, '1', 1, r.created_at"
        " from n, {s}runs r where r.id = :id",
        id=run_id,
        count=count,
    )
    do(store, "update {s}live set inbox = :count where id = :id", id=run_id, count=count)


@pytest.mark.parametrize("kind", [SIGNAL, HUMAN])
def test_so_many_lie_unread_and_no_more(store: Store, kind: BoundaryKind) -> None:
    run_id = put(store)
    _fill(store, run_id, MAX_UNREAD - 1)

    assert send(store, run_id, kind=kind)[0] is KEPT
    with pytest.raises(DeliveryLimitExceededError, match=f"{run_id}: 1,000 .*'one more'"):
        send(store, run_id, kind=kind, name="one more")

    assert live_row(store, run_id).inbox == MAX_UNREAD
    assert send(store, run_id, kind=kind, key="k")[0] is ALREADY_SETTLED


def test_what_the_run_has_got_to_is_not_unread(store: Store) -> None:
    claimed = a_claimed(store)
    _fill(store, claimed.id, MAX_UNREAD)
    assert wait_again(store, claimed, "n1", "word") is RunState.READY

    assert send(store, claimed.id, name="one more")[0] is KEPT  # n1 is read
    with pytest.raises(DeliveryLimitExceededError):
        send(store, claimed.id, name="too many")
    assert send(store, claimed.id)[0] is KEPT  # it has got to that wait


def test_what_another_run_was_sent_or_has_got_to_is_its_own(store: Store) -> None:
    claimed, other = a_claimed(store), a_claimed(store)
    for each in (claimed, other):
        _fill(store, each.id, MAX_UNREAD)
        assert wait_again(store, each, "n1" if each is claimed else "n2") is RunState.READY

    assert (
        send(store, claimed.id, name="one more")[0] is KEPT
    )  # what lies with the other is not its
    with pytest.raises(DeliveryLimitExceededError):
        send(store, claimed.id, name="too many")  # nor has it got to that one's wait


def test_what_was_closed_or_came_by_a_token_is_not_unread(store: Store) -> None:
    run_id = put(store)
    _fill(store, run_id, MAX_UNREAD)
    do(store, "update {s}deliveries set state = 'closed', value = null where name = 'n1'")
    do(store, "update {s}deliveries set kind = 'token' where name = 'n2'")

    for name in ("one more", "another"):
        assert send(store, run_id, name=name)[0] is KEPT
    with pytest.raises(DeliveryLimitExceededError):
        send(store, run_id, name="too many")


def test_a_wait_of_another_kind_reads_no_signal_of_its_name(store: Store) -> None:
    claimed = a_claimed(store)
    _fill(store, claimed.id, MAX_UNREAD)
    assert wait_again(store, claimed, "n1", kind=HUMAN) is RunState.READY

    with pytest.raises(DeliveryLimitExceededError):
        send(store, claimed.id, name="one more")


# -- races, forced into both orders --------------------------------------------------------------


@pytest.mark.parametrize("first", ["value", "time-out"])
def test_a_value_and_a_time_out(postgresql_store: Store, clock: ManualClock, first: str) -> None:
    store = postgresql_store
    run_id = a_waiting(store, timeout_ms=1_000)
    clock.advance(1_000)

    with Rival(store) as other:
        if first == "value":
            assert other.call(said, run_id, '"go"') is DELIVERED
            assert promoted(store).count == 0  # the row is left to whoever holds it
            other.commit()
            assert promoted(store).count == 0
        else:
            with Rival(store) as sweeper:
                assert sweeper.call(promote).count == 1
                answer = other.start(said, run_id, '"go"')
                other.wait_until_blocked()
                sweeper.commit()
            assert answer.result(30) is ALREADY_SETTLED
            other.commit()

    expected = ("value", '"go"') if first == "value" else ("timed_out", None)
    assert delivered(store, run_id) == [("word", *expected)]
    assert (state_of(store, run_id), live_row(store, run_id).inbox) == (RunState.READY, 1)


@pytest.mark.parametrize(
    ("key", "value", "result"),
    [("k", '"go"', DUPLICATE), ("other", '"go"', ALREADY_SETTLED), (None, "1", ALREADY_SETTLED)],
)
@pytest.mark.parametrize("kept", [True, False])
def test_two_deliveries(
    postgresql_store: Store, key: str | None, value: str, result: DeliveryResult, kept: bool
) -> None:
    store = postgresql_store
    run_id = put(store) if kept else a_waiting(store)

    with Rival(store) as one, Rival(store) as two:
        assert one.call(said, run_id, '"go"', key="k") is (KEPT if kept else DELIVERED)
        answer = two.start(said, run_id, value, key=key)
        two.wait_until_blocked()
        one.commit()
        assert answer.result(30) is result
        two.commit()

    assert delivered(store, run_id) == [("word", "value", '"go"')]
    assert live_row(store, run_id).inbox == 1


def test_a_delivery_that_is_rolled_back_leaves_the_name_to_the_next(
    postgresql_store: Store,
) -> None:
    store = postgresql_store
    run_id = a_waiting(store)

    with Rival(store) as one, Rival(store) as two:
        one.call(said, run_id, "1")
        answer = two.start(said, run_id, "2")
        two.wait_until_blocked()
        one.rollback()
        assert answer.result(30) is DELIVERED
        two.commit()

    assert delivered(store, run_id) == [("word", "value", "2")]


@pytest.mark.parametrize("first", ["value", "cancel"])
def test_a_value_and_a_cancel(postgresql_store: Store, first: str) -> None:
    store = postgresql_store
    run_id = a_waiting(store)
    request = {"by": "ann", "why": "no", "request_id": "r"}

    with Rival(store) as one, Rival(store) as two:
        if first == "value":
            assert one.call(said, run_id, '"go"') is DELIVERED
            cancelled = two.start(cancel, run_id, **request)
            two.wait_until_blocked()
            one.commit()
            assert cancelled.result(30)[0] == "cancelled"
        else:
            one.call(cancel, run_id, **request)
            answer = two.start(said, run_id, '"go"')
            two.wait_until_blocked()
            one.commit()
            assert answer.result(30) is RUN_FINISHED
        two.commit()

    assert state_of(store, run_id) is RunState.CANCELLED
    assert len(delivered(store, run_id)) == (1 if first == "value" else 0)


@pytest.mark.parametrize("first", ["value", "end"])
def test_a_value_and_the_end_of_the_run(postgresql_store: Store, first: str) -> None:
    store = postgresql_store
    claimed = a_claimed(store)
    ending = Ending(claimed.id, claimed.lease.token if claimed.lease else None, SUCCEED)

    with Rival(store) as one, Rival(store) as two:
        if first == "value":
            assert one.call(said, claimed.id, '"go"') is KEPT
            ended = two.start(end_runs, [ending], under_lease=True)
            two.wait_until_blocked()
            one.commit()
            assert list(ended.result(30).states) == [claimed.id]
        else:
            one.call(end_runs, [ending], under_lease=True)
            answer = two.start(said, claimed.id, '"go"')
            two.wait_until_blocked()
            one.commit()
            assert answer.result(30) is RUN_FINISHED
        two.commit()

    assert state_of(store, claimed.id) is RunState.SUCCEEDED
    assert len(delivered(store, claimed.id)) == (1 if first == "value" else 0)


@pytest.mark.parametrize("first", ["value", "settle"])
def test_a_value_and_the_settle_of_its_wait(postgresql_store: Store, first: str) -> None:
    """Whoever comes first, the run is ready: no value is waited for that is there already."""
    store = postgresql_store
    claimed = a_claimed(store)
    assert claimed.lease is not None
    entry = Entry(claimed.lease, waiting(SIGNAL, name="word"), queue=claimed.queue)

    with Rival(store) as one, Rival(store) as two:
        if first == "value":
            assert one.call(said, claimed.id, '"go"') is KEPT
            settled = two.start(settle, [entry], reach=reach)
            two.wait_until_blocked()
            one.commit()
            assert settled.result(30).written == {claimed.id: RunState.READY}
        else:
            one.call(settle, [entry], reach=reach)
            answer = two.start(said, claimed.id, '"go"')
            two.wait_until_blocked()
            one.commit()
            assert answer.result(30) is DELIVERED
        two.commit()

    assert state_of(store, claimed.id) is RunState.READY


def test_a_token_or_a_child_is_not_counted_as_unread(store: Store) -> None:
    run_id = put(store)
    _fill(store, run_id, MAX_UNREAD)

    assert [send(store, run_id, kind=kind)[0] for kind in (TOKEN, CHILD)] == [KEPT, KEPT]


def test_a_delivery_to_a_run_whose_lease_expires_is_found_by_the_next(
    store: Store, clock: ManualClock
) -> None:
    claimed = a_claimed(store)
    send(store, claimed.id)
    clock.advance(LEASE_MS)
    recovered(store)
    clock.advance(LEASE_MS)

    again = take_one(store, claimed.id)

    assert [each.name for each in again.history.deliveries] == ["word"]
