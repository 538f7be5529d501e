"""Workers that say that they are alive, and leave queues to newer builds; both without harm."""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lanes.memory import MemoryLane
from tests.runtime.faults import Away, FaultyStore, Refused
from tests.runtime.rig import Gate, Rig
from tests.runtime.test_health import get
from tests.support.eventually import eventually
from workhorse.domain.ids import new_run_id
from workhorse.domain.presence import Process, ProcessKind
from workhorse.domain.runs import RunState
from workhorse.errors import StoreUnavailableError
from workhorse.ports import Message, Wakeup
from workhorse.runtime.base.pace import SystemPace
from workhorse.runtime.functions.invocations import Invocations
from workhorse.runtime.process.worker import Worker
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.fleet.presence import beat, leave, list_processes

QUICKLY_MS = 20
NEWER = Process(
    key="newer",
    id="w-newer",
    kind=ProcessKind.WORKER,
    host="elsewhere",
    pid=1,
    version="0.2",
    build="10",
    queues=("default",),
    every_ms=10_000,
)


@pytest.fixture
def faulty(rig: Rig) -> Iterator[FaultyStore]:
    store = FaultyStore(rig.store)
    yield store
    rig.close()
    store.close()


class WatchedPace(SystemPace):
    """The system's clock, what a test adds to it, and the rests of intakes."""

    def __init__(self) -> None:
        self.shift_ms = 0.0
        self.rests = threading.Semaphore(0)

    def now_ms(self) -> float:
        return super().now_ms() + self.shift_ms

    def pause(self, until: threading.Event, ms: float) -> bool:
        if threading.current_thread().name.startswith("workhorse-intake"):
            self.rests.release()
        return super().pause(until, ms)

    def see_rests(self, count: int = 3) -> None:
        """Wait until an intake that may not claim has asked so often."""
        while self.rests.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.rests.acquire(timeout=20), "no intake rests"


def old_worker(rig: Rig, *, pace: WatchedPace | None = None, **options: Any) -> Worker:
    """A worker of build 9 that leaves queues to newer ones, on a lane with messages."""
    rig.lane = MemoryLane()
    arguments = {"build": "9", "newest_build_only": True, "beat_ms": QUICKLY_MS, **options}
    return rig.worker(pace=pace, **arguments)


def states(rig: Rig) -> dict[str, str]:
    return {each.id: each.state.value for each in rig.store.read(list_processes)}


# -- beats ---------------------------------------------------------------------------------------


def test_a_worker_is_listed_from_its_start_to_its_end(rig: Rig) -> None:
    gate = Gate()
    rig.task("t")(gate.come)
    run_id = rig.enqueue("t")
    worker = rig.worker(("default", "mail"), 7, build="9", lane_name="polling")
    assert states(rig) == {}
    worker.start()
    eventually(lambda: states(rig) == {worker.worker_id: "live"})
    (seen,) = rig.store.read(list_processes)
    assert (seen.kind, seen.queues, seen.slots, seen.build, seen.lane, seen.every_ms) == (
        ProcessKind.WORKER, ("default", "mail"), 7, "9", "polling", 10_000,
    )  # fmt: skip
    gate.wait()

    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: states(rig) == {worker.worker_id: "stopping"})
    gate.open()
    stopping.join(20)

    assert states(rig) == {}
    assert rig.state(run_id) is RunState.SUCCEEDED


def test_a_worker_beats_again_and_again(rig: Rig, clock: ManualClock) -> None:
    worker = rig.worker(beat_ms=QUICKLY_MS)
    worker.start()
    eventually(lambda: states(rig) == {worker.worker_id: "live"})
    (before,) = rig.store.read(list_processes)

    clock.advance(60_000)

    eventually(lambda: states(rig) == {worker.worker_id: "live"})
    (after,) = rig.store.read(list_processes)
    assert after.beat_at > before.beat_at
    assert after.started_at == before.started_at


def test_two_workers_of_one_id_are_two(rig: Rig) -> None:
    workers = [rig.worker() for _ in range(2)]
    for worker in workers:
        worker._parts.presence._process = _named(worker, "w-same")
        worker.start()
    eventually(lambda: len(rig.store.read(list_processes)) == 2)

    workers[0].stop()

    assert states(rig) == {"w-same": "live"}


def _named(worker: Worker, name: str) -> Process:
    return replace(worker._parts.presence._process, id=name)


