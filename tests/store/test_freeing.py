"""What the end of a run brings to its parent, to its children, and to runs that come after it."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import event

from tests.store.acting import (
    BROKEN,
    FAIL,
    LEASE_MS,
    RETRY,
    SUCCEED,
    a_claimed,
    a_run,
    an_entry,
    do,
    end,
    hinted,
    lease_of,
    live_row,
    promoted,
    put,
    put_many,
    reach,
    recovered,
    rows,
    seen,
    state_of,
    take,
    take_one,
)
from tests.store.rivals import Rival
from tests.store.waiting import (
    CHILD,
    a_child,
    a_family,
    a_ref,
    complete,
    delivered,
    freed,
    linked,
    links_of,
    notes,
    passed,
    put_after,
    send,
    wait_again,
)
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.recording import Record
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import OnFailure, Reason, RunState
from workhorse.errors import RunNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.pages import PAGE
from workhorse.store.durable import freeing
from workhorse.store.durable.boundaries import record
from workhorse.store.durable.freeing import arm, cancel_children, free, free_noted
from workhorse.store.lifecycle.settling import settle
from workhorse.store.lifecycle.sweeping import end_overdue
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue


def _cancel(store: Store, run_id: RunId) -> None:
    store.run(cancel, run_id, by="ann", why="no", request_id="r")


# -- the end of a child --------------------------------------------------------------------------


def test_the_parent_gets_the_childs_result(store: Store) -> None:
    result = json.dumps({"total": 3, "words": "ünïcode 🐎"})
    parent, [child] = a_family(store)

    settled = end(store, take_one(store, child), Finish(RunState.SUCCEEDED, result=result))
    assert settled.written == {child: RunState.SUCCEEDED}
    assert (state_of(store, parent), notes(store)) == (RunState.WAITING, [child])
    swept = passed(store, child)

    assert (swept.count, hinted(swept.hints)) == (1, [parent])
    assert delivered(store, parent) == [("part 0", "value", result)]
    assert rows(store, "select bytes from {s}deliveries")[0].bytes == len(result.encode())
    assert (live_row(store, parent).inbox, links_of(store, child), notes(store)) == (1, 0, [])


def test_the_parent_is_told_how_its_child_failed(store: Store) -> None:
    parent, [child] = a_family(store)
    end(store, take_one(store, child), FAIL)
    freed(store)

    [(name, state, value)] = delivered(store, parent)

    assert (name, state) == ("part 0", "failed")
    assert json.loads(value or "") == {
        "run_id": child,
        "task": "orders.ship",
        "reason": "error",
        "error_type": BROKEN.error_type,
        "error_message": BROKEN.message,
    }
    assert state_of(store, parent) is RunState.READY


def test_the_parent_is_told_the_task_of_the_child_that_failed(store: Store) -> None:
    parent, [child, _] = a_family(store, 2, task="parts.make")
    other = a_claimed(store)
    end(store, other, FAIL)
    end(store, take_one(store, child, tasks=["parts.make"]), FAIL)
    freed(store)

    [(_, _, value)] = delivered(store, parent)

    assert json.loads(value or "")["task"] == "parts.make"


def test_the_parent_is_told_that_its_child_was_cancelled(store: Store) -> None:
    parent, [child] = a_family(store)
    _cancel(store, child)
    freed(store)

    [(_, state, value)] = delivered(store, parent)

    assert state == "cancelled"
    told = json.loads(value or "")
    assert (told["run_id"], told["reason"], told["error_type"]) == (child, "cancelled", None)


@pytest.mark.parametrize("how", ["deadline", "lost"])
def test_however_a_child_ends_its_parent_is_told(
    store: Store, clock: ManualClock, how: str
) -> None:
    once = RetryPolicy(max_attempts=1)
    parent, [child] = a_family(
        store, deadline_ms=LEASE_MS if how == "deadline" else None, retry=once
    )
    take_one(store, child)
    clock.advance(LEASE_MS)
    if how == "deadline":
        store.run(end_overdue)
    else:
        recovered(store)
    freed(store)

    [(_, state, value)] = delivered(store, parent)
    assert (state, json.loads(value or "")["reason"]) == ("failed", how)


def test_only_who_has_a_child_or_a_parent_is_watched(store: Store) -> None:
    """The end of a run that nobody waits for is to leave no note."""
    beside = put(store)
    parent, [child] = a_family(store)

    assert [bool(live_row(store, each).watched) for each in (parent, child, beside)] == [
        True, True, False,
    ]  # fmt: skip


def test_a_child_that_is_tried_again_has_not_ended(store: Store) -> None:
    _, [child] = a_family(store)
    end(store, take_one(store, child), RETRY)

    assert notes(store) == []
    assert live_row(store, child).watched


def test_each_child_gives_its_own_result(store: Store) -> None:
    _, children = a_family(store, 3)
    for n, child in enumerate(children):
        result = json.dumps("x" * n)
        end(store, take_one(store, child), Finish(RunState.SUCCEEDED, result=result))

    freed(store)

    found = rows(store, "select name, value, bytes from {s}deliveries order by name")
    assert [tuple(row) for row in found] == [
        ("part 0", '""', 2), ("part 1", '"x"', 3), ("part 2", '"xx"', 4),
    ]  # fmt: skip


def test_children_that_end_together_are_one_page(store: Store) -> None:
    parent, children = a_family(store, 5)
    claimed = take(store, *children).runs
    store.run(settle, [an_entry(each, SUCCEED) for each in claimed], reach=reach)

    swept = freed(store)

    assert (swept.count, hinted(swept.hints)) == (5, [parent])
    assert len(delivered(store, parent)) == live_row(store, parent).inbox == 5
    numbers = rows(store, "select inbox from {s}deliveries order by inbox")
    assert [row.inbox for row in numbers] == [1, 2, 3, 4, 5]


def test_a_parent_that_has_ended_is_told_nothing(store: Store) -> None:
    parent = a_claimed(store)
    child = a_child(store, parent, keep=True)
    end(store, parent, SUCCEED)
    freed(store)
    assert state_of(store, child) is RunState.READY
    end(store, take_one(store, child), SUCCEED)

    freed(store)

    assert (delivered(store, parent.id), links_of(store, child), notes(store)) == ([], 0, [])


# -- the end of a parent -------------------------------------------------------------------------


def _children(store: Store) -> dict[str, RunId]:
    """Return children in each state, whose parent has just ended."""
    parent = a_claimed(store)
    ids = {
        "ready": a_child(store, parent, "1"),
        "scheduled": a_child(store, parent, "2", delay_ms=60_000),
        "waiting": a_child(store, parent, "3"),
        "running": a_child(store, parent, "4"),
        "kept": a_child(store, parent, "5", keep=True),
        "ended": a_child(store, parent, "6"),
    }
    wait_again(store, take_one(store, ids["waiting"]), "word")
    take_one(store, ids["running"])
    end(store, take_one(store, ids["ended"]), SUCCEED)
    end(store, parent, SUCCEED)
    return ids


def test_the_end_of_a_parent_cancels_its_children(store: Store) -> None:
    ids = _children(store)
    other = put(store)

    freed(store)

    states = {name: state_of(store, run_id).value for name, run_id in ids.items()}
    assert states == {
        "ready": "cancelled", "scheduled": "cancelled", "waiting": "cancelled",
        "running": "running", "kept": "ready", "ended": "succeeded",
    }  # fmt: skip
    assert seen(store, ids["ready"]).reason == "cancelled"
    assert seen(store, ids["running"]).cancel_asked_at is not None
    assert seen(store, ids["kept"]).cancel_asked_at is None
    assert (state_of(store, other), notes(store)) == (RunState.READY, [])


@pytest.mark.parametrize("settlement", [SUCCEED, FAIL, RETRY])
def test_a_running_child_that_was_asked_ends_as_cancelled(store: Store, settlement: Finish) -> None:
    parent = a_claimed(store)
    child = take_one(store, a_child(store, parent))
    end(store, parent, FAIL)
    freed(store)

    end(store, child, settlement)

    assert state_of(store, child.id) is RunState.CANCELLED
    freed(store)


def test_a_parent_that_retries_keeps_its_children(store: Store) -> None:
    parent = a_claimed(store)
    child = a_child(store, parent)
    end(store, parent, RETRY)

    assert (notes(store), state_of(store, child)) == ([], RunState.READY)


def test_a_deep_tree_is_cancelled_from_the_top(store: Store) -> None:
    """Also below a child that waits for its own."""
    root = a_claimed(store)
    above, line = root, []
    for _ in range(5):
        child = a_child(store, above)
        line.append(child)
        claimed = take_one(store, child)
        if above is not root:
            assert wait_again(store, above, "part", kind=CHILD, new=False) is RunState.WAITING
        above = claimed
    a_child(store, above)
    wait_again(store, above, "part", kind=CHILD, new=False)
    end(store, root, FAIL)

    freed(store)

    states = "select state, count(*) from {s}outcomes group by state order by state"
    assert [tuple(row) for row in rows(store, states)] == [("cancelled", 6), ("failed", 1)]
    assert rows(store, "select * from {s}links") == []


def test_more_children_than_a_pass_takes(store: Store) -> None:
    parent = a_claimed(store)
    ids = put_many(store, 2 * PAGE + 5)
    do(store, "update {s}runs set parent_id = :id where id <> :id", id=parent.id)
    do(store, "update {s}live set watched = :yes", yes=True)
    end(store, parent, SUCCEED)

    counts = [passed(store, parent.id).count for _ in range(4)]

    assert counts == [PAGE, PAGE, 5, 0]
    assert {state_of(store, run_id) for run_id in ids[::20]} == {RunState.CANCELLED}
    freed(store)


def test_a_child_that_somebody_holds_is_left_to_the_next_pass(postgresql_store: Store) -> None:
    store = postgresql_store
    parent = a_claimed(store)
    held, other = a_child(store, parent, "1"), a_child(store, parent, "2")
    end(store, parent, SUCCEED)

    with Rival(store) as rival:
        rival.lock(held)
        passed(store, parent.id)
        assert (state_of(store, held), state_of(store, other)) == ("ready", "cancelled")
        assert parent.id in notes(store)

    freed(store)
    assert state_of(store, held) is RunState.CANCELLED


def test_nobody_pays_for_runs_that_are_not_watched(store: Store) -> None:
    """SQLite: one statement more, for those alone for whose end somebody waits; else none."""
    plain, told = a_claimed(store), a_claimed(store)
    do(store, "update {s}live set watched = :yes where id = :id", yes=True, id=told.id)
    statements: list[str] = []
    event.listen(
        store.engine,
        "before_cursor_execute",
        lambda conn, cursor, sql, *rest: statements.append(sql),
    )
    counted = []
    for claimed in (plain, told):
        statements.clear()
        end(store, claimed, SUCCEED)
        counted.append(len(statements))

    assert counted[1] == counted[0] + (not store.dialect.one_statement)
    assert notes(store) == [told.id]


# -- children that a run cancels itself ----------------------------------------------------------


def test_a_run_cancels_its_own_children_and_nobody_elses(store: Store) -> None:
    parent, stranger = a_claimed(store), a_claimed(store)
    ready, running = a_child(store, parent, "1"), a_child(store, parent, "2")
    not_named, others = a_child(store, parent, "3"), a_child(store, stranger, "4")
    at_work = take_one(store, running)
    new = NewBoundary(name="all", kind=BoundaryKind.GROUP, seq=9, value="1")
    wanted = Record(lease=lease_of(parent), boundary=new, cancels=(ready, running, others))

    store.run(record, [wanted], reach=reach)

    assert state_of(store, ready) is RunState.CANCELLED
    assert seen(store, running).cancel_asked_at is not None
    assert [state_of(store, each) for each in (not_named, others)] == ["ready", "ready"]
    assert seen(store, others).cancel_asked_at is None
    assert rows(store, "select * from {s}links where kind = 'cancel'") == []
    end(store, at_work, SUCCEED)
    freed(store)
    assert [state for _, state, _ in delivered(store, parent.id)] == ["cancelled", "cancelled"]


def test_a_child_that_somebody_holds_is_cancelled_after_all(postgresql_store: Store) -> None:
    """Its row is not waited for: the parent's is locked, and two could wait for each other."""
    store = postgresql_store
    parent = a_claimed(store)
    child = a_child(store, parent)

    with Rival(store) as rival:
        rival.lock(child)
        assert store.run(cancel_children, [child], parents=[parent.id]).count == 0

        # Once more, by a try whose answer was lost: the link that is there stands.
        assert store.run(cancel_children, [child], parents=[parent.id]).count == 0

    assert state_of(store, child) is RunState.READY
    freed(store)
    assert state_of(store, child) is RunState.CANCELLED


