"""Operators' calls: runs, queues, wakeups for what is ready, and the examination."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.client.ends import end_run
from tests.client.lanes import RecordingLane
from workhorse.app import Workhorse
from workhorse.client import admin as admin_module
from workhorse.client.admin import Rehinted
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.domain.outcomes import Finish
from workhorse.domain.runs import RunState
from workhorse.errors import (
    ConfigurationError,
    InvalidNameError,
    RunNotFinishedError,
    RunNotFoundError,
    StoreUnavailableError,
)
from workhorse.handlers.tasks import Task
from workhorse.ports import SendReport
from workhorse.store.base.database import ManualClock, Store

SUCCEEDED = Finish(RunState.SUCCEEDED, result="2")


# -- runs ----------------------------------------------------------------------------------------


def test_runs_are_listed_by_page_and_filter(
    app: Workhorse, store: Store, double: Task[int, int]
) -> None:
    """The newest first; the last id of a page is where the next one begins."""
    runs = [double.enqueue(n, queue="a" if n % 2 else "b").id for n in range(7)]
    end_run(store, runs[0], SUCCEEDED)
    admin = app.admin

    first = admin.list_runs(limit=3)
    second = admin.list_runs(limit=3, before=first[-1].id)
    third = admin.list_runs(limit=3, before=second[-1].id)

    assert [view.id for page in (first, second, third) for view in page] == runs[::-1]
    assert [view.id for view in admin.list_runs(queue="a")] == runs[5::-2]
    assert [view.id for view in admin.list_runs(state="succeeded")] == [runs[0]]
    assert admin.list_runs(task="other") == []
    assert admin.show(runs[3]).payload == "3"
    counts = admin.count_runs()
    assert (counts[RunState.READY], counts[RunState.SUCCEEDED], sum(counts.values())) == (6, 1, 7)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limit": 0}, ConfigurationError),
        ({"limit": 1001}, ConfigurationError),
        ({"limit": True}, ConfigurationError),
        ({"state": "asleep"}, ConfigurationError),
        ({"queue": "A B"}, InvalidNameError),
        ({"task": ""}, InvalidNameError),
        ({"before": "x"}, InvalidNameError),
    ],
    ids=str,
)
def test_a_filter_that_is_none_is_refused(
    options: dict[str, Any], error: type[Exception], app: Workhorse
) -> None:
    """Before the database is asked."""
    with pytest.raises(error):
        app.admin.list_runs(**options)


def test_a_finished_run_is_run_again_as_a_new_one(
    app: Workhorse, store: Store, double: Task[int, int], lane: RecordingLane
) -> None:
    """Linked to the old one, woken, and once for each request."""
    run = double.enqueue(21, queue="q", key="k", tags=["x"])
    with pytest.raises(RunNotFinishedError):
        app.admin.rerun(run.id, by="ann")
    end_run(store, run.id, SUCCEEDED)
    lane.sent.clear()

    again = app.admin.rerun(run.id, by="ann", why="wrong paper", request_id="r1")
    same = app.admin.rerun(run.id, by="ann", request_id="r1")
    other = app.admin.rerun(run.id, by="ann")

    view = again.view()
    assert (again.created, same.created, same.id) == (True, False, again.id)
    assert other.id not in (run.id, again.id)
    assert (view.rerun_of, view.payload, view.queue, view.tags) == (run.id, "21", "q", ("x",))
    assert lane.ids == [again.id, other.id]
    with pytest.raises(RunNotFoundError):
        app.admin.rerun(other.id[:-4] + "0000", by="ann")
    with pytest.raises(InvalidNameError, match="request id has 0 characters"):
        app.admin.rerun(run.id, by="ann", request_id="")


def test_cancelling_needs_a_name(app: Workhorse, double: Task[int, int]) -> None:
    """It is audited."""
    run = double.enqueue(1)
    with pytest.raises(InvalidNameError, match="by has 0 characters"):
        app.admin.cancel(run.id, by="")
    assert app.admin.cancel(run.id, by="ann") is RunState.CANCELLED


# -- queues --------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed_and_its_workers_are_woken(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Runs came in meanwhile whose wakeups found the queue shut."""
    admin = app.admin
    assert admin.pause_queue("q", by="ann", why="printer on fire")
    assert not admin.pause_queue("q", by="bob")
    runs = app.enqueue_many([double.prepare(n, queue="q") for n in range(15)])
    (view,) = admin.list_queues()
    assert (view.name, view.paused_by, view.paused_why, view.ready) == (
        "q",
        "ann",
        "printer on fire",
        15,
    )
    lane.sent.clear()

    assert admin.rehint("q") == [], "nobody is woken for a queue that is shut"
    assert admin.resume_queue("q", by="ann")
    assert len(lane.sent) == 2
    assert set(lane.ids) <= {run.id for run in runs}
    assert not admin.resume_queue("q", by="ann")
    assert len(lane.sent) == 2
    assert admin.list_queues()[0].paused_at is None