def test_draining_is_no_process_of_its_own(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    rig.enqueue("t")

    assert rig.worker(build="9", newest_build_only=True).drain() == 1

    assert states(rig) == {}


def test_an_end_that_comes_while_the_bell_is_put_back_is_heard(rig: Rig) -> None:
    worker = rig.worker(beat_ms=600_000)
    presence = worker._parts.presence
    worker.start()
    eventually(lambda: states(rig) == {worker.worker_id: "live"})

    class LateBell(threading.Event):
        def clear(self) -> None:
            presence._closing = True
            self.set()
            super().clear()

    before, presence._bell = presence._bell, LateBell()
    for bell in (before, presence._bell):  # it may be on its way to wait, for either
        bell.set()

    eventually(lambda: states(rig) == {})


def in_invocations(rig: Rig, *, pace: WatchedPace | None = None, **options: Any) -> Invocations:
    return Invocations(
        ["default"],
        4,
        store=options.pop("store", rig.store),
        lane=MemoryLane(),
        registry=rig.registry,
        publish=lambda hints: None,
        min_time_left_ms=1_000,
        pace=pace,
        options=replace(rig.options, build="9", **options),
    )


def test_a_function_beats_in_its_invocations(rig: Rig, clock: ManualClock) -> None:
    rig.task("t")(lambda: None)
    function = in_invocations(rig)

    assert list(function.serve([], lambda: 60_000.0)) == []

    (seen,) = rig.store.read(list_processes)
    assert (seen.kind, seen.queues, seen.slots, seen.build) == (
        ProcessKind.FUNCTION, ("default",), 4, "9",
    )  # fmt: skip
    clock.advance(60_000)
    function.serve([], lambda: 60_000.0)  # by its own clock, that was just now
    assert states(rig) == {seen.id: "idle"}
    function.close()


def test_a_function_beats_again_once_that_is_due(rig: Rig, clock: ManualClock) -> None:
    rig.task("t")(lambda: None)
    pace = WatchedPace()
    function = in_invocations(rig, pace=pace)
    for _ in range(2):
        clock.advance(60_000)
        pace.shift_ms += 60_000
        function.serve([], lambda: 60_000.0)
        assert [each.age_ms for each in rig.store.read(list_processes)] == [0]
    function.close()


def test_an_invocation_is_none_the_worse_for_its_beat(rig: Rig, faulty: FaultyStore) -> None:
    """With little time left there is none, and one that fails fails nothing else."""
    rig.task("t")(lambda: None)
    refused = faulty.faults["beat"] = Refused(PermissionError("denied"), times=2)
    function = in_invocations(rig, store=faulty)

    time_left = [60_000.0]
    assert list(function.serve([], lambda: falls_to(time_left, 5_999))) == []
    assert refused.times == 2  # a store that hangs may take five seconds
    assert list(function.serve([], lambda: 60_000.0)) == []

    assert refused.times == 1
    assert states(rig) == {}
    function.close()


def falls_to(time_left: list[float], ms: float) -> float:
    """Return what is left now, which is less from the next time on."""
    now, time_left[0] = time_left[0], ms
    return now


def test_functions_that_come_of_one_snapshot_are_several(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what tells processes apart is said while the module is loaded."""
    rig.task("t")(lambda: None)
    monkeypatch.setattr("socket.gethostname", lambda: "of the snapshot")
    function = in_invocations(rig)
    clone = copy.copy(function)
    monkeypatch.setattr("socket.gethostname", lambda: "of its own")

    for each in (function, clone):
        each.serve([], lambda: 60_000.0)

    seen = rig.store.read(list_processes)
    assert len({each.key for each in seen}) == len({each.id for each in seen}) == 2
    assert {each.host for each in seen} == {"of its own"}
    function.close()
    clone.close()


def test_a_store_that_is_away_at_first_does_not_take_a_function_s_time(
    rig: Rig, faulty: FaultyStore
) -> None:
    """It is tried again, while there is time to say that the messages are to be kept."""
    rig.task("t")(lambda: None)
    time_left = [20_000.0]

    def black_hole(_carry_out: object) -> object:
        time_left[0] -= 5_000
        raise StoreUnavailableError("no answer")

    faulty.faults["claimed_under"] = black_hole
    function = in_invocations(rig, store=faulty)
    message = Message("m-1", Wakeup(new_run_id(), "default"))

    assert list(function.serve([message], lambda: time_left[0])) == ["m-1"]
    assert time_left == [5_000.0]
    time_left = [900_000.0]
    assert list(function.serve([message], lambda: time_left[0])) == ["m-1"]
    assert time_left == [880_000.0]

    del faulty.faults["claimed_under"]
    assert list(function.serve([], lambda: 60_000.0)) == []
    assert len(rig.store.read(list_processes)) == 1
    function.close()


# -- never in the way of runs --------------------------------------------------------------------


def test_runs_go_on_without_beats(
    rig: Rig, faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A role without the right to write there, say. It is told once."""
    refused = faulty.faults["beat"] = Refused(PermissionError("denied"), times=3)
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    worker = rig.worker(store=faulty, beat_ms=QUICKLY_MS)
    worker.start()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: refused.times == 0)
    eventually(lambda: states(rig) == {worker.worker_id: "live"})

    told = [each for each in caplog.records if "cannot say that it is alive" in each.message]
    assert len(told) == 1


def test_a_beat_without_an_answer_is_made_up_for(rig: Rig, faulty: FaultyStore) -> None:
    away = faulty.faults["beat"] = Away()
    rig.task("t")(lambda: None)
    worker = rig.worker(store=faulty, beat_ms=QUICKLY_MS)
    worker.start()
    assert away.asked.acquire(timeout=20)
    away.back.set()

    run_id = rig.enqueue("t")

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    eventually(lambda: states(rig) == {worker.worker_id: "live"})


def test_a_beat_that_hangs_keeps_neither_runs_nor_the_end_waiting(
    rig: Rig, faulty: FaultyStore
) -> None:
    hung, never = threading.Event(), threading.Event()

    def hang(carry_out: Any) -> None:
        hung.set()
        never.wait()

    faulty.faults["beat"] = hang
    rig.task("t")(lambda: None)
    worker = rig.worker(store=faulty)
    worker.start()
    assert hung.wait(20)
    run_id = rig.enqueue("t")

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)

    stopping = threading.Thread(target=worker.stop, daemon=True)
    stopping.start()
    stopping.join(20)
    ended = not stopping.is_alive()
    never.set()
    assert ended