def test_a_child_that_was_asked_is_asked_since_then(store: Store, clock: ManualClock) -> None:
    parent = a_claimed(store)
    child = a_child(store, parent)
    take_one(store, child)
    store.run(cancel_children, [child], parents=[parent.id])
    asked_at = live_row(store, child).cancel_asked_at
    clock.advance(1_000)

    store.run(cancel_children, [child], parents=[parent.id])

    assert asked_at is not None
    assert live_row(store, child).cancel_asked_at == asked_at


# -- runs that come after others -----------------------------------------------------------------


def test_those_alone_are_watched_that_others_come_after(store: Store) -> None:
    first, other = put(store), put(store)

    put_after(store, first)

    assert live_row(store, first).watched
    assert not live_row(store, other).watched


def test_a_run_waits_for_those_it_comes_after(store: Store) -> None:
    one, two = put(store), put(store)
    after = put_after(store, one, two, one)
    assert (state_of(store, after), live_row(store, after).blockers) == (RunState.WAITING, 2)
    claimed = {run.id: run for run in take(store, after, scan=True).runs}
    assert set(claimed) == {one, two}

    end(store, claimed[two], SUCCEED)
    assert freed(store).hints == []
    assert (state_of(store, after), live_row(store, after).blockers) == (RunState.WAITING, 1)
    end(store, claimed[one], SUCCEED)

    assert freed(store).hints == [Hint(after, "default")]
    assert (state_of(store, after), live_row(store, after).blockers) == (RunState.READY, 0)
    assert take_one(store, after).history.deliveries == ()


