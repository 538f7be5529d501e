"""The loop: each step once an interval whoever runs it, whatever fails in it."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.maintenance.lanes import Outbox, TalkingLane
from tests.store.acting import LEASE_MS, a_claimed, put, put_many, state_of
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.domain.retry import RetryPolicy
from workhorse.errors import SchemaMismatchError, StoreUnavailableError, WorkhorseError
from workhorse.maintenance import Maintenance, Pass
from workhorse.maintenance.steps import STEPS, Page, Parts, Publish, Step
from workhorse.ports import LaneError
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.migrating import migrate
from workhorse.store.fleet.steps import list_steps
from workhorse.store.lifecycle.sweeping import Swept
from workhorse.telemetry import Counters, Metric

_THREAD = "workhorse-maintenance"
_AWAY = Finding(Code.ENDPOINT_UNREACHABLE, Severity.ERROR, "it is away")


def _maintenance(
    store: Store,
    *steps: Step,
    counters: Counters | None = None,
    publish: Publish | None = None,
) -> Maintenance:
    return Maintenance(
        store=store,
        lane=TalkingLane(),
        publish=publish or Outbox(),
        counters=counters or Counters(),
        draw=random.Random(1),
        steps=steps or STEPS,
    )


def _step(name: str, page: Callable[[Parts], Swept], interval_ms: int = 1_000) -> Step:
    return Step(name, interval_ms, page)


def _fails(parts: Parts) -> Swept:
    raise ZeroDivisionError


# -- each once an interval -----------------------------------------------------------------------


def test_a_step_is_done_when_it_is_due(store: Store, clock: ManualClock) -> None:
    maintenance = _maintenance(store)

    assert set(maintenance.run_due().counts) == {step.name for step in STEPS}
    assert maintenance.run_due().counts == {}
    clock.advance(1_000)
    assert set(maintenance.run_due().counts) == {
        "recover", "deadlines", "promote", "cancellations", "tokens", "arm", "free",
    }  # fmt: skip
    clock.advance(29_000)
    assert "top_up" in maintenance.run_due().counts
    clock.advance(30_000)
    assert set(maintenance.run_due().counts) == {step.name for step in STEPS}


def test_any_number_of_them_do_each_step_once_an_interval(store: Store, clock: ManualClock) -> None:
    done: list[str] = []

    def named(name: str) -> Step:
        def page(parts: Parts) -> Swept:
            done.append(name)
            return Swept()

        return _step(name, page)

    steps = [named(name) for name in ("one", "two", "three")]
    stores = [store.sibling(connections=1) for _ in range(5)]
    fleet = [_maintenance(each, *steps) for each in stores]
    for _ in range(4):
        start = threading.Barrier(len(fleet))

        def run(maintenance: Maintenance, start: threading.Barrier = start) -> None:
            start.wait(30)
            maintenance.run_due()

        with ThreadPoolExecutor(len(fleet)) as threads:
            list(threads.map(run, fleet))
        clock.advance(1_000)

    assert sorted(done) == ["one"] * 4 + ["three"] * 4 + ["two"] * 4
    for each in stores:
        each.close()


def test_a_pass_by_hand_does_all_whenever_they_were_done(store: Store) -> None:
    maintenance = _maintenance(store)
    told: list[tuple[str, int]] = []
    maintenance.run_due()

    done = maintenance.run_once(on_step=lambda name, count: told.append((name, count)))

    assert done.counts == {step.name: 0 for step in STEPS}
    assert told == [(step.name, 0) for step in STEPS]


def test_the_rows_say_when_each_step_last_ran_and_what_it_did(
    store: Store, clock: ManualClock
) -> None:
    put_many(store, 3, delay_ms=10)
    clock.advance(10)

    _maintenance(store).run_once()

    steps = {step.name: step for step in store.run(list_steps)}
    assert steps["promote"].last_count == 3
    assert {step.last_at for step in steps.values()} == {clock.now}
    assert steps["top_up"].next_at == clock.now + timedelta(seconds=30)


def test_pages_follow_while_they_are_full(store: Store) -> None:
    pages = iter([Swept(5, True), Swept(5, True), Swept(2, False), Swept(9, False)])

    done = _maintenance(store, _step("one", lambda parts: next(pages))).run_once()

    assert (done.counts, done.total) == ({"one": 12}, 12)


# -- what fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["run_once", "run_due"])
def test_a_step_that_fails_does_not_keep_the_others_from_healing(store: Store, how: str) -> None:
    counters = Counters()
    maintenance = _maintenance(
        store, _step("broken", _fails), _step("well", lambda parts: Swept(1)), counters=counters
    )

    done: Pass = getattr(maintenance, how)()

    assert (done.counts, done.failed) == ({"well": 1}, {"broken": "ZeroDivisionError"})
    assert counters.get(Metric.LOOP_RESTARTS, label="maintenance.broken") == 1
    steps = {step.name: step.last_at for step in store.run(list_steps)}
    assert steps["broken"] is None
    assert steps["well"] is not None


@pytest.mark.parametrize(
    "error",
    [StoreUnavailableError("it is away"), LaneError(_AWAY)],
    ids=["store", "broker"],
)
def test_a_store_or_a_broker_that_is_away_takes_one_line(
    store: Store, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def page(parts: Parts) -> Swept:
        raise error

    _maintenance(store, _step("one", page)).run_once()

    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", "step one: it is away")
    assert record.exc_info is None


def test_a_step_that_failed_is_tried_at_its_next_time(store: Store, clock: ManualClock) -> None:
    results: Iterator[Page] = iter([_fails, lambda parts: Swept(1)])
    maintenance = _maintenance(store, _step("one", lambda parts: next(results)(parts)))

    assert maintenance.run_due().failed == {"one": "ZeroDivisionError"}
    assert maintenance.run_due() == Pass()
    clock.advance(1_000)
    assert maintenance.run_due().counts == {"one": 1}


def test_a_page_that_fails_after_others_keeps_what_they_did(
    store: Store, clock: ManualClock
) -> None:
    """What has been committed is done, and its wakeups are sent."""
    outbox = Outbox()
    pages = iter([True, False])

    def page(parts: Parts) -> Swept:
        if next(pages):
            return Swept(5, True, [])
        raise ZeroDivisionError

    done = _maintenance(store, _step("one", page), publish=outbox).run_once()

    assert done.failed == {"one": "ZeroDivisionError"}
    assert outbox.pages == [[]]


# -- bounds and stops ----------------------------------------------------------------------------


def test_a_pass_begins_no_page_after_its_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where pages would be full for ever."""
    seconds = [0.0]
    monkeypatch.setattr(
        "workhorse.maintenance.loop.time", SimpleNamespace(monotonic=lambda: seconds[0])
    )

    def page(parts: Parts) -> Swept:
        seconds[0] += 1
        return Swept(1, seconds[0] < 99)

    done = _maintenance(store, _step("endless", page), _step("later", _fails)).run_once(
        timedelta(seconds=7)
    )

    assert done == Pass({"endless": 7})


