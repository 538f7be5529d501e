"""Messages that are sent anew, over a broker that fails: none is lost, and time is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from workhorse.domain.ids import new_run_id
from workhorse.domain.sightings import Note, ShowAgain
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import Message, Outgoing, SendReport, Wakeup
from workhorse.runtime.claims.receipts import Decision
from workhorse.runtime.functions.remaining import TimeLeft
from workhorse.runtime.functions.replacing import Replacements
from workhorse.telemetry import Counters

Answer = Callable[[Sequence[Outgoing]], SendReport]


class Broker:
    """A lane that answers as it is told to; a call takes the function's time."""

    def __init__(self, *, takes_ms: float, left_ms: float, answer: Answer) -> None:
        self.left_ms = left_ms
        self.calls: list[int] = []
        self.has: set[str] = set()
        self._takes_ms = takes_ms
        self._answer = answer

    def reach_ms(self, _queue: str) -> int:
        return 900_000

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        self.calls.append(len(outgoing))
        self.left_ms -= self._takes_ms
        report = self._answer(outgoing)
        self.has.update(each.wakeup.run_id for each in outgoing[: report.sent])
        return report


def all_taken(outgoing: Sequence[Outgoing]) -> SendReport:
    return SendReport(sent=len(outgoing), failed=0)


def none_taken(outgoing: Sequence[Outgoing]) -> SendReport:
    return SendReport(sent=0, failed=len(outgoing), error="TimeoutError")


def broken_off(_outgoing: Sequence[Outgoing]) -> SendReport:
    raise ConnectionError


def one_of_several(outgoing: Sequence[Outgoing]) -> SendReport:
    return all_taken(outgoing[:1]) if len(outgoing) == 1 else SendReport(1, len(outgoing) - 1)


def some_then_none(outgoing: Sequence[Outgoing]) -> SendReport:
    return SendReport(1, len(outgoing) - 1) if len(outgoing) > 1 else none_taken(outgoing)


@pytest.mark.parametrize(
    ("answer", "takes_ms", "calls"),
    [
        pytest.param(all_taken, 10, [10] * 10, id="all_taken"),
        pytest.param(none_taken, 2_000, [10, 10], id="none_taken"),
        pytest.param(broken_off, 2_000, [10, 10], id="broken_off"),
        pytest.param(some_then_none, 2_000, [10, 1, 1], id="some_then_none"),
        # 20 s with a reserve of 6: in its last 3.6 s nothing is sent any more.
        pytest.param(all_taken, 3_000, [10] * 6, id="slowly"),
        pytest.param(one_of_several, 2_000, [10] + [1] * 8, id="one_by_one_and_slowly"),
    ],
)
def test_a_broker_that_fails_takes_little_time(
    answer: Answer, takes_ms: float, calls: list[int]
) -> None:
    broker = Broker(takes_ms=takes_ms, left_ms=20_000, answer=answer)
    time = TimeLeft(lambda: broker.left_ms, TaskRegistry(), default_ms=9_000)
    messages = [Message(f"m-{n}", Wakeup(new_run_id(), "default")) for n in range(100)]
    replacements = Replacements(broker, Counters(), time)  # type: ignore[arg-type]

    replacements.take(Decision(message, ShowAgain(5_000), Note.EARLY) for message in messages)

    assert broker.calls == calls
    assert broker.left_ms >= 0
    kept = {message.content.run_id for message in replacements.kept}  # type: ignore[union-attr]
    assert kept | broker.has == {message.content.run_id for message in messages}  # type: ignore[union-attr]