@pytest.mark.parametrize("settlement", [FAIL, None])
@pytest.mark.parametrize("on_failure", [None, *OnFailure])
def test_what_becomes_of_it_when_one_of_them_fails(
    store: Store, settlement: Finish | None, on_failure: OnFailure | None
) -> None:
    first, other = put(store), put(store)
    after = put_after(store, first, other, on_failure=on_failure)
    last = put_after(store, after, on_failure=OnFailure.RUN)
    if settlement is None:
        _cancel(store, first)
    else:
        end(store, take_one(store, first), settlement)

    freed(store)

    run = seen(store, after)
    match on_failure:
        case OnFailure.RUN:
            assert (run.state, live_row(store, after).blockers) == ("waiting", 1)
            end(store, take_one(store, other), SUCCEED)
            freed(store)
            assert state_of(store, after) is RunState.READY
            return
        case OnFailure.CANCEL:
            assert (run.state, run.reason) == (RunState.CANCELLED, Reason.CANCELLED)
        case _:
            assert (run.state, run.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)
            assert run.error_type == "DependencyFailed"
            what = "was cancelled" if settlement is None else "has failed"
            assert all(part in (run.error_message or "") for part in (first, what))
            assert BROKEN.message not in (run.error_message or "")
    assert state_of(store, last) is RunState.READY  # it goes on along the line
    end(store, take_one(store, other), SUCCEED)
    freed(store)
    assert rows(store, "select * from {s}links") == []