def test_a_beat_waits_for_a_claims_turn(rig: Rig, faulty: FaultyStore) -> None:
    """Two use the store's connections at a time; the third is kept for settles."""
    asked = threading.Event()

    class Watched(threading.Semaphore):
        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            asked.set()
            return super().acquire(blocking, timeout)

        __enter__ = acquire

    turns = Watched(0)
    worker = rig.worker(store=faulty)
    assert worker._parts.presence._gate is worker._parts._gate
    worker._parts.presence._gate = turns
    worker.start()
    assert asked.wait(20)
    assert "beat" not in faulty.calls

    turns.release()

    eventually(lambda: "beat" in faulty.calls)


# -- newer builds --------------------------------------------------------------------------------


def test_a_queue_is_left_to_a_newer_build_and_taken_up_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "workhorse.worker")
    pace = WatchedPace()
    rig.task("t")(lambda: None)
    worker = old_worker(rig, pace=pace, health_port=0)
    rig.store.run(beat, NEWER, up_ms=0)
    worker.start()
    run_id = rig.enqueue("t", wake=True)
    pace.see_rests()

    assert rig.state(run_id) is RunState.READY
    assert rig.lane.backlog("default") == 1  # it is the newer one's to receive
    assert "of build 9 claims nothing more from default: a worker of build 10" in caplog.text
    ready, body = get(worker, "/readyz")
    assert ready == 200
    assert (json.loads(body)["build"], json.loads(body)["left_to_newer_builds"]) == (
        "9", {"default": "10"},
    )  # fmt: skip
    assert "workhorse_queues_left_to_newer_builds 1\n" in get(worker, "/metrics")[1]

    rig.store.run(leave, "newer")

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert "of build 9 claims from default again" in caplog.text