def test_what_an_operator_says_must_be_a_name(app: Workhorse) -> None:
    """Of a queue, and of themselves."""
    for call in (app.admin.pause_queue, app.admin.resume_queue):
        with pytest.raises(InvalidNameError):
            call("Not A Queue", by="ann")
        with pytest.raises(InvalidNameError):
            call("q", by="")


def test_rehint_wakes_for_all_that_is_ready_in_pages(
    app: Workhorse, double: Task[int, int], lane: RecordingLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wakeup for ten runs of a queue, counted on from page to page."""
    monkeypatch.setattr(admin_module, "PAGE", 7)
    app.enqueue_many([double.prepare(n, queue="a") for n in range(25)])
    app.enqueue_many([double.prepare(n, queue="b") for n in range(3)])
    double.enqueue(1, queue="c", delay=timedelta(hours=1))
    lane.sent.clear()
    told: list[Rehinted] = []

    done = app.admin.rehint(progress=told.append)

    assert done == [Rehinted("a", 25, 3, 0), Rehinted("b", 3, 1, 0)]
    assert [each.ready for each in told] == [7, 14, 21, 25, 3]
    assert Counter(each.outgoing.wakeup.queue for each in lane.sent) == {"a": 3, "b": 1}
    assert len(set(lane.ids)) == 4
    assert app.admin.rehint("b") == [Rehinted("b", 3, 1, 0)]
    lane.report = lambda count: SendReport(failed=count, error="throttled")
    assert app.admin.rehint("a") == [Rehinted("a", 25, 0, 3)]


# -- doctor --------------------------------------------------------------------------------------


def findings(app: Workhorse, severity: Severity) -> list[tuple[str, str]]:
    found = app.admin.doctor()
    assert all(each.advice for each in found if each.severity.bad)
    return [(each.code.value, each.message) for each in found if each.severity is severity]


def test_a_healthy_system_has_nothing_to_complain_of(
    app: Workhorse, double: Task[int, int]
) -> None:
    """What is well is said too."""
    double.enqueue(1)
    app.maintenance().run_once()

    assert findings(app, Severity.WARNING) == []
    assert findings(app, Severity.ERROR) == []
    assert {code for code, _ in findings(app, Severity.OK)} == {
        "tasks_ok",
        "store_ok",
        "schema_ok",
        "maintenance_ok",
        "processes_ok",
        "queues_ok",
    }


def test_maintenance_that_never_ran_or_is_late_is_an_error(
    app: Workhorse, clock: ManualClock
) -> None:
    """Each late step is named, with when it last ended."""
    assert findings(app, Severity.ERROR) == [("maintenance_never", "maintenance has never run")]
    app.maintenance().run_once()
    clock.advance(timedelta(minutes=2))
    assert findings(app, Severity.ERROR) == []
    clock.advance(timedelta(minutes=1))

    late = findings(app, Severity.ERROR)
    said = "step recover is late: it last ended 2026-01-01 00:00:00 UTC"
    assert ("maintenance_late", said) in late
    assert {code for code, _ in late} == {"maintenance_late"}


def test_unknown_tasks_and_paused_queues_are_warnings(
    app: Workhorse, database_url: str, double: Task[int, int], lane: RecordingLane
) -> None:
    """Both leave work undone that somebody may wait for."""
    app.maintenance().run_once()
    double.enqueue(1, queue="shut")
    app.admin.pause_queue("shut", by="ann")
    with Workhorse(database_url=database_url, lane=lane) as other:

        @other.task("triple", queue="q")
        def triple(number: int) -> int:
            return number * 3

        other.enqueue_many([triple.prepare(1), triple.prepare(2)])

    assert findings(app, Severity.WARNING) == [
        (
            "queue_paused",
            "queue shut is paused since 2026-01-01 00:00 UTC by ann; 1 run waits in it",
        ),
        (
            "unknown_task",
            "queue q: 2 ready runs of the task 'triple', which is not registered here",
        ),
    ]


def test_the_lanes_own_words_are_passed_on(
    app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """For each queue that is served, that a task goes to, or that holds runs."""
    app.maintenance().run_once()
    double.enqueue(1, queue="busy")

    def trouble(code: Code, queue: str, what: str) -> Finding:
        return Finding(code, Severity.WARNING, f"queue {queue}: {what}", "do something", queue)

    lane.problems = {
        "default": [trouble(Code.QUEUE_MISSING, "default", "it does not exist")],
        "busy": [
            trouble(Code.QUEUE_DELAYS, "busy", "one thing"),
            trouble(Code.VISIBILITY_TOO_SHORT, "busy", "another"),
        ],
    }
    assert findings(app, Severity.WARNING) == [
        ("queue_delays", "queue busy: one thing"),
        ("visibility_too_short", "queue busy: another"),
        ("queue_missing", "queue default: it does not exist"),
    ]
    lane.error = ConnectionError("with a secret in it")
    said = [message for _code, message in findings(app, Severity.WARNING)]
    assert said == [
        "queue busy: the lane could not look at it (ConnectionError)",
        "queue default: the lane could not look at it (ConnectionError)",
    ]


def test_a_store_that_does_not_answer_is_a_finding(
    app: Workhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first look, and when it goes away in between; the rest is examined all the same."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise StoreUnavailableError("it did not answer")

    store = app.store
    monkeypatch.setattr("workhorse.client.doctor.list_steps", refuse)
    late = app.admin.doctor()
    monkeypatch.setattr(store, "read", refuse)
    at_once = app.admin.doctor()

    for found in (late, at_once):
        (error,) = (each for each in found if each.severity is Severity.ERROR)
        assert (error.code, error.message) == (Code.STORE_UNREACHABLE, "it did not answer")
        assert Code.QUEUES_OK in {each.code for each in found}


def test_what_stands_in_the_way_of_the_start_is_found(empty_database_url: str) -> None:
    """No tables, no such lane, annotations that name nothing."""
    with Workhorse(database_url=empty_database_url, lane="carrier-pigeon") as app:

        @app.task()
        def work(payload: Nothing) -> None:  # type: ignore[name-defined]  # noqa: F821
            pass

        errors = {each.code: each for each in app.admin.doctor() if each.severity != Severity.OK}

    assert "run `workhorse migrate`" in errors[Code.SCHEMA_BEHIND].message
    assert "'carrier-pigeon' is not installed" in errors[Code.LANE_MISCONFIGURED].message
    assert "Nothing" in errors[Code.TASKS_INVALID].message
    assert {each.severity for each in errors.values()} == {Severity.ERROR}


def test_a_url_that_names_no_database_is_found() -> None:
    """Without showing it: it may hold a password."""
    with Workhorse(database_url="mysql://ann:secret@host/db", lane="polling") as app:
        found = app.admin.doctor()

    (error,) = (each for each in found if each.code is Code.STORE_MISCONFIGURED)
    assert error.severity is Severity.ERROR
    assert "secret" not in repr(found)
    assert isinstance(error, Finding)