@pytest.mark.parametrize("armed", [True, False])
def test_those_that_have_ended_before_are_not_waited_for(store: Store, armed: bool) -> None:
    ended, other = a_claimed(store), put(store)
    end(store, ended, SUCCEED)
    after = put_after(store, ended.id, armed=armed)
    both = put_after(store, ended.id, other, armed=armed)
    if not armed:  # whoever enqueued has died behind the commit
        assert state_of(store, after) is RunState.WAITING
        swept = store.run(arm)
        assert (swept.count, swept.full, hinted(swept.hints)) == (2, False, [after])

    assert (state_of(store, after), state_of(store, both)) == ("ready", "waiting")
    assert store.run(arm).count == 0
    end(store, take_one(store, other), SUCCEED)
    freed(store)
    assert state_of(store, both) is RunState.READY


def test_one_that_has_failed_before_fails_it_at_once(store: Store) -> None:
    ended = a_claimed(store)
    end(store, ended, FAIL)

    after = put_after(store, ended.id)

    assert state_of(store, after) is RunState.FAILED


def test_a_run_may_come_after_one_of_the_same_call(store: Store) -> None:
    first = a_run()
    second = a_run()._replace(after=(first.id,))
    store.run(enqueue, [first, second], reach=reach)
    store.run(arm)

    assert (state_of(store, first.id), state_of(store, second.id)) == ("ready", "waiting")
    end(store, take_one(store, first.id), SUCCEED)
    freed(store)
    assert state_of(store, second.id) is RunState.READY


