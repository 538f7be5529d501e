"""What is wrong with the lane is said once, and again when it changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from lanes.polling import PollingLane
from tests.support.eventually import eventually
from workhorse.domain.findings import Code, Finding, Severity
from workhorse.ports import LaneError
from workhorse.runtime.claims.lane_watch import SAID_AGAIN_MS, LaneWatch


class StandingPace:
    """A clock that the test moves; a pause ends when the test lets it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.paused: list[float] = []
        self.go_on = threading.Semaphore(0)

    def now_ms(self) -> float:
        return self.now

    def pause(self, until: threading.Event, ms: float) -> bool:
        self.paused.append(ms)
        assert self.go_on.acquire(timeout=30)
        return until.is_set()


class ProbedLane(PollingLane):
    """A lane whose probe finds what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Finding] = []
        self.error: Exception | None = None
        self.probes: list[str] = []

    def probe(self, queue: str) -> Sequence[Finding]:
        self.probes.append(queue)
        if self.error is not None:
            raise self.error
        return list(self.found)


def trouble(code: Code, action: str | None = None, queue: str = "q") -> Finding:
    what = f"queue {queue}: {code}" + (f" {action}" if action else "")
    return Finding(code, Severity.WARNING, what, "mend it", queue, action)


MISSING = trouble(Code.QUEUE_MISSING)
MAY_NOT_DELETE = trouble(Code.ACCESS_DENIED, "sqs:DeleteMessage")
MAY_NOT_RECEIVE = trouble(Code.ACCESS_DENIED, "sqs:ReceiveMessage")


@pytest.fixture
def pace() -> StandingPace:
    return StandingPace()


@pytest.fixture
def lane() -> ProbedLane:
    return ProbedLane()


@pytest.fixture
def ended() -> threading.Event:
    return threading.Event()


@pytest.fixture
def watch(lane: ProbedLane, pace: StandingPace, ended: threading.Event) -> LaneWatch:
    return LaneWatch(lane, ["q"], ended=ended, pace=pace)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said at WARNING since the last time."""
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    caplog.clear()
    return lines


def test_a_failure_that_stays_is_said_once_and_then_rarely(
    watch: LaneWatch, pace: StandingPace, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        watch.failed("q", LaneError(MISSING))
        pace.now += 1_000
    assert said(caplog) == ["queue q: queue_missing; mend it; meanwhile the queue is scanned"]

    pace.now = SAID_AGAIN_MS
    watch.failed("q", LaneError(MISSING))
    watch.failed("q", LaneError(MISSING))
    assert len(said(caplog)) == 1


def test_another_failure_is_said_at_once(
    watch: LaneWatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another code, or another permission."""
    for finding in (MISSING, MAY_NOT_RECEIVE, MAY_NOT_DELETE):
        watch.failed("q", LaneError(finding))
        (line,) = said(caplog)
        assert line.startswith(finding.message)


def test_a_lane_of_ones_own_is_named_by_its_error(
    watch: LaneWatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch.failed("q", OSError("no carrier"))
    watch.failed("q", OSError("no carrier, really"))
    (line,) = said(caplog)
    assert "the lane failed (OSError: no carrier); meanwhile" in line


def test_what_probe_and_receive_both_find_is_said_once(
    watch: LaneWatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch.probed("q", [MISSING])
    watch.failed("q", LaneError(MISSING))
    watch.answered("q")
    watch.failed("q", LaneError(MISSING))
    assert len(said(caplog)) == 1


def test_its_end_is_said_once_nobody_finds_it_any_more(
    watch: LaneWatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watch.probed("q", [MISSING, MAY_NOT_DELETE])
    watch.failed("q", LaneError(MISSING))
    caplog.clear()
    watch.answered("q")
    assert caplog.messages == []
    watch.probed("q", [])
    assert caplog.messages == [
        "queue q: no longer access_denied (sqs:DeleteMessage)",
        "queue q: no longer queue_missing",
    ]
    watch.answered("q")
    watch.probed("q", [])
    assert len(caplog.messages) == 2


def test_a_failure_that_comes_and_goes_does_not_fill_the_log(
    watch: LaneWatch, pace: StandingPace, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(60):
        watch.failed("q", LaneError(MISSING))
        watch.answered("q")
        pace.now += 1_000
    assert len(said(caplog)) == 1
    watch.failed("q", LaneError(MISSING))
    assert len(said(caplog)) == 1


def test_a_worker_that_stops_says_nothing_of_its_closed_lane(
    watch: LaneWatch, ended: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    ended.set()
    watch.failed("q", LaneError(MISSING))
    watch.probed("q", [MISSING])
    assert said(caplog) == []


def test_what_is_only_worth_knowing_is_not_said(
    watch: LaneWatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch.probed("q", [Finding(Code.NO_DEAD_LETTER_QUEUE, Severity.NOTE, "none")])
    assert said(caplog) == []


def test_a_probe_that_finds_nothing_is_made_once(
    watch: LaneWatch, lane: ProbedLane, pace: StandingPace
) -> None:
    watch.start()
    assert watch._thread is not None
    watch._thread.join(30)
    assert not watch._thread.is_alive()
    assert (lane.probes, pace.paused) == (["q"], [])


def test_a_probe_that_finds_trouble_is_made_again_until_it_is_over(
    watch: LaneWatch, lane: ProbedLane, pace: StandingPace, caplog: pytest.LogCaptureFixture
) -> None:
    """Less and less often, and it is said once."""
    lane.found = [MAY_NOT_DELETE]
    watch.start()
    assert watch._thread is not None
    for times in range(1, 7):
        eventually(lambda times=times: len(pace.paused) == times)  # type: ignore[misc]
        if times == 6:
            lane.found = []
        pace.go_on.release()
    watch._thread.join(30)
    assert not watch._thread.is_alive()
    assert pace.paused == [60_000, 120_000, 240_000, 480_000, 600_000, 600_000]
    assert len(lane.probes) == 7
    assert said(caplog) == [MAY_NOT_DELETE.sentence]


def test_a_probe_that_breaks_breaks_nothing(
    watch: LaneWatch, lane: ProbedLane, caplog: pytest.LogCaptureFixture
) -> None:
    lane.error = OSError("broken")
    watch.start()
    assert watch._thread is not None
    watch._thread.join(30)
    assert not watch._thread.is_alive()
    assert said(caplog) == []


def test_a_lane_without_a_probe_starts_no_thread(
    pace: StandingPace, ended: threading.Event
) -> None:
    watch = LaneWatch(PollingLane(), ["q"], ended=ended, pace=pace)
    watch.start()
    assert watch._thread is None
