"""Many runs at once: which are meant, dry runs, and requests that are repeated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.client.ends import end_run, lease_run, pass_boundaries
from tests.client.lanes import RecordingLane
from workhorse.app import Workhorse
from workhorse.client import many
from workhorse.client.admin import Admin
from workhorse.client.many import ManyDone
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import Failure, Reason, RunState
from workhorse.errors import (
    ConfigurationError,
    IdempotencyConflictError,
    InvalidInstantError,
    InvalidNameError,
)
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.lifecycle.settling import Entry, settle
from workhorse.store.operators import history
from workhorse.store.operators.inspecting import read_boundaries

FAILED = Finish(RunState.FAILED, Reason.ERROR, failure=Failure("ValueError", "no"))
OTHERWISE = Finish(RunState.FAILED, Reason.ERROR, failure=Failure("KeyError", "no"))
SUCCEEDED = Finish(RunState.SUCCEEDED, result="2")


def failed(store: Store, task: Task[int, int], count: int = 1, **options: Any) -> list[RunId]:
    runs = [task.enqueue(n, **options).id for n in range(count)]
    for run_id in runs:
        end_run(store, run_id, FAILED)
    return runs


def triple(app: Workhorse) -> Task[int, int]:
    """Another task."""

    @app.task("triple")
    def triple(number: int) -> int:
        return number * 3

    return triple


def reruns_of(app: Workhorse) -> list[RunId]:
    """What was run again, the newest rerun first."""
    return [run.rerun_of for run in app.admin.list_runs(limit=1_000) if run.rerun_of]


def states(app: Workhorse, runs: list[RunId]) -> list[RunState]:
    return [app.run(run_id).view().state for run_id in runs]


# -- which are meant -----------------------------------------------------------------------------


def test_runs_are_run_again_by_what_they_have_in_common(
    app: Workhorse, store: Store, double: Task[int, int], clock: ManualClock
) -> None:
    """Each part of a filter leaves something out; together they mean one run."""
    other = triple(app)
    begun = clock.now
    tagged: dict[str, Any] = {"tags": ['say "x", y', "é"]}
    failed(store, double, **tagged)  # too early
    clock.advance(1_000)
    (wanted,) = failed(store, double, **tagged)
    failed(store, double, tags=["x", "say"])
    failed(store, double, queue="else", **tagged)
    failed(store, other, **tagged)
    end_run(store, double.enqueue(1, **tagged).id, OTHERWISE)
    end_run(store, double.enqueue(1, **tagged).id, SUCCEEDED)
    double.enqueue(1, **tagged)
    clock.advance(1_000)
    failed(store, double, **tagged)  # too late

    done = app.admin.rerun_many(
        by="ann",
        state="failed",
        task="double",
        queue="default",
        tag='say "x", y',
        error_type="ValueError",
        created_after=begun + timedelta(seconds=1),
        created_before=begun + timedelta(seconds=2),
    )

    assert (done.matched, done.done, done.first) == (1, 1, [wanted])
    assert reruns_of(app) == [wanted]


@pytest.mark.parametrize(
    ("meant", "count"),
    [
        ({"state": "failed"}, 9),
        ({"task": "triple"}, 1),
        ({"queue": "else"}, 1),
        ({"tag": "a"}, 2),
        ({"tag": ", "}, 0),
        ({"error_type": "KeyError"}, 1),
        ({"state": "succeeded"}, 1),
        ({"task": "double", "state": "cancelled"}, 0),
        ({"created_before": datetime(2027, 1, 1, tzinfo=UTC)}, 10),
        ({"created_after": datetime(2027, 1, 1, tzinfo=UTC)}, 0),
    ],
    ids=str,
)
def test_each_part_of_a_filter_counts_alone(
    app: Workhorse, store: Store, double: Task[int, int], meant: dict[str, Any], count: int
) -> None:
    failed(store, double, 4)
    failed(store, double, 2, tags=["a", "b"])
    failed(store, double, queue="else")
    failed(store, triple(app))
    end_run(store, double.enqueue(1, tags=[]).id, OTHERWISE)
    end_run(store, double.enqueue(1).id, SUCCEEDED)
    double.enqueue(1)

    assert app.admin.rerun_many(by="ann", dry_run=True, **meant).matched == count


def test_unfinished_runs_are_cancelled_by_what_they_have_in_common(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    """One that is running is asked."""
    ready = [double.enqueue(n, queue="a").id for n in range(3)]
    later = double.enqueue(1, queue="a", delay=timedelta(hours=1)).id
    running = double.enqueue(1, queue="a").id
    lease = lease_run(store, running)
    elsewhere = double.enqueue(1, queue="b").id
    ended = double.enqueue(1, queue="a").id
    end_run(store, ended, SUCCEEDED)

    done = app.admin.cancel_many(queue="a", by="ann", why="wrong price", request_id="r")

    assert (done.matched, done.done, done.skipped) == (5, 5, 0)
    assert states(app, [*ready, later]) == [RunState.CANCELLED] * 4
    assert states(app, [running, elsewhere, ended]) == ["running", "ready", "succeeded"]
    store.run(settle, [Entry(lease, SUCCEEDED)], reach=no_reach)
    assert states(app, [running]) == [RunState.CANCELLED]
    acts = store.run(history.acts_on, ready[0])
    assert [(act.act, act.by, act.why) for act in acts] == [("cancel", "ann", "wrong price")]
    (whole,) = store.run(history.acts_on, "*")
    assert (whole.act, whole.by, whole.why) == ("cancel_many", "ann", "wrong price")


def test_only_the_state_that_is_said_is_cancelled(app: Workhorse, double: Task[int, int]) -> None:
    ready = double.enqueue(1).id
    later = double.enqueue(1, delay=timedelta(hours=1)).id

    assert app.admin.cancel_many(state="scheduled", by="ann").done == 1
    assert states(app, [ready, later]) == ["ready", "cancelled"]


# -- dry runs, pages, limits ---------------------------------------------------------------------


@pytest.mark.parametrize("act", ["cancel_many", "rerun_many"])
def test_a_dry_run_counts_and_changes_nothing(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane, act: str
) -> None:
    ended = failed(store, double, 23)
    ready = [double.enqueue(n).id for n in range(25)]
    lane.sent.clear()

    done = getattr(app.admin, act)(task="double", by="ann", dry_run=True, request_id="r")

    meant = ready if act == "cancel_many" else ended
    assert (done.matched, done.done, done.first) == (len(meant), 0, meant[:20])
    assert set(states(app, ready)) == {RunState.READY}
    assert not reruns_of(app)
    assert not lane.sent
    assert not store.run(history.acts_on, "*")
    assert done.request_id == "r"


def test_pages_cover_all_and_wakeups_follow_each(
    app: Workhorse,
    store: Store,
    double: Task[int, int],
    lane: RecordingLane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One wakeup for ten runs, page by page; somebody may watch how far it has come."""
    monkeypatch.setattr(many, "RERUN_AT_ONCE", 12)
    ended = failed(store, double, 30)
    lane.sent.clear()
    told: list[tuple[int, int]] = []

    done = app.admin.rerun_many(
        state="failed", by="ann", progress=lambda so_far: told.append((so_far.done, len(lane.sent)))
    )

    assert (done.matched, done.done) == (30, 30)
    assert told == [(12, 2), (24, 4), (30, 5)]
    assert sorted(reruns_of(app)) == ended