def test_of_the_same_call_a_key_names_its_owner(store: Store) -> None:
    owner = put(store, key="k")
    first = a_run(key="k")
    second = a_run()._replace(after=(first.id, owner))

    store.run(enqueue, [first, second], reach=reach)

    assert live_row(store, second.id).blockers == 1
    assert links_of(store, owner) == 1
    store.run(arm)


@pytest.mark.parametrize("which", ["unknown", "itself", "later"])
def test_a_run_cannot_come_after_what_is_not_there(store: Store, which: str) -> None:
    run, other = a_run(), a_run()
    missing = {"unknown": new_run_id(), "itself": run.id, "later": other.id}[which]

    with pytest.raises(RunNotFoundError, match=missing):
        store.run(enqueue, [run._replace(after=(missing,)), other], reach=reach)

    assert rows(store, "select * from {s}runs") == []


def test_an_enqueue_that_is_repeated_blocks_nothing_anew(store: Store) -> None:
    """Its answer was lost, and one of those that it comes after has ended meanwhile."""
    one, two = put(store), put(store)
    run = a_run()._replace(after=(one, two))
    store.run(enqueue, [run], reach=reach)
    store.run(arm)
    end(store, take_one(store, one), SUCCEED)
    freed(store)

    store.run(enqueue, [run], reach=reach)
    store.run(arm)
    freed(store)

    assert (state_of(store, run.id), live_row(store, run.id).blockers) == (RunState.WAITING, 1)
    end(store, take_one(store, two), SUCCEED)
    freed(store)
    assert state_of(store, run.id) is RunState.READY


def test_one_that_was_cancelled_while_it_waited_stays_so(store: Store) -> None:
    first = put(store)
    after = put_after(store, first)
    _cancel(store, after)
    end(store, take_one(store, first), SUCCEED)

    freed(store)

    assert (state_of(store, after), links_of(store, first)) == (RunState.CANCELLED, 0)


def test_one_that_was_let_go_by_hand_is_not_stopped_again(store: Store) -> None:
    first = put(store)
    after = put_after(store, first, on_failure=OnFailure.FAIL)
    do(
        store,
        "update {s}live set blockers = 0, state = 'ready', ready_at = line.ready_at"
        " from (select ready_at from {s}live where id = :first) line where id = :id",
        id=after,
        first=first,
    )
    end(store, take_one(store, first), FAIL)

    assert freed(store).hints == []
    assert state_of(store, after) is RunState.READY


def test_in_a_session_it_is_woken_when_its_turn_comes(store: Store) -> None:
    first, ahead = put(store), put(store, session="s")
    after = put_after(store, first, session="s")
    end(store, take_one(store, first), SUCCEED)

    assert freed(store).hints == []  # it is ready, and behind another
    assert state_of(store, after) is RunState.READY
    assert hinted(end(store, take_one(store, ahead), SUCCEED).hints) == [after]


def test_in_a_session_it_stands_behind_those_that_it_comes_after(
    store: Store, clock: ManualClock
) -> None:
    """They may be due later than it was made; each would wait for the other for ever."""
    first = put(store, session="s", delay_ms=60_000)
    second = put_after(store, first, session="s")
    third, other = put_after(store, second, session="s"), put(store, session="s")

    end(store, take_one(store, other), SUCCEED)
    clock.advance(60_000)
    promoted(store)
    for each in (first, second, third):
        end(store, take_one(store, each), SUCCEED)
        freed(store)


