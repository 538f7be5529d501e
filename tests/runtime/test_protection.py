"""Task protection against a fake agent: on while busy, off when quiet, never in a run's way."""

from __future__ import annotations

import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.runtime.ecs_agent import Answer, FakeAgent, error, failure, fake_agent, port_of, told
from tests.runtime.rig import QUICK, Gate, Rig
from tests.support.eventually import eventually
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError
from workhorse.handlers.context import Context
from workhorse.handlers.registry import TaskRegistry
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.activations.holdings import Holdings
from workhorse.runtime.execution import protection
from workhorse.runtime.execution.ecs_agent import AgentError, EcsAgent
from workhorse.runtime.execution.protection import QUIET_MS, Protection, expiry
from workhorse.telemetry import Counters, Metric

MINUTE_MS = 60_000
LOOK_MS = 1_000


class ManualPace:
    """A clock that stands until the test moves it, pause by pause of the protection's thread."""

    def __init__(self) -> None:
        self._now = 0.0
        self._changed = threading.Condition()
        self._resting: dict[threading.Thread, tuple[float, threading.Event]] = {}

    def now_ms(self) -> float:
        return self._now

    def pause(self, until: threading.Event, ms: float) -> bool:
        me = threading.current_thread()
        with self._changed:
            end = self._now + ms
            self._resting[me] = (end, until)
            self._changed.notify_all()
            while not until.is_set() and self._now < end:
                self._changed.wait(0.002)  # an event tells nobody that it was set
            del self._resting[me]
        return until.is_set()

    def settle(self) -> None:
        """Wait until the thread rests, or has ended."""
        ends_at = time.monotonic() + 20
        with self._changed:
            while not self._rests():
                assert time.monotonic() < ends_at, "the protection's thread does not rest"
                self._changed.wait(0.01)  # its end tells nobody either

    def advance(self, ms: float) -> None:
        """Move the clock, and let the thread do at each moment what it does then."""
        target = self._now + ms
        while True:
            self.settle()
            with self._changed:
                ends = [end for end, _ in self._resting.values() if end <= target]
                self._now = min(ends, default=target)
                self._changed.notify_all()
                if not ends:
                    return

    def _rests(self) -> bool:
        threads = [t for t in threading.enumerate() if t.name == "workhorse-protection"]
        return all(
            thread in self._resting
            and self._resting[thread][0] > self._now
            and not self._resting[thread][1].is_set()
            for thread in threads
        )


class HeldRun:
    """As much of an activation as holding it needs."""

    started_ms = None
    outcome = None


class OneWorker:
    """What a worker does to its protection: it holds runs, settles them, and stops."""

    def __init__(self, agent: FakeAgent, pace: ManualPace, *timeouts: timedelta | None) -> None:
        self.pace = pace
        self.counters = Counters()
        self.holdings = Holdings()
        registry = TaskRegistry()
        for number, timeout in enumerate(timeouts):
            registry.register(lambda: None, f"t{number}", timeout=timeout)
        self.part = Protection(
            agent.uri, self.holdings, registry, pace=pace, counters=self.counters
        )
        self.held: list[Activation] = []
        self.part.start()

    def take(self) -> None:
        """Claim a run."""
        run = cast("Activation", HeldRun())
        self.held.append(run)
        if self.holdings.add([run]):
            self.part.wake()

    def settle(self) -> None:
        """Settle a run."""
        self.holdings.remove([self.held.pop()])

    @property
    def busy(self) -> bool:
        return bool(self.held)

    def close(self) -> None:
        self.part.close()
        self.part.wait(5)

    @property
    def errors(self) -> int:
        return self.counters.get(Metric.PROTECTION_ERRORS)


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with fake_agent() as agent:
        yield agent
        agent.fault = None
        protection._keepers.clear()


@pytest.fixture
def pace() -> ManualPace:
    return ManualPace()


@pytest.fixture
def make(agent: FakeAgent, pace: ManualPace) -> Iterator[Callable[..., OneWorker]]:
    made: list[OneWorker] = []

    def make(*timeouts: timedelta | None) -> OneWorker:
        made.append(OneWorker(agent, pace, *timeouts))
        return made[-1]

    yield make
    agent.fault = None
    for worker in made:
        worker.part.close()
        worker.part.wait(5)
    eventually(lambda: not _threads(), what="the protection's thread ends")


def _threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name == "workhorse-protection"]


# -- on and off ----------------------------------------------------------------------------------


