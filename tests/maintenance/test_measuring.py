"""The step that measures, and the lines that CloudWatch makes metrics of."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.maintenance.lanes import Outbox, TalkingLane
from tests.store.acting import FAIL, a_claimed, end, put, put_many
from workhorse.domain.measures import Measures, together
from workhorse.domain.presence import Process, ProcessKind
from workhorse.maintenance import STEPS, EmfWriter, Maintenance, measure_step
from workhorse.maintenance.measuring import Emit, emf_lines
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.fleet.measuring import Measured, Span
from workhorse.store.fleet.presence import beat
from workhorse.telemetry import Counters

AT = datetime(2026, 11, 30, 12, 0, 0, 123_456, tzinfo=UTC)
COUNTS = {
    "RunnableRuns", "RunningRuns", "WaitingRuns", "ScheduledRuns", "Workers", "BacklogPerWorker",
    "FailedRuns",
}  # fmt: skip

# What CloudWatch takes, by its specification of the format.
UNITS = {"Seconds", "Count"}
MOST_METRICS = 100
MOST_DIMENSIONS = 30
LARGEST_BYTES = 256 * 1024
LONGEST_NAME = 1_024
LONGEST_DIMENSION = 1_024


def found(*queues: Measures) -> Measured:
    all_of_them = together(queues, workers=3)
    return Measured(AT, all_of_them, list(queues), Span(None, AT - timedelta(seconds=70), AT))


def check_emf(line: str) -> dict[str, Any]:
    """Check a line by the rules of the embedded metric format; return what it holds."""
    assert "\n" not in line
    assert len(line.encode()) < LARGEST_BYTES
    root: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)  # neither NaN nor infinity
    directives = root["_aws"]["CloudWatchMetrics"]
    assert set(root["_aws"]) == {"Timestamp", "CloudWatchMetrics"}
    assert type(root["_aws"]["Timestamp"]) is int
    assert isinstance(directives, list)
    assert directives
    for directive in directives:
        assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
        assert 1 <= len(directive["Namespace"]) <= LONGEST_NAME
        for dimensions in directive["Dimensions"]:
            assert 1 <= len(dimensions) <= MOST_DIMENSIONS
            for name in dimensions:
                assert isinstance(root[name], str)
                assert 1 <= len(root[name]) <= LONGEST_DIMENSION
        assert 1 <= len(directive["Metrics"]) <= MOST_METRICS
        for metric in directive["Metrics"]:
            assert set(metric) <= {"Name", "Unit", "StorageResolution"}
            assert 1 <= len(metric["Name"]) <= LONGEST_NAME
            assert metric["Unit"] in UNITS
            assert type(root[metric["Name"]]) in (int, float)
    return root


def test_each_set_of_dimensions_is_a_line_of_the_embedded_metric_format() -> None:
    mail = Measures(
        queue="mail", oldest_runnable_ms=1_500, runnable=7, running=2, waiting=1, scheduled=4,
        failed=3, workers=2,
    )  # fmt: skip
    lines = emf_lines(
        found(mail, Measures(queue="quiet")), namespace="Workhorse", environment="production"
    )

    fleet, first, second = map(check_emf, lines)

    assert fleet["_aws"]["Timestamp"] == 1_796_040_000_123
    (directive,) = fleet["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("Workhorse", [["Environment"]])
    assert {each["Name"] for each in directive["Metrics"]} == {
        *COUNTS, "OldestRunnableAge", "MaintenancePasses",
    }  # fmt: skip
    assert {each["Name"]: each["Unit"] for each in directive["Metrics"]} == {
        **dict.fromkeys(COUNTS, "Count"), "OldestRunnableAge": "Seconds",
        "MaintenancePasses": "Count",
    }  # fmt: skip
    assert (fleet["Environment"], fleet["MaintenancePasses"], fleet["Workers"]) == (
        "production", 1, 3,
    )  # fmt: skip
    (directive,) = first["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["Environment", "Queue"]]
    assert {each["Name"] for each in directive["Metrics"]} == {*COUNTS, "OldestRunnableAge"}
    assert {name: value for name, value in first.items() if name != "_aws"} == {
        "Environment": "production", "Queue": "mail", "OldestRunnableAge": 1.5, "RunnableRuns": 7,
        "RunningRuns": 2, "WaitingRuns": 1, "ScheduledRuns": 4, "FailedRuns": 3, "Workers": 2,
        "BacklogPerWorker": 4.5,
    }  # fmt: skip
    assert (second["Queue"], second["OldestRunnableAge"], second["BacklogPerWorker"]) == (
        "quiet", 0, 0,
    )  # fmt: skip


def test_a_system_without_an_environment_is_called_default() -> None:
    (line,) = emf_lines(found(), namespace="N", environment="")

    assert check_emf(line)["Environment"] == "default"


def test_the_writer_writes_whole_lines_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    measured = found(Measures(queue="mail"))
    EmfWriter(namespace="N", environment="", stream=Stream())(measured)
    EmfWriter(namespace="N", environment="")(measured)

    (text,) = written
    assert text == capsys.readouterr().out
    assert text.endswith("}\n")
    assert [check_emf(line).get("Queue") for line in text.splitlines()] == [None, "mail"]


# -- the step ------------------------------------------------------------------------------------


def maintaining(store: Store, emit: Emit) -> Maintenance:
    return Maintenance(
        store=store,
        lane=TalkingLane(),
        publish=Outbox(),
        counters=Counters(),
        draw=random.Random(1),
        steps=(measure_step(emit), *STEPS),
    )


def test_a_fleet_measures_once_a_minute(store: Store, clock: ManualClock) -> None:
    told: list[Measured] = []
    fleet = [maintaining(store, told.append) for _ in range(3)]
    put_many(store, 2)

    for _ in range(60):
        for maintenance in fleet:
            maintenance.run_due()
        clock.advance(1_000)
    assert [each.all.runnable for each in told] == [2]

    fleet[0].run_due()
    assert len(told) == 2


def test_a_pass_measures_whenever_that_was_done_last(store: Store, clock: ManualClock) -> None:
    told: list[Measured] = []
    maintenance = maintaining(store, told.append)
    end(store, a_claimed(store), FAIL)
    clock.advance(20_000)

    done = [maintenance.run_once().counts["measure"] for _ in range(2)]

    assert done == [0, 0]  # it changes nothing
    assert [each.all.failed for each in told] == [1, 0]


def test_failed_runs_are_told_again_only_where_they_were_not_counted(
    store: Store, clock: ManualClock
) -> None:
    told: list[int] = []
    broken = [True]

    def emit(measured: Measured) -> None:
        if broken.pop(0):
            raise BrokenPipeError
        told.append(measured.all.failed)

    maintenance = maintaining(store, emit)
    end(store, a_claimed(store), FAIL)
    clock.advance(20_000)
    done = maintenance.run_once()
    assert done.failed == {"measure": "BrokenPipeError"}
    assert set(done.counts) == {step.name for step in STEPS}

    broken[:] = [False]
    maintenance.run_once()

    assert told == [0]  # missing once, and not counted twice


# -- beats ---------------------------------------------------------------------------------------


def listed(store: Store) -> list[tuple[str, str, str, int]]:
    from workhorse.store.fleet.presence import list_processes

    return [
        (each.kind.value, each.id, each.state.value, each.every_ms)
        for each in store.read(list_processes)
    ]


def test_passes_are_listed_as_one_process(store: Store, clock: ManualClock) -> None:
    for _ in range(3):
        maintaining(store, lambda found: None).run_once()
        clock.advance(60_000)

    assert listed(store) == [("maintenance", "maintain-once", "live", 60_000)]
    clock.advance(120_000)
    assert listed(store) == [("maintenance", "maintain-once", "late", 60_000)]


def test_maintenance_that_goes_on_is_listed_until_it_ends(store: Store) -> None:
    maintenance = maintaining(store, lambda found: None)
    seen: list[Any] = []

    def on_pass(_done: object) -> None:
        seen.append(listed(store))
        maintenance.stop()

    maintenance.run(on_pass=on_pass)

    ((kind, name, state, every_ms),) = seen[0]
    assert (kind, state, every_ms) == ("maintenance", "live", 10_000)
    assert name.startswith("m-")
    assert listed(store) == []


def test_a_beat_that_fails_is_no_steps_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("workhorse.store.fleet.presence.beat", refuse)
    put(store)

    done = maintaining(store, lambda found: None).run_once()

    assert done.failed == {}
    assert listed(store) == []


def test_processes_that_are_long_gone_are_pruned(store: Store, clock: ManualClock) -> None:
    for at in range(150):
        gone = Process(
            key=f"k-{at}", id="w", kind=ProcessKind.WORKER, host="h", pid=at, version="0.1"
        )
        store.run(beat, gone, up_ms=0)
    clock.advance(timedelta(hours=1))

    done = maintaining(store, lambda found: None).run_once()

    assert done.counts["processes"] == 150