def test_in_a_session_it_stands_behind_those_that_it_waits_for_through_another(
    store: Store, clock: ManualClock
) -> None:
    """Who stands between them is in no session, or in another, itself or behind one that waits."""
    first = put(store, session="s", delay_ms=60_000)
    between = put_after(store, first)
    farther = put_after(store, between)
    ahead = put_after(store, first, session="t")
    other = put(store, session="t")
    last = [put_after(store, each, session="s") for each in (between, farther, ahead, other)]

    clock.advance(60_000)
    promoted(store)
    for each in (first, between, farther, ahead, other, *last):
        end(store, take_one(store, each), SUCCEED)
        freed(store)


def test_in_a_session_it_stands_behind_nobody_whom_it_does_not_wait_for(
    store: Store, clock: ManualClock
) -> None:
    """One that is due later, and that others come after, keeps nobody: in another session, or
    behind.
    """
    later = put(store, session="s", delay_ms=60_000)
    put_after(store, later)
    put_after(store, later, session="u")
    put(store, session="u")
    first = put(store)
    between, ahead = put_after(store, first), put_after(store, first, session="t")
    put_after(store, later, session="t")
    last = [put_after(store, each, session="s") for each in (between, ahead)]

    for each in (first, between, ahead, *last):
        end(store, take_one(store, each), SUCCEED)
        freed(store)


def test_in_a_session_a_chain_that_is_made_at_once_stands_behind_its_first(store: Store) -> None:
    later = a_run(session="s")._replace(delay_ms=60_000)
    chain = [later]
    for _ in range(3):
        chain.append(a_run(session="s")._replace(after=(chain[-1].id,)))

    store.run(enqueue, chain, reach=reach)

    line = rows(store, "select id from {s}live where session = 's' order by line_at, id")
    assert [str(row.id) for row in line] == [run.id for run in chain]


def test_a_value_that_comes_while_it_waits_for_others_does_not_wake_it(store: Store) -> None:
    first = put(store)
    after = put_after(store, first)
    # As a run has one that takes over what another has passed.
    do(
        store,
        "insert into {s}boundaries (run_id, name, kind, seq, bytes, absolute, fence, created_at)"
        " select id, 'word', 'signal', 1, 0, :no, 1, created_at from {s}runs where id = :id",
        id=after,
        no=False,
    )

    assert send(store, after)[0] == "kept"
    assert state_of(store, after) is RunState.WAITING
    end(store, take_one(store, first), SUCCEED)
    freed(store)
    assert [each.name for each in take_one(store, after).history.deliveries] == ["word"]


def test_many_come_after_one_and_one_after_many(store: Store) -> None:
    first = put(store)
    many = [a_run()._replace(after=(first,)) for _ in range(PAGE + 20)]
    last = a_run()._replace(after=tuple(run.id for run in many))
    store.run(enqueue, [*many, last], reach=reach)
    while store.run(arm).full:
        pass
    assert store.run(arm).count == 0
    end(store, take_one(store, first), SUCCEED)

    assert freed(store).count == PAGE + 20
    for start in range(0, len(many), 100):
        claimed = take(store, *(run.id for run in many[start : start + 100])).runs
        store.run(settle, [an_entry(each, SUCCEED) for each in claimed], reach=reach)
    assert hinted(freed(store).hints) == [last.id]


def test_each_is_freed_of_as_many_as_have_ended_for_it(store: Store) -> None:
    one, two, three = (put(store) for _ in range(3))
    after_both = put_after(store, one, two)
    after_others = [put_after(store, one, three) for _ in range(2)]
    for each in (one, two):
        end(store, take_one(store, each), SUCCEED)

    assert hinted(store.run(free_noted).hints) == [after_both]

    assert live_row(store, after_both).blockers == 0
    assert [live_row(store, each).blockers for each in after_others] == [1, 1]
    assert [state_of(store, each) for each in after_others] == [RunState.WAITING] * 2


