"""What operators do: reruns, pauses; each act is audited, each request is done once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.store.acting import (
    FAIL,
    RETRY_NOW,
    SUCCEED,
    a_claimed,
    a_run,
    end,
    ids_of,
    put,
    reach,
    rows,
    seen,
    state_of,
    take,
    take_one,
)
from tests.store.rivals import Rival
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Enqueued
from workhorse.errors import RunNotFinishedError, RunNotFoundError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.operators.operating import cancel, pause_queue, rerun, resume_queue
from workhorse.store.operators.viewing import list_queues
from workhorse.store.producing.enqueueing import enqueue


def _rerun(store: Store, run_id: RunId, request_id: str = "r1") -> Enqueued:
    return store.run(rerun, run_id, by="ann", why="fixed", request_id=request_id, reach=reach)


def _failed(store: Store) -> RunId:
    claimed = a_claimed(
        store,
        payload='{"a":1}',
        priority=70,
        session="s",
        tags=("x",),
        timeout_ms=5_000,
        retry=RetryPolicy(max_attempts=3, first=timedelta(seconds=2)),
        traceparent="00-a-b-01",
        key="k",
    )
    end(store, claimed, RETRY_NOW)
    end(store, take_one(store, claimed.id), FAIL)
    return claimed.id


def test_a_rerun_takes_over_what_the_run_was_given(store: Store, clock: ManualClock) -> None:
    put(store, timeout_ms=1)  # it has others beside it
    failed = _failed(store)
    put(store, timeout_ms=2)
    clock.advance(1_000)

    answer = _rerun(store, failed)

    assert answer.created
    run = take_one(store, answer.run_id)
    assert (run.payload, run.priority, run.session, run.tags) == ('{"a":1}', 70, "s", ("x",))
    assert (run.timeout_ms, run.traceparent, run.attempt) == (5_000, "00-a-b-01", 1)
    assert run.retry == RetryPolicy(max_attempts=3, first=timedelta(seconds=2))
    assert (run.created_at, run.key) == (clock.now, None)
    assert seen(store, run.id).rerun_of == failed
    assert seen(store, failed).state == "failed"


@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
def test_any_finished_run_can_be_run_again(store: Store, how: str) -> None:
    claimed = a_claimed(store)
    if how == "cancelled":
        store.run(cancel, claimed.id, by="ann", why="no", request_id="r")
    end(store, claimed, FAIL if how == "failed" else SUCCEED)
    assert state_of(store, claimed.id) == how

    assert ids_of(take(store, _rerun(store, claimed.id).run_id))


def test_a_request_that_is_repeated_makes_one_run(store: Store) -> None:
    failed = _failed(store)
    first = _rerun(store, failed, "r1")

    again = _rerun(store, failed, "r1")
    other = _rerun(store, failed, "r2")

    assert (again.run_id, again.created, again.queue) == (first.run_id, False, first.queue)
    assert other.run_id != first.run_id
    assert len(rows(store, "select * from {s}runs")) == 3


def test_the_same_request_for_another_run_is_another(store: Store) -> None:
    one, other = a_claimed(store), a_claimed(store)
    end(store, one)
    end(store, other)

    assert _rerun(store, one.id, "r").run_id != _rerun(store, other.id, "r").run_id


def test_a_request_of_another_act_is_another(store: Store) -> None:
    claimed = a_claimed(store)
    store.run(cancel, claimed.id, by="ann", why="no", request_id="r")
    end(store, claimed)

    assert _rerun(store, claimed.id, "r").created


def test_two_requests_of_one_id_at_once_make_one_run(postgresql_store: Store) -> None:
    store = postgresql_store
    failed = _failed(store)
    with Rival(store) as one, Rival(store) as two:
        first = one.call(rerun, failed, by="ann", why="", request_id="r", reach=reach)
        second = two.start(rerun, failed, by="ann", why="", request_id="r", reach=reach)
        two.wait_until_blocked()
        one.commit()
        answer = second.result(10)
        two.commit()
    assert (answer.run_id, first.created, answer.created) == (first.run_id, True, False)


def test_a_run_that_has_not_ended_is_not_run_again(store: Store) -> None:
    run_id = put(store)

    with pytest.raises(RunNotFinishedError, match=f"run {run_id} is ready"):
        _rerun(store, run_id)

    assert rows(store, "select * from {s}audit") == []
    end(store, take_one(store, run_id))
    assert _rerun(store, run_id).created


def test_a_run_that_is_not_there_is_not_run_again(store: Store) -> None:
    _failed(store)
    with pytest.raises(RunNotFoundError):
        _rerun(store, new_run_id())


def test_a_rerun_is_audited(store: Store, clock: ManualClock) -> None:
    failed = _failed(store)
    answer = _rerun(store, failed)

    (act,) = rows(store, "select * from {s}audit")
    assert (act.act, act.subject, act.by, act.why) == ("rerun", failed, "ann", "fixed")
    assert (act.request_id, act.answer) == ("r1", answer.run_id)


def test_a_pause_says_whether_it_changed_anything(store: Store, clock: ManualClock) -> None:
    assert store.run(pause_queue, "default", by="ann", why="it's broken")
    paused_at = clock.now
    clock.advance(1_000)
    assert not store.run(pause_queue, "default", by="bob", why="me too")

    (view,) = store.run(list_queues)
    assert (view.paused_at, view.paused_by, view.paused_why) == (paused_at, "ann", "it's broken")

    assert store.run(resume_queue, "default", by="bob", why="repaired")
    assert not store.run(resume_queue, "default", by="bob", why="again")
    assert not store.run(resume_queue, "other", by="bob", why="never paused")
    (view,) = store.run(list_queues)
    assert (view.paused_at, view.paused_by, view.paused_why) == (None, None, None)
    acts = rows(store, "select act, subject, by, why from {s}audit order by id")
    assert acts == [
        ("pause", "default", "ann", "it's broken"),
        ("resume", "default", "bob", "repaired"),
    ]


def test_a_queue_can_be_paused_again(store: Store) -> None:
    for _ in range(3):
        assert store.run(pause_queue, "default", by="ann", why="")
        assert store.run(resume_queue, "default", by="ann", why="")


def test_a_queue_is_opened_by_itself(store: Store) -> None:
    for queue in ("default", "other"):
        store.run(pause_queue, queue, by="ann", why="")

    store.run(resume_queue, "other", by="ann", why="")

    paused = {view.name: view.paused_at is not None for view in store.run(list_queues)}
    assert paused == {"default": True, "other": False}


def test_what_comes_into_a_paused_queue_waits(store: Store) -> None:
    store.run(pause_queue, "default", by="ann", why="")
    (answer,) = store.run(enqueue, [a_run()], reach=reach)

    assert take(store, answer.run_id, scan=True).runs == []
    assert state_of(store, answer.run_id) == "ready"