def test_what_a_worker_has_it_finishes(rig: Rig) -> None:
    gate = Gate()
    pace = WatchedPace()
    rig.task("t")(gate.come)
    worker = old_worker(rig, pace=pace)
    worker.start()
    run_id = rig.enqueue("t", wake=True)
    gate.wait()

    rig.store.run(beat, NEWER, up_ms=0)
    eventually(lambda: dict(worker._parts.presence.newer) == {"default": "10"})
    gate.open()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_a_newer_build_takes_only_the_queues_that_it_serves(rig: Rig) -> None:
    """Else two that serve different ones could keep each other from all of them."""
    pace = WatchedPace()
    rig.task("t")(lambda: None)
    rig.store.run(beat, NEWER, up_ms=0)
    rig.lane = MemoryLane()
    worker = rig.worker(
        ("default", "mail"), pace=pace, build="9", newest_build_only=True, beat_ms=QUICKLY_MS
    )
    worker.start()
    left = rig.enqueue("t", wake=True)
    taken = rig.enqueue("t", queue="mail", wake=True)

    eventually(lambda: rig.state(taken) is RunState.SUCCEEDED)
    pace.see_rests()

    assert rig.state(left) is RunState.READY


@pytest.mark.parametrize(
    "options",
    [{"newest_build_only": False}, {"build": ""}, {"build": "10"}, {"build": "11"}],
    ids=["off", "without-a-build", "equal", "newer"],
)
def test_who_is_not_older_or_not_told_to_claims(rig: Rig, options: dict[str, Any]) -> None:
    rig.task("t")(lambda: None)
    rig.store.run(beat, NEWER, up_ms=0)
    worker = old_worker(rig, **options)
    worker.start()

    run_id = rig.enqueue("t", wake=True)

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert not worker._parts.presence.newer


def test_a_newer_worker_that_died_is_not_waited_for(rig: Rig, clock: ManualClock) -> None:
    rig.task("t")(lambda: None)
    rig.store.run(beat, NEWER, up_ms=0)
    worker = old_worker(rig)
    worker.start()
    run_id = rig.enqueue("t", wake=True)
    eventually(lambda: dict(worker._parts.presence.newer) == {"default": "10"})

    clock.advance(30_000)

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_a_worker_asks_before_its_first_claim(rig: Rig, faulty: FaultyStore) -> None:
    gate = Gate()

    def wait(carry_out: Any) -> Any:
        gate.come()
        return carry_out()

    faulty.faults["beat_and_look"] = wait
    pace = WatchedPace()
    rig.task("t")(lambda: None)
    worker = old_worker(rig, pace=pace, store=faulty)
    worker.start()
    run_id = rig.enqueue("t", wake=True)
    gate.wait()
    pace.see_rests()
    assert rig.state(run_id) is RunState.READY

    gate.open()

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_a_worker_that_was_frozen_asks_before_it_claims(rig: Rig) -> None:
    """Stopped by a signal, or on a laptop that slept: a newer one has come meanwhile."""
    pace = WatchedPace()
    rig.task("t")(lambda: None)
    worker = old_worker(rig, pace=pace, beat_ms=10_000)
    worker.start()
    first = rig.enqueue("t", wake=True)
    eventually(lambda: rig.state(first) is RunState.SUCCEEDED)
    rig.store.run(beat, NEWER, up_ms=0)

    pace.shift_ms += 31_000
    second = rig.enqueue("t", wake=True)
    pace.see_rests()

    assert dict(worker._parts.presence.newer) == {"default": "10"}
    assert rig.state(second) is RunState.READY


def test_a_worker_that_cannot_ask_claims_as_it_did(rig: Rig, faulty: FaultyStore) -> None:
    """An old build that works is better than none."""
    faulty.faults["beat_and_look"] = Refused(PermissionError("denied"), times=1_000)
    rig.task("t")(lambda: None)
    worker = old_worker(rig, store=faulty)
    worker.start()

    run_id = rig.enqueue("t", wake=True)

    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)


def test_of_two_workers_the_newer_one_runs_all(store: Store) -> None:
    done: list[str] = []
    old, new = Rig(store), Rig(store)
    old.task("t")(lambda: done.append("9"))
    new.task("t")(lambda: done.append("10"))
    try:
        options: dict[str, Any] = {"newest_build_only": True, "beat_ms": QUICKLY_MS}
        newer = new.worker(build="10", **options)
        newer.start()
        eventually(lambda: len(store.read(list_processes)) == 1)
        old.worker(build="9", **options).start()
        runs = new.enqueue_many("t", 20)
        eventually(lambda: all(new.state(run_id) is RunState.SUCCEEDED for run_id in runs))
        assert done == ["10"] * 20

        newer.stop()
        more = new.enqueue_many("t", 5)
        eventually(lambda: all(new.state(run_id) is RunState.SUCCEEDED for run_id in more))
        assert done[20:] == ["9"] * 5
    finally:
        old.close()
        new.close()