@pytest.mark.parametrize("first", ["end", "arm"])
def test_arming_and_the_end_of_the_run_it_comes_after(
    postgresql_store: Store, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgresql_store
    monkeypatch.setattr(freeing, "PAGE", 1)
    claimed = a_claimed(store)
    after = put_after(store, claimed.id, armed=False)
    entry = an_entry(claimed, SUCCEED)

    with Rival(store) as one, Rival(store) as two:
        if first == "end":
            one.call(settle, [entry], reach=reach)
            # The row is held, and whether the run has ended cannot be told: it is left to the next.
            # A page that got nowhere is not followed by another at once.
            armed = two.call(arm, sources=[claimed.id])
            assert (armed.count, armed.full) == (0, False)
            two.commit()
            one.commit()
            assert (links_of(store, claimed.id), notes(store)) == (1, [])
        else:
            armed = one.call(arm, sources=[claimed.id])
            assert (armed.count, armed.full) == (1, True)
            settled = two.start(settle, [entry], reach=reach)
            two.wait_until_blocked()
            one.commit()
            assert settled.result(30).written == {claimed.id: RunState.SUCCEEDED}
            two.commit()
            assert notes(store) == [claimed.id]

    store.run(arm)
    freed(store)
    assert state_of(store, after) is RunState.READY


def test_arming_while_a_pass_removes_the_note(postgresql_store: Store) -> None:
    """A second run comes after the first, just when a pass is done with that one's end."""
    store = postgresql_store
    first = put(store)
    put_after(store, first)
    end(store, take_one(store, first), SUCCEED)

    with Rival(store) as one, Rival(store) as two:
        assert one.call(free, first).count == 1
        late = put_after(store, first, armed=False)
        arming = two.start(arm, sources=[first])
        two.wait_until_blocked()
        one.commit()
        assert hinted(arming.result(30).hints) == [late]
        two.commit()

    assert state_of(store, late) is RunState.READY
    assert (links_of(store, first), notes(store)) == (0, [])


# -- passes over all -----------------------------------------------------------------------------


def test_ends_of_all_kinds_are_worked_off_together(store: Store) -> None:
    parent, [child] = a_family(store)
    ref = a_ref(store)
    waits = linked(store, ref)
    first = put(store)
    after = put_after(store, first)
    end(store, take_one(store, child), SUCCEED)
    end(store, take_one(store, first), SUCCEED)
    complete(store, ref)

    swept = freed(store)

    assert sorted(hinted(swept.hints)) == sorted([parent, waits, after])
    assert (swept.count, notes(store)) == (3, [])


def test_what_cannot_be_worked_off_hides_nothing_behind_it(
    postgresql_store: Store, clock: ManualClock
) -> None:
    """A page of ends whose runs somebody holds for long."""
    store = postgresql_store
    parent, children = a_family(store, PAGE)
    for child in children:
        _cancel(store, child)
    ref = a_ref(store)
    other = linked(store, ref)
    complete(store, ref)

    with Rival(store) as rival:
        rival.lock(parent)
        clock.advance(1)
        assert store.run(free_noted).count == 0
        assert hinted(store.run(free_noted).hints) == [other]

    freed(store)
    assert live_row(store, parent).inbox == PAGE


def test_what_another_pass_has_in_hand_is_left_to_it(postgresql_store: Store) -> None:
    store = postgresql_store
    (parent, [child]), (other_parent, [other]) = a_family(store), a_family(store)
    for each in (child, other):
        end(store, take_one(store, each), SUCCEED)

    with Rival(store) as rival:
        assert rival.call(free, child).count == 1
        assert hinted(store.run(free_noted).hints) == [other_parent]
        assert store.run(free, child).count == 0

    freed(store)
    assert live_row(store, parent).inbox == 1


def test_who_has_lost_the_lease_notes_no_end(store: Store) -> None:
    _, [child] = a_family(store)
    stale = take_one(store, child)
    do(store, "update {s}live set token = token + 1 where id = :id", id=child)

    assert end(store, stale, SUCCEED).written == {}

    assert notes(store) == []
    assert state_of(store, child) is RunState.RUNNING


def test_a_pass_for_what_has_not_ended_does_nothing(store: Store) -> None:
    parent, [child] = a_family(store)

    assert (passed(store, child).count, passed(store, parent).count) == (0, 0)
    assert passed(store, a_ref(store)).count == 0
    assert state_of(store, parent) is RunState.WAITING
