"""Handlers in processes of their own: what they see, store and come to."""

from __future__ import annotations

import contextvars
import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import process_handlers
from tests.runtime.process_handlers import ERRORS
from tests.runtime.rig import Rig
from tests.support.eventually import eventually
from workhorse.app import Workhorse
from workhorse.domain.boundaries import BoundaryKind
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Reason, RunState, RunView
from workhorse.errors import ConfigurationError
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.durable.delivering import deliver
from workhorse.store.durable.freeing import free
from workhorse.store.durable.tokens import complete_token
from workhorse.store.lifecycle.sweeping import promote
from workhorse.store.operators.history import attempts_of
from workhorse.store.operators.inspecting import list_checkpoints
from workhorse.telemetry import Metric
from workhorse.testing import Kit

ONCE = RetryPolicy(max_attempts=1)
AT_ONCE = RetryPolicy(first=timedelta(0))
DAY_MS = 24 * 3_600_000


@pytest.fixture
def rig(rig: Rig) -> Rig:
    """A worker's surroundings with the tasks of `process_handlers`; on both databases."""
    rig.registry = process_handlers.registry
    return rig


@pytest.fixture
def lite(sqlite_url: str, clock: ManualClock) -> Iterator[Rig]:
    """As `rig`, on SQLite alone: for what the database has no part in."""
    store = Store.open(sqlite_url, clock=clock)
    rig = Rig(store)
    rig.registry = process_handlers.registry
    yield rig
    rig.close()
    store.close()


@pytest.fixture
def live(sqlite_url: str) -> Iterator[Rig]:
    """As `lite`, by the database's own time: for workers that are started."""
    store = Store.open(sqlite_url)
    rig = Rig(store)
    rig.registry = process_handlers.registry
    yield rig
    rig.close()
    store.close()


def run(rig: Rig, worker: Worker, task: str, payload: Any = None, **fields: Any) -> RunView:
    """Execute a run once, and return what is stored of it."""
    claimed = rig.claimed(task, json.dumps(payload), **fields)
    execute(worker, claimed)
    return rig.view(claimed.id)


def execute(worker: Worker, claimed: ClaimedRun) -> None:
    """Execute a claimed run; one that hangs fails the test and not the suite."""
    caller = contextvars.copy_context()
    done = threading.Thread(target=caller.run, args=(worker.process_run, claimed), daemon=True)
    done.start()
    done.join(50)
    assert not done.is_alive(), f"{claimed.task} does not end"


def work_off(rig: Rig, worker: Worker) -> None:
    """Execute what is ready or due, until nothing is."""
    while True:
        rig.store.run(promote)
        runs = rig.claim(free=10)
        if not runs:
            return
        for each in runs:
            execute(worker, each)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- values and surroundings ---------------------------------------------------------------------


def test_a_handler_runs_in_another_process_that_is_kept(lite: Rig) -> None:
    worker = lite.worker()

    first, second = (run(lite, worker, "pid").result for _ in range(2))

    assert first == second
    assert first is not None
    assert int(first) != os.getpid()
    assert is_alive(int(first))
    worker.stop()
    assert not is_alive(int(first))


@pytest.mark.parametrize(
    "payload",
    [
        {"a": [1, 2.5, None, True, "\u00fc\U0001f40e"], "b": {}},
        2**200,
        "x" * 1_000_000,
        None,
    ],
    ids=["nested", "large integer", "a megabyte", "null"],
)
def test_values_cross_unchanged(lite: Rig, payload: Any) -> None:
    view = run(lite, lite.worker(), "echo", payload)

    assert view.state is RunState.SUCCEEDED
    assert view.result is not None
    assert json.loads(view.result) == payload


def test_a_handler_sees_its_run_and_not_the_leases_token(lite: Rig, clock: ManualClock) -> None:
    fields = {"tags": ("a", "b"), "session": "s", "retry": RetryPolicy(max_attempts=1)}
    view = run(lite, lite.worker(), "facts", **fields)

    assert view.result is not None
    now = clock.now.isoformat()
    assert json.loads(view.result) == {
        "run": [view.id, "facts", "default", ["a", "b"]],
        "ids": ["s", None],
        "times": [now, now],
        "attempt": [1, True],
        "fence": 1,
        "token": 0,
        "queue_ms": 0,
        "stops": [False, False],
        "current": True,
        "main thread": True,
    }


def test_context_variables_neither_cross_nor_leak(lite: Rig) -> None:
    worker = lite.worker()
    process_handlers.WHO.set("the worker")
    try:
        seen = [run(lite, worker, "who", name).result for name in ("one", "two")]
    finally:
        process_handlers.WHO.set("nobody")

    assert seen == ['"nobody"', '"nobody"']