def test_it_is_on_while_something_is_held_and_off_after_a_quiet_spell(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    worker = make(timedelta(minutes=20))
    pace.advance(60_000)
    assert agent.asked == []

    worker.take()
    pace.settle()
    assert agent.asked == [{"ProtectionEnabled": True, "ExpiresInMinutes": 30}]
    pace.advance(60_000)
    worker.settle()
    pace.advance(QUIET_MS - 1)
    assert agent.states == [True]
    pace.advance(LOOK_MS + 1)

    assert agent.asked[1:] == [{"ProtectionEnabled": False}]
    pace.advance(3_600_000)
    assert agent.states == [True, False]


def test_a_worker_that_is_busy_a_hundred_times_a_second_calls_once(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    """Nothing is held whenever it is looked; what was settled since the last look tells."""
    worker = make(timedelta(minutes=20))
    worker.take()
    pace.settle()
    worker.settle()
    for _ in range(2_000):
        worker.take()
        pace.advance(3)
        worker.settle()
        pace.advance(7)
    assert agent.states == [True]

    pace.advance(QUIET_MS + LOOK_MS)
    assert agent.states == [True, False]


def test_it_is_renewed_before_less_is_left_than_the_longest_handler_needs(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    longest = timedelta(minutes=4)
    worker = make(timedelta(seconds=3), longest)
    worker.take()
    pace.settle()

    for _ in range(24):
        pace.advance(MINUTE_MS)
        assert agent.protected
    calls = len(agent.asked)

    minutes, renew_ms = expiry(longest)
    assert {request["ExpiresInMinutes"] for request in agent.asked} == {minutes}
    assert minutes - renew_ms / MINUTE_MS > 4
    assert calls == 1 + 24 * MINUTE_MS // renew_ms


@pytest.mark.parametrize(
    ("longest", "minutes"),
    [
        (timedelta(milliseconds=1), 11),
        (timedelta(minutes=1), 11),
        (timedelta(minutes=40), 60),
        (timedelta(hours=2), 180),
        (timedelta(hours=48), 2_880),
        (timedelta(days=365), 2_880),
    ],
)
def test_the_expiry_is_beyond_the_longest_handler_and_within_what_ecs_allows(
    longest: timedelta, minutes: int
) -> None:
    found, renew_ms = expiry(longest)
    assert found == minutes
    assert 5 * MINUTE_MS <= renew_ms < found * MINUTE_MS
    if longest < timedelta(hours=40):
        assert timedelta(minutes=found) - timedelta(milliseconds=renew_ms) > longest


def test_handlers_without_a_time_out_are_covered_for_hours(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    worker = make(timedelta(seconds=1), None)
    worker.take()
    pace.settle()
    assert agent.asked[0]["ExpiresInMinutes"] == 180


def test_two_workers_of_a_process_share_the_task_s_protection(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    first, second = make(), make()
    assert len(_threads()) == 1
    first.take()
    second.take()
    pace.settle()
    first.settle()
    pace.advance(60_000)
    first.close()
    pace.advance(60_000)
    assert agent.states == [True]

    second.settle()
    pace.advance(QUIET_MS + LOOK_MS)
    assert agent.states == [True, False]


def test_the_last_worker_that_stops_takes_it_off_at_once(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    worker = make()
    worker.take()
    pace.settle()
    worker.settle()

    worker.close()

    assert agent.states == [True, False]
    eventually(lambda: not _threads())
    again = make()
    again.take()
    pace.settle()
    assert agent.states == [True, False, True]


def test_outside_ecs_there_is_no_thread_and_no_call(pace: ManualPace) -> None:
    for uri in (None, ""):
        holdings = Holdings()
        part = Protection(uri, holdings, TaskRegistry(), pace=pace, counters=Counters())
        part.start()
        part.wake()
        assert not _threads()
        part.close()
        part.wait(5)


# -- an agent that does not do it ----------------------------------------------------------------


def _refuses(code: int, body: bytes) -> Callable[[FakeAgent, dict[str, Any]], Answer]:
    return lambda agent, request: (code, body)


FAULTS = {
    "bad request": _refuses(*error(400, "InvalidParameterException")),
    "throttled": _refuses(*error(400, "ThrottlingException")),
    "not allowed": _refuses(*error(403, "AccessDeniedException")),
    "broken": _refuses(*error(500, "ServerException")),
    "refused with 200": _refuses(*failure("TASK_NOT_VALID")),
    "gateway": _refuses(504, b"<html>"),
    "redirect": _refuses(307, b""),
    "garbage": _refuses(200, b"\xff\x00{{{"),
    "empty": _refuses(200, b""),
    "deep": _refuses(200, b"[" * 60_000),
    "large": _refuses(200, b'{"protection": {"ProtectionEnabled": true}}' + b" " * 70_000),
    "list": _refuses(200, b"[1]"),
    "other state": lambda agent, request: told(
        {"protection": {"ProtectionEnabled": not request["ProtectionEnabled"]}}
    ),
    "a text for true": _refuses(200, b'{"protection": {"ProtectionEnabled": "true"}}'),
    "hangs up": lambda agent, request: None,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failures_are_logged_once_and_tried_again_with_growing_rests(
    agent: FakeAgent,
    pace: ManualPace,
    make: Callable[..., OneWorker],
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    worker = make()
    agent.fault = FAULTS[fault]
    with caplog.at_level(logging.INFO, "workhorse"):
        worker.take()
        pace.advance(300_000)
        calls = len(agent.asked)
        agent.fault = None
        pace.advance(61_000)

    # 1 s, doubled to a minute, each between a half and the whole.
    assert 300 / 60 + 4 < calls <= 300 / 30 + 8
    assert worker.errors == calls
    assert agent.protected
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "arn:" not in caplog.text
    assert "runs go on" in caplog.text


def test_the_log_says_what_is_to_be_done(
    agent: FakeAgent,
    pace: ManualPace,
    make: Callable[..., OneWorker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent.fault = FAULTS["not allowed"]
    make().take()
    pace.settle()
    assert (
        "task protection is not on: status 403, AccessDeniedException: "
        "the task's role needs ecs:UpdateTaskProtection"
    ) in caplog.text


def test_an_agent_that_is_away_and_comes_back_is_found_again(pace: ManualPace) -> None:
    with fake_agent() as before:
        worker = OneWorker(before, pace)
    worker.take()  # nobody listens there any more
    pace.advance(300_000)
    assert worker.errors > 3

    with fake_agent(port_of(before.uri)) as back:
        pace.advance(61_000)
        assert back.protected
        worker.settle()
        worker.close()
        assert back.states == [True, False]


def test_an_agent_that_stays_away_is_given_up_when_the_protection_has_expired(
    pace: ManualPace,
) -> None:
    with fake_agent() as agent:
        worker = OneWorker(agent, pace)
        worker.take()
        pace.settle()
        assert agent.protected
    worker.close()
    pace.advance(179 * MINUTE_MS)
    assert len(_threads()) == 1

    pace.advance(2 * MINUTE_MS)

    eventually(lambda: not _threads())


def test_a_call_whose_answer_was_lost_is_made_good_when_the_worker_is_idle_again(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    """The agent has done it, and hung up: the protection may be on, so it is taken off."""

    def done_and_gone(agent: FakeAgent, request: dict[str, Any]) -> None:
        agent.carry_out(request)

    worker = make()
    agent.fault = done_and_gone
    worker.take()
    eventually(lambda: agent.protected)
    worker.settle()
    agent.fault = None
    pace.advance(QUIET_MS + 2 * LOOK_MS)

    assert not agent.protected
    assert agent.states[-1] is False


def test_a_worker_that_stops_while_the_agent_fails_tries_at_once_and_then_later(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker]
) -> None:
    worker = make()
    worker.take()
    pace.settle()
    agent.fault = FAULTS["broken"]
    worker.settle()
    worker.close()
    assert agent.states == [True, False]

    agent.fault = None
    pace.advance(1_000)

    assert agent.states == [True, False, False]
    eventually(lambda: not _threads())


@pytest.mark.parametrize("seed", range(8))
def test_after_quiet_the_agent_s_last_state_is_the_worker_s(
    agent: FakeAgent, pace: ManualPace, make: Callable[..., OneWorker], seed: int
) -> None:
    """Whatever the agent did meanwhile: fail before the act, after it, or not at all."""
    draw = random.Random(seed)
    lock = threading.Lock()

    def whimsical(agent: FakeAgent, request: dict[str, Any]) -> Answer | None:
        with lock:
            act, answer = draw.random() < 0.5, draw.choice(["well", "broken", "garbage", "gone"])
        done = agent.carry_out(request) if act or answer == "well" else None
        if answer == "well":
            return done
        return None if answer == "gone" else cast("Any", FAULTS[answer])(agent, request)

    workers = [make(timedelta(minutes=5)), make()]
    for _ in range(6):
        agent.fault = whimsical
        for _ in range(draw.randint(5, 30)):
            worker = draw.choice(workers)
            if worker.busy and draw.random() < 0.6:
                worker.settle()
            elif len(worker.held) < 3:
                worker.take()
            pace.advance(draw.choice([0, 5, 500, 3_000, 20_000]))
        agent.fault = None
        pace.advance(QUIET_MS + 62_000)

        assert agent.protected is any(worker.busy for worker in workers)
        if agent.asked and not agent.protected:
            assert agent.states[-1] is False
    assert agent.most_busy <= 1


# -- the call ------------------------------------------------------------------------------------


@pytest.fixture
def raw_agent() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Serves one connection as a function says; for agents that no HTTP server would be."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(answer: Callable[[socket.socket], None]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):  # the other side has given up
                answer(client)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/api/x"

    yield serve
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for listener in listeners:
        listener.close()


def _silent(client: socket.socket) -> None:
    while client.recv(4_096):
        pass


def _drips(start: bytes) -> Callable[[socket.socket], None]:
    def drip(client: socket.socket) -> None:
        client.sendall(start)
        while True:
            time.sleep(0.02)  # more often than any time-out of a single read
            client.sendall(b"X-Y: z\r\n")

    return drip


@pytest.mark.parametrize(
    "answer",
    [_silent, _drips(b"HTTP/1.1 200 OK\r\n"), _drips(b"HTTP/1.1 200 OK\r\n\r\n{")],
    ids=["silent", "drips headers", "drips a body"],
)
def test_a_call_ends_in_time_however_slowly_the_agent_answers(
    raw_agent: Callable[[Callable[[socket.socket], None]], str],
    answer: Callable[[socket.socket], None],
) -> None:
    agent = EcsAgent(raw_agent(answer), limit_ms=300)
    with pytest.raises(AgentError, match=r"no answer within 0\.3 s"):
        agent.protect(10)


def test_a_proxy_of_the_environment_is_not_asked(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    EcsAgent(agent.uri).protect(10)
    assert agent.protected


@pytest.mark.parametrize(
    "uri",
    ["https://169.254.170.2/api", "169.254.170.2/api", "http://", "http://[::1", "http://h:x"],
)
def test_an_address_that_is_none_is_a_wrong_setting(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="ECS_AGENT_URI"):
        EcsAgent(uri)


# -- a worker ------------------------------------------------------------------------------------


def test_a_worker_in_ecs_is_protected_while_it_runs_something(rig: Rig, agent: FakeAgent) -> None:
    gate = Gate()
    rig.task("t", timeout=timedelta(minutes=30))(gate.come)
    run_id = rig.enqueue("t")
    worker = rig.worker(ecs_agent_uri=agent.uri)
    worker.start()
    gate.wait()
    eventually(lambda: agent.protected)
    assert agent.asked == [{"ProtectionEnabled": True, "ExpiresInMinutes": 45}]

    gate.open()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    worker.stop()

    assert agent.states == [True, False]
    eventually(lambda: not _threads())


def test_when_the_drain_is_over_it_is_taken_off_beside_what_is_cut_short(
    rig: Rig, agent: FakeAgent
) -> None:
    """Not behind it: a call that hangs must not bring the backstop on."""
    seen: list[list[bool]] = []

    def handler(ctx: Context) -> None:
        ctx.cancelled.wait(20)
        eventually(lambda: not agent.protected)
        seen.append(agent.states)

    rig.task("t")(handler)
    rig.enqueue("t")
    worker = rig.worker(ecs_agent_uri=agent.uri, shutdown=replace(QUICK, cancel_grace_ms=20_000))
    worker.start()
    eventually(lambda: agent.protected)

    worker.stop(0)

    assert seen == [[True, False]]


def test_an_agent_that_hangs_is_in_no_run_s_way(rig: Rig, agent: FakeAgent) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def hang(agent: FakeAgent, request: dict[str, Any]) -> None:
        asked.set()
        let_go.wait(30)

    agent.fault = hang
    rig.task("t")(lambda: None)
    worker = rig.worker(ecs_agent_uri=agent.uri)
    worker.start()
    first = rig.enqueue("t")
    assert asked.wait(10)
    behind = rig.enqueue_many("t", 20)

    eventually(lambda: all(rig.state(each) is RunState.SUCCEEDED for each in (first, *behind)))
    assert not let_go.is_set()
    assert worker.stop()
    agent.fault = None
    let_go.set()
    eventually(lambda: not _threads(), what="the protection's thread ends")


def test_a_worker_outside_ecs_has_no_thread_for_it(rig: Rig) -> None:
    rig.task("t")(lambda: None)
    run_id = rig.enqueue("t")
    rig.worker().start()
    eventually(lambda: rig.state(run_id) is RunState.SUCCEEDED)
    assert not _threads()


def test_what_the_agent_is_sent_is_what_ecs_documents(
    raw_agent: Callable[[Callable[[socket.socket], None]], str],
) -> None:
    seen: list[bytes] = []

    def note(client: socket.socket) -> None:
        seen.append(client.recv(65_536))
        while not seen[-1].endswith(b"}"):
            seen[-1] += client.recv(65_536)
        body = json.dumps({"protection": {"ProtectionEnabled": True}}).encode()
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    EcsAgent(raw_agent(note) + "/").protect(45)

    head, body = seen[0].split(b"\r\n\r\n")
    assert head.startswith(b"PUT /api/x/task-protection/v1/state HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    assert json.loads(body) == {"ProtectionEnabled": True, "ExpiresInMinutes": 45}