def test_a_limit_takes_the_oldest_and_a_repeat_takes_no_more(
    app: Workhorse, double: Task[int, int]
) -> None:
    runs = [double.enqueue(n).id for n in range(7)]

    first = app.admin.cancel_many(task="double", limit=3, by="ann", request_id="r")
    again = app.admin.cancel_many(task="double", limit=3, by="ann", request_id="r")
    other = app.admin.cancel_many(task="double", limit=3, by="ann")

    assert (first.done, again.matched, other.done) == (3, 0, 3)
    assert states(app, runs) == ["cancelled"] * 6 + ["ready"]
    assert app.admin.cancel_many(task="double", limit=9, by="ann", dry_run=True).matched == 1


# -- a request is made once ----------------------------------------------------------------------


def test_a_repeated_rerun_finishes_the_same_set(
    app: Workhorse,
    store: Store,
    double: Task[int, int],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was cut off after a page; what fails, or comes, in between is not in it."""
    monkeypatch.setattr(many, "RERUN_AT_ONCE", 2)
    late = double.enqueue(0).id
    meant = failed(store, double, 5)

    def cut_off(_so_far: ManyDone) -> None:
        raise KeyboardInterrupt

    def rerun(**how: Any) -> ManyDone:
        return app.admin.rerun_many(task="double", by="ann", request_id="r", **how)

    with pytest.raises(KeyboardInterrupt):
        rerun(progress=cut_off)
    assert sorted(reruns_of(app)) == meant[:2]
    clock.advance(1_000)
    end_run(store, late, FAILED)
    failed(store, double, 2)

    again = rerun()

    assert (again.matched, again.done, again.done_before) == (5, 3, 2)
    assert sorted(reruns_of(app)) == meant
    clock.advance(1_000)
    for run in app.admin.list_runs(state="ready"):
        end_run(store, run.id, FAILED)
    assert (rerun().done, rerun().done_before, len(reruns_of(app))) == (0, 5, 5)
    assert rerun(dry_run=True).matched == 5


def test_a_repeated_cancel_touches_nothing_newer(
    app: Workhorse, double: Task[int, int], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a run whose producer drew its id by a clock that is behind."""
    from workhorse.domain import ids

    old = [double.enqueue(n).id for n in range(3)]
    first = app.admin.cancel_many(task="double", by="ann", request_id="r")
    clock.advance(1_000)
    new = double.enqueue(9).id
    monkeypatch.setattr("time.time_ns", lambda: 1)
    with monkeypatch.context() as patched:
        patched.setattr(ids, "_sequence", ids._Sequence())
        behind = double.enqueue(9).id
    assert behind < old[0]

    again = app.admin.cancel_many(task="double", by="ann", request_id="r")

    assert (first.done, again.matched) == (3, 0)
    assert states(app, [*old, new, behind]) == ["cancelled"] * 3 + ["ready"] * 2


def test_a_run_that_was_asked_to_end_is_asked_once(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    run_id = double.enqueue(1).id
    lease_run(store, run_id)

    first = app.admin.cancel_many(task="double", by="ann", request_id="r")
    again = app.admin.cancel_many(task="double", by="ann", request_id="r")

    assert (first.done, again.done, again.done_before) == (1, 0, 1)
    assert len(store.run(history.acts_on, run_id)) == 1


@pytest.mark.parametrize("how", [{"task": "triple"}, {"limit": 2}, {"tag": "x"}])
def test_a_request_id_belongs_to_one_request(
    app: Workhorse, double: Task[int, int], how: dict[str, Any]
) -> None:
    admin = app.admin
    said: dict[str, Any] = {"task": "double", "by": "ann", "request_id": "r"}
    admin.cancel_many(**said)
    double.enqueue(1)

    with pytest.raises(IdempotencyConflictError, match="'r' belongs to another cancel_many"):
        admin.cancel_many(**{**said, **how})
    with pytest.raises(IdempotencyConflictError):
        admin.cancel_many(**{**said, **how}, dry_run=True)
    assert admin.rerun_many(**{**said, **how}).matched == 0, "another act is another request"


def test_calls_without_a_request_id_are_requests_of_their_own(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    failed(store, double)

    ids = {app.admin.rerun_many(task="double", by="ann").request_id for _ in range(2)}

    assert len(ids) == 2
    assert len(reruns_of(app)) == 2


# -- boundaries ----------------------------------------------------------------------------------


def with_checkpoints(store: Store, task: Task[int, int], *names: str) -> RunId:
    run_id = task.enqueue(1).id
    lease = lease_run(store, run_id)
    pass_boundaries(
        store,
        lease,
        *(
            NewBoundary(name=name, kind=BoundaryKind.CHECKPOINT, seq=seq, value="1")
            for seq, name in enumerate(names, start=1)
        ),
    )
    store.run(settle, [Entry(lease, FAILED)], reach=no_reach)
    return run_id


def test_runs_without_the_boundary_are_skipped(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    """And nothing of them is noted: once they are asked for otherwise, they are run again."""
    has = with_checkpoints(store, double, "charge", "ship")
    lacks = with_checkpoints(store, double, "charge")

    done = app.admin.rerun_many(task="double", by="ann", boundaries="ship")

    assert (done.matched, done.done, done.skipped) == (2, 1, 1)
    assert reruns_of(app) == [has]
    (new,) = app.admin.list_runs(state="ready")
    assert [each.name for each in store.run(read_boundaries, new.id)] == ["charge", "ship"]
    assert store.run(history.acts_on, lacks) == []


# -- what is refused -----------------------------------------------------------------------------


def _cancel(admin: Admin) -> Callable[..., ManyDone]:
    return admin.cancel_many


def _rerun(admin: Admin) -> Callable[..., ManyDone]:
    return admin.rerun_many


@pytest.mark.parametrize(
    ("act", "said", "error", "message"),
    [
        (_cancel, {}, ConfigurationError, "nothing says which runs are meant; give at least one"),
        (_rerun, {}, ConfigurationError, "error_type"),
        (_cancel, {"state": "failed"}, ConfigurationError, "only unfinished ones are cancelled"),
        (_rerun, {"state": "ready"}, ConfigurationError, "only finished runs are run again"),
        (_rerun, {"state": 7}, ConfigurationError, "state 7 is none of"),
        (_cancel, {"task": ""}, InvalidNameError, "task has 0 characters"),
        (_cancel, {"queue": "A B"}, InvalidNameError, "queue"),
        (_cancel, {"tag": "t" * 101}, InvalidNameError, "tag has 101"),
        (_rerun, {"error_type": ""}, InvalidNameError, "error_type has 0"),
        (_rerun, {"created_after": datetime(2026, 1, 1)}, InvalidInstantError, "naive"),  # noqa: DTZ001
        (_rerun, {"created_before": "now"}, InvalidInstantError, "must be an aware datetime"),
        (_rerun, {"task": "t", "limit": 0}, ConfigurationError, "limit is 0"),
        (_rerun, {"task": "t", "limit": True}, ConfigurationError, "limit is True"),
        (_rerun, {"task": "t", "by": ""}, InvalidNameError, "by has 0 characters"),
        (_rerun, {"task": "t", "request_id": ""}, InvalidNameError, "request id has 0"),
        (_rerun, {"task": "t", "boundaries": ""}, InvalidNameError, "boundary has 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    app: Workhorse,
    act: Callable[[Admin], Callable[..., ManyDone]],
    said: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        act(app.admin)(**{"by": "ann", **said})


def test_a_store_without_runs_has_nothing_to_do(app: Workhorse) -> None:
    done = app.admin.cancel_many(task="t", by="ann")

    assert (done.matched, done.first) == (0, [])
    assert new_run_id() not in done.first