def test_what_a_handler_prints_is_there_when_it_has_ended(
    lite: Rig, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    run(lite, lite.worker(), "prints", "a line")

    assert capfd.readouterr().out == "a line\n"


def test_a_program_that_a_handler_starts_takes_signals_as_any(lite: Rig) -> None:
    assert run(lite, lite.worker(), "asks a program").result == '"SIG_DFL"'


# -- boundaries ----------------------------------------------------------------------------------


def test_boundaries_of_all_kinds_go_through_the_worker(
    rig: Rig, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is stored once, the worker's lease and the database's clock decide, waits suspend."""
    worker = rig.worker()
    run_id = rig.enqueue("all kinds", json.dumps(str(tmp_path)), retry=ONCE)

    def settled(name: str, value: str, kind: BoundaryKind = BoundaryKind.SIGNAL) -> None:
        rig.store.run(deliver, run_id, kind, name, value, key=None)
        work_off(rig, worker)

    work_off(rig, worker)
    assert rig.state(run_id) is RunState.SCHEDULED
    clock.advance(3_600_000)
    work_off(rig, worker)
    assert rig.state(run_id) is RunState.WAITING
    rig.store.run(deliver, run_id, BoundaryKind.SIGNAL, "early", "[1]", key=None)
    settled("a signal", '{"s": 1}')
    settled("a human", '"yes"', BoundaryKind.HUMAN)
    reference = (tmp_path / "token").read_text()
    rig.store.run(complete_token, reference, '"done"', key=None)
    rig.store.run(free, reference)
    work_off(rig, worker)
    assert rig.state(run_id) is RunState.WAITING
    settled("two", "2")

    view = rig.view(run_id)
    assert (view.state, view.attempt) == (RunState.SUCCEEDED, 1)
    assert view.result is not None
    assert json.loads(view.result) == {
        "missing": False,
        "stage": {"a": [1, None]},
        "other": 5,
        "patched": True,
        "signal": {"s": 1},
        "early": [1],
        "human": "yes",
        "token": "done",
        "child": 8,
        "children": [2, 4, 6],
        "any": ["two", 2],
    }
    assert view.progress == '{"at":"the end"}'
    assert (tmp_path / "stage").read_text() == "x\n"
    assert len((tmp_path / "called").read_text().splitlines()) == view.fence
    assert rig.count(Metric.RUNS_SETTLED, "parked") == view.fence - 1
    assert caplog.text == ""


def test_values_that_did_not_come_with_the_claim_are_read(rig: Rig, clock: ManualClock) -> None:
    worker = rig.worker()
    run_id = rig.enqueue("large values")
    work_off(rig, worker)
    clock.advance(DAY_MS)

    work_off(rig, worker)

    assert rig.view(run_id).result == "600000"


def test_threads_of_a_handler_share_its_context(lite: Rig) -> None:
    assert run(lite, lite.worker(), "threads").result == "[0,1,2,3,4]"


def test_what_a_handler_left_behind_stores_nothing_for_the_next_run(
    rig: Rig, tmp_path: Path
) -> None:
    """Its thread goes on in the same process, while that handles the run of somebody else."""
    worker, folder = rig.worker(processes=1), str(tmp_path)

    first = run(rig, worker, "leaves a thread", folder)
    second = run(rig, worker, "lets the thread go", folder)

    assert first.state is second.state is RunState.SUCCEEDED
    assert first.result == second.result  # one process
    for each in (first, second):
        assert rig.store.run(list_checkpoints, run_id=each.id) == []
    assert (tmp_path / "thread").read_text() == "LeaseLostError\n"


def test_a_conflict_ends_the_run(lite: Rig) -> None:
    worker = lite.worker()
    first = run(lite, worker, "conflict", 1, retry=AT_ONCE)
    assert first.state is RunState.READY

    execute(worker, lite.claim())

    view = lite.view(first.id)
    assert (view.state, view.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)
    assert view.error_type == "workhorse.errors.CheckpointConflictError"


def test_a_transaction_is_refused(lite: Rig) -> None:
    view = run(lite, lite.worker(), "transacts", retry=ONCE)

    assert view.error_type == "workhorse.errors.ConfigurationError"
    assert view.error_message is not None
    assert "transaction 'books' needs a connection of the worker's" in view.error_message
    assert "leave `executor` out" in view.error_message


def test_the_latest_progress_stands_however_often_it_is_said(lite: Rig) -> None:
    view = run(lite, lite.worker(), "much progress")

    assert (view.state, view.progress) == (RunState.SUCCEEDED, "19999")


def test_a_handler_that_swallows_its_suspension_is_suspended_all_the_same(
    lite: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    view = run(lite, lite.worker(), "swallows")

    assert view.state is RunState.SCHEDULED
    assert "caught what ends its activation at a wait" in caplog.text


def test_a_handler_that_does_not_end_at_its_wait_is_killed(lite: Rig, tmp_path: Path) -> None:
    view = run(lite, lite.worker(cancel_wait_ms=100), "never ends at its wait", str(tmp_path))

    assert view.state is RunState.SCHEDULED
    assert not is_alive(int((tmp_path / "begun").read_text()))


# -- errors --------------------------------------------------------------------------------------


def test_case_17_errors_are_stored_as_they_are_of_threads(lite: Rig) -> None:
    """No object crosses: what cannot be pickled or rebuilt is text, the process goes on."""
    worker = lite.worker()
    before = run(lite, worker, "pid").result
    for what, (_, error_type) in ERRORS.items():
        there = run(lite, worker, "raises", what, retry=ONCE)
        here = run(lite, worker, "raises in a thread", what, retry=ONCE)

        assert there.state is RunState.FAILED, what
        assert there.error_type == error_type, what
        assert (there.error_type, there.error_message, there.reason) == (
            here.error_type,
            here.error_message,
            here.reason,
        )
        assert there.error_traceback is not None
        assert "in raises" in there.error_traceback
        assert len(there.error_traceback.encode()) <= 64 * 1024
    assert run(lite, worker, "pid").result == before


@pytest.mark.parametrize("payload", ["named", "raised"])
def test_case_17_a_retry_policy_matches_the_type_of_such_an_error(lite: Rig, payload: str) -> None:
    view = run(lite, lite.worker(), "fails for good", payload)

    assert (view.state, view.reason) == (RunState.FAILED, Reason.NOT_RETRYABLE)


def test_a_payload_that_does_not_fit_and_a_result_that_cannot_be_stored(lite: Rig) -> None:
    worker = lite.worker()

    misfit = run(lite, worker, "child", "no number")
    assert misfit.error_type == "workhorse.errors.NonRetryableError"
    assert misfit.error_message is not None
    assert "the handler was not called" in misfit.error_message
    too_large = run(lite, worker, "repeats", 2_000_000)
    assert too_large.error_type == "workhorse.errors.ValueTooLargeError"
    assert too_large.reason is Reason.NOT_RETRYABLE


# -- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "how"),
    [
        ({"exit": 3}, "ended itself with exit code 3"),
        ({"exit": 0}, "ended itself with exit code 0"),
        ({"signal": int(signal.SIGKILL)}, "was killed by SIGKILL"),
        ({"signal": int(signal.SIGSEGV)}, "was killed by SIGSEGV"),
    ],
    ids=["exit 3", "exit 0", "SIGKILL", "SIGSEGV"],
)
def test_case_6_a_process_that_dies_spends_an_attempt_at_once(
    rig: Rig, payload: dict[str, int], how: str
) -> None:
    """It is not left to the lease; the worker goes on with another process."""
    worker = rig.worker()

    first = run(rig, worker, "dies", payload, retry=AT_ONCE)

    assert (first.state, first.attempt) == (RunState.READY, 2)
    execute(worker, rig.claim())
    assert rig.view(first.id).result == '"survived"'
    last = run(rig, worker, "dies", payload, retry=ONCE)
    assert (last.state, last.reason, last.error_type) == (
        RunState.FAILED, Reason.LOST, "ProcessDied",
    )  # fmt: skip
    assert last.error_message is not None
    assert f"the process of the handler {how}" in last.error_message


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("closes its files", "ended itself with exit code 1"),
        ("becomes another program", "closed the line to its worker"),
        ("babbles", "said what its worker cannot"),
    ],
)
def test_a_process_that_cannot_be_heard_is_ended(lite: Rig, task: str, how: str) -> None:
    view = run(lite, lite.worker(), task, retry=ONCE)

    assert (view.state, view.reason) == (RunState.FAILED, Reason.LOST)
    assert view.error_message is not None
    assert how in view.error_message


def test_a_death_is_noticed_although_a_copy_of_the_process_lives(lite: Rig, tmp_path: Path) -> None:
    view = run(lite, lite.worker(), "leaves a copy", str(tmp_path), retry=ONCE)

    assert view.error_message is not None
    assert "exit code 4" in view.error_message
    assert not (tmp_path / "copy ended").exists()
    (tmp_path / "let go").touch()
    eventually((tmp_path / "copy ended").exists)


def test_a_module_that_fails_in_the_process_is_the_attempts_failure(
    lite: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_AT_IMPORT", "no such library")
    worker = lite.worker()

    view = run(lite, worker, "pid", retry=ONCE)

    assert (view.error_type, view.error_message) == ("builtins.ImportError", "no such library")
    assert view.error_traceback is not None
    assert "process_handlers.py" in view.error_traceback


def test_a_process_that_dies_before_it_is_ready_hands_the_run_back(
    lite: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_AT_IMPORT", "exit")
    worker = lite.worker()

    view = run(lite, worker, "pid", retry=ONCE)

    assert (view.state, view.attempt) == (RunState.READY, 1)
    assert lite.count(Metric.RUNS_SETTLED, "handed_back") == 1
    monkeypatch.delenv("TEST_AT_IMPORT")
    execute(worker, lite.claim())
    assert lite.state(view.id) is RunState.SUCCEEDED


def test_where_all_processes_die_so_the_attempt_fails_in_the_end(
    lite: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_AT_IMPORT", "exit")
    worker = lite.worker()
    view = run(lite, worker, "pid", retry=AT_ONCE)

    for _ in range(3):
        assert (view.state, view.attempt) == (RunState.READY, 1)
        execute(worker, lite.claim())
        view = lite.view(view.id)

    assert (view.state, view.attempt) == (RunState.READY, 2)
    [failed] = lite.store.run(attempts_of, view.id)
    assert failed.error_type == "ProcessDied"
    assert "before it could take the run" in (failed.error_message or "")


def test_a_process_that_dies_before_it_calls_the_handler_spends_no_attempt(lite: Rig) -> None:
    """What it died of came from a run before; this one goes to another process."""
    worker = lite.worker(processes=1)
    before = run(lite, worker, "dies at the next")

    view = run(lite, worker, "pid", retry=ONCE)

    assert (view.state, view.attempt) == (RunState.READY, 1)
    execute(worker, lite.claim())
    result = lite.view(view.id).result
    assert result is not None
    assert result != before.result


def test_where_the_system_gives_no_process_runs_are_handed_back(
    lite: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = lite.worker()
    monkeypatch.setattr("sys.executable", "/no/such/python")

    view = run(lite, worker, "pid")

    assert (view.state, view.attempt) == (RunState.READY, 1)
    assert lite.count(Metric.RUNS_SETTLED, "handed_back") == 1


# -- the pool ------------------------------------------------------------------------------------


def test_runs_share_the_processes_that_there_may_be(live: Rig, tmp_path: Path) -> None:
    """Two at work, the third waits for one of them: it is not called, and its lease is renewed."""
    folders = [tmp_path / str(at) for at in range(3)]
    for folder in folders:
        folder.mkdir()
    runs = [live.enqueue("goes when let", json.dumps(str(folder))) for folder in folders]
    worker = live.worker(concurrency=4, processes=2, lease_ms=2_000)
    worker.start()
    eventually(lambda: sum((folder / "begun").exists() for folder in folders) == 2)
    eventually(lambda: len(worker._parts.holdings.all()) == 3)
    seen: set[Any] = set()

    def renewed() -> bool:
        seen.update(live.view(run_id).lease_expires_at for run_id in runs)
        return len(seen) > 6

    eventually(renewed)
    (late,) = [folder for folder in folders if not (folder / "begun").exists()]
    for folder in folders:
        (folder / "let go").touch()

    eventually(lambda: all(live.state(run_id) is RunState.SUCCEEDED for run_id in runs))
    assert (late / "begun").exists()
    assert len({live.view(run_id).result for run_id in runs}) == 2
    assert {live.view(run_id).fence for run_id in runs} == {1}


def test_other_handlers_do_not_wait_for_processes(live: Rig, tmp_path: Path) -> None:
    live.enqueue("goes when let", json.dumps(str(tmp_path)))
    live.worker(concurrency=2, processes=1).start()
    eventually((tmp_path / "begun").exists)

    light = live.enqueue("light")

    eventually(lambda: live.state(light) is RunState.SUCCEEDED)
    (tmp_path / "let go").touch()


def test_a_drain_executes_them_too(lite: Rig) -> None:
    lite.enqueue_many("pid", 20)

    assert lite.worker(processes=2).drain() == 20


# -- from an app ---------------------------------------------------------------------------------


def test_run_now_uses_a_process_and_close_ends_it(sqlite_url: str) -> None:
    with Workhorse(
        database_url=sqlite_url, registry=process_handlers.registry, lane="memory", processes=1
    ) as app:
        pid = process_handlers.pid.run_now().result()
        assert pid != os.getpid()
        assert app.settings.processes == 1
    assert not is_alive(pid)


def test_the_kit_calls_them_in_threads(sqlite_url: str) -> None:
    app = Workhorse(database_url=sqlite_url, registry=process_handlers.registry)
    with Kit(app) as kit:
        here = process_handlers.pid.enqueue()
        kit.run_until_idle()
        assert here.result() == os.getpid()


def test_the_number_of_processes_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKHORSE_PROCESSES", "3")

    assert Workhorse()._worker_options().processes == 3
    with pytest.raises(ConfigurationError, match="processes"):
        Workhorse(processes=0)