def test_a_pass_without_time_does_nothing(store: Store) -> None:
    assert _maintenance(store).run_once(timedelta(0)) == Pass()


def test_a_step_that_would_fail_after_the_time_is_not_begun(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is out of reach fails each step only after a while."""
    began: list[str] = []
    seconds = [0.0]
    monkeypatch.setattr(
        "workhorse.maintenance.loop.time", SimpleNamespace(monotonic=lambda: seconds[0])
    )

    def slow(parts: Parts) -> Swept:
        began.append("slow")
        seconds[0] += 30
        raise StoreUnavailableError("away")

    def next_one(parts: Parts) -> Swept:
        began.append("next")
        return Swept()

    steps = [_step("slow", slow), _step("next", next_one)]

    assert set(_maintenance(store, *steps).run_once(timedelta(seconds=50)).failed) == {"slow"}
    assert began == ["slow"]
    _maintenance(store, *steps).run_once(timedelta(seconds=70))
    assert began == ["slow", "slow", "next"]


@pytest.mark.parametrize("how", ["run_once", "run_due"])
def test_a_stopped_maintenance_begins_nothing(store: Store, how: str) -> None:
    maintenance = _maintenance(store)
    maintenance.stop()
    maintenance.stop()

    assert getattr(maintenance, how)() == Pass()


def test_a_stop_ends_the_step_after_the_page_under_way(store: Store) -> None:
    def page(parts: Parts) -> Swept:
        maintenance.stop()
        return Swept(1, True)

    maintenance = _maintenance(store, _step("one", page), _step("two", _fails))

    assert maintenance.run_once() == Pass({"one": 1})


# -- for ever ------------------------------------------------------------------------------------


def test_it_runs_until_it_is_stopped(store: Store, clock: ManualClock) -> None:
    passes: list[Pass] = []
    maintenance = _maintenance(store)
    thread = threading.Thread(target=maintenance.run, kwargs={"on_pass": passes.append})
    thread.start()
    eventually(lambda: len(passes) == 1)
    run_id = put(store, delay_ms=10)
    clock.advance(1_000)

    eventually(lambda: state_of(store, run_id) == "ready")
    maintenance.stop()
    thread.join(10)

    assert not thread.is_alive()
    assert passes[0].counts == {step.name: 0 for step in STEPS}


def test_it_runs_beside_a_worker_for_the_time_of_a_block(store: Store) -> None:
    done = threading.Event()

    def page(parts: Parts) -> Swept:
        done.set()
        return Swept()

    with _maintenance(store, _step("one", page)) as maintenance:
        assert done.wait(10)
        with pytest.raises(WorkhorseError, match="was started before"):
            maintenance.start()
        (thread,) = [each for each in threading.enumerate() if each.name == _THREAD]

    assert not thread.is_alive()


def test_beside_a_worker_a_schema_that_does_not_fit_is_logged(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise SchemaMismatchError("too old")

    maintenance = Maintenance(
        store=store, lane=TalkingLane(), publish=Outbox(), counters=Counters(), check=refuse
    )
    maintenance.start()
    eventually(lambda: not any(each.name == _THREAD for each in threading.enumerate()))

    assert "maintenance ends: too old" in caplog.text


def test_passes_in_which_nothing_was_due_are_not_told(store: Store) -> None:
    passes: list[Pass] = []
    looks: list[int] = []

    class Looking(Maintenance):
        def run_due(self, within: timedelta = timedelta(seconds=50)) -> Pass:
            looks.append(1)
            if len(looks) == 3:
                self.stop()
            return super().run_due(within)

    maintenance = Looking(
        store=store, lane=TalkingLane(), publish=Outbox(), counters=Counters(),
        steps=[_step("one", lambda parts: Swept())],
    )  # fmt: skip
    maintenance.run(on_pass=passes.append)

    assert (len(looks), passes) == (3, [Pass({"one": 0})])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_handlers_are_put_back(
    sqlite_url: str, number: signal.Signals
) -> None:
    store = Store.open(sqlite_url)
    before = signal.getsignal(number)

    def page(parts: Parts) -> Swept:
        os.kill(os.getpid(), number)
        return Swept()

    _maintenance(store, _step("one", page)).run()

    assert signal.getsignal(number) is before
    store.close()


def test_a_signal_may_come_at_any_moment(processes: Processes, sqlite_url: str) -> None:
    """Also while the main thread holds a lock of what it waits with."""
    program = f"""
import os, signal, threading
from workhorse.app import Workhorse

maintenance = Workhorse(database_url={sqlite_url!r}, lane="polling").maintenance()
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
wait = threading.Condition.wait

def wait_and_get_a_signal(self, timeout=None):
    if threading.current_thread() is threading.main_thread():
        os.kill(os.getpid(), signal.SIGTERM)
    return wait(self, timeout)

threading.Condition.wait = wait_and_get_a_signal
maintenance.run()
"""
    assert processes.python("-c", program).wait() == 0


def test_while_everything_fails_it_looks_less_often(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(sqlite_url)
    maintenance = _maintenance(store, _step("one", _fails, 0))
    rests: list[float] = []

    def wait(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 8:
            maintenance.stop()

    monkeypatch.setattr(maintenance, "_rest", wait)
    maintenance.run()

    bounds = [2, 4, 8, 16, 30, 30, 30, 30]
    assert all(0.8 * top <= rest <= top for rest, top in zip(rests, bounds, strict=True))
    store.close()


def test_it_outlives_the_outage_of_the_store(own_postgres: PostgresServer) -> None:
    store = Store.open(own_postgres.url(own_postgres.databases.create()))
    migrate(store)
    counters, passes = Counters(), list[Pass]()
    maintenance = _maintenance(store, counters=counters)
    thread = threading.Thread(target=maintenance.run, kwargs={"on_pass": passes.append})
    thread.start()
    try:
        eventually(lambda: passes)
        own_postgres.kill()
        eventually(lambda: any(done.failed for done in passes), within=60)
        own_postgres.start()
        run_id = put(store, delay_ms=1)
        eventually(lambda: state_of(store, run_id) == "ready", within=60)
    finally:
        maintenance.stop()
        thread.join(60)
        store.close()

    assert not thread.is_alive()
    failures = {name for done in passes for name in done.failed.values()}
    assert failures == {"StoreUnavailableError"}
    assert sum(counters.snapshot().values()) > 0


def _checked(store: Store, check: Callable[[], object]) -> Maintenance:
    return Maintenance(
        store=store,
        lane=TalkingLane(),
        publish=Outbox(),
        counters=Counters(),
        steps=[_step("one", lambda parts: Swept())],
        check=check,
    )


@pytest.mark.parametrize("how", ["run_once", "run_due"])
def test_the_schema_is_looked_at_once_before_anything_is_done(store: Store, how: str) -> None:
    looks: list[int] = []
    maintenance = _checked(store, lambda: looks.append(1))
    assert looks == []

    for _ in range(3):
        getattr(maintenance, how)()

    assert looks == [1]


@pytest.mark.parametrize("how", ["run_once", "run_due", "run"])
def test_a_schema_that_does_not_fit_ends_it(store: Store, how: str) -> None:
    def refuse() -> None:
        raise SchemaMismatchError("too old")

    with pytest.raises(SchemaMismatchError):
        getattr(_checked(store, refuse), how)()

    assert store.run(list_steps) == []


def test_it_may_start_while_the_store_is_away(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(sqlite_url)
    answers = iter([StoreUnavailableError("away"), StoreUnavailableError("away"), None])
    rests: list[float] = []
    passes: list[Pass] = []

    def look() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    maintenance = _checked(store, look)
    monkeypatch.setattr(maintenance, "_rest", rests.append)

    def told(done: Pass) -> None:
        passes.append(done)
        maintenance.stop()

    maintenance.run(on_pass=told)

    assert passes == [Pass({"one": 0})]

    assert rests[0] < rests[1]
    assert rests[2] <= 1
    store.close()


def test_it_heals_while_every_slot_is_broken(store: Store, clock: ManualClock) -> None:
    """No worker and no task code is needed: a run that kills its workers comes to its end."""
    policy = RetryPolicy(max_attempts=1)
    ids = [a_claimed(store, retry=policy, task=f"unknown{number}").id for number in range(3)]
    clock.advance(LEASE_MS)

    _maintenance(store).run_once()

    assert {state_of(store, run_id) for run_id in ids} == {"failed"}
