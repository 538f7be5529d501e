"""A lane that keeps what it is handed, and looks at the store as a worker would at that moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workhorse.domain.findings import Finding
from workhorse.domain.ids import RunId
from workhorse.ports import Outgoing, Receiver, SendReport


@dataclass
class Sent:
    """One wakeup, and what stood around it when it was handed to the lane."""

    outgoing: Outgoing
    seen: bool
    """Whether the run could be seen over another connection."""
    thread: int
    form: str
    """`send` or `send_async`."""

    @property
    def run_id(self) -> RunId:
        return self.outgoing.wakeup.run_id


@dataclass
class RecordingLane:
    """Carries nothing. `look` says whether a run is visible from elsewhere."""

    look: Callable[[RunId], bool]
    reach: int = 900_000
    error: Exception | None = None
    report: Callable[[int], SendReport] = lambda count: SendReport(sent=count)
    gate: threading.Event | None = None
    """Where it is set, a send waits for it."""
    at_gate: int = 0
    """How many sends have come to the gate."""
    problems: dict[str, list[Finding]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    carries_messages: bool = True
    closed: int = 0

    @property
    def ids(self) -> list[RunId]:
        return [each.run_id for each in self.sent]

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        if self.gate is not None:
            self.at_gate += 1
            assert self.gate.wait(10)
        return self._take(outgoing, "send")

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        return self._take(outgoing, "send_async")

    def _take(self, outgoing: Sequence[Outgoing], form: str) -> SendReport:
        self.calls.append(len(outgoing))
        if self.error is not None:
            raise self.error
        thread = threading.get_ident()
        self.sent += [Sent(each, self.look(each.wakeup.run_id), thread, form) for each in outgoing]
        return self.report(len(outgoing))

    def receiver(self, queue: str) -> Receiver:
        raise AssertionError("no test of a client receives")

    def reach_ms(self, queue: str) -> int:
        return self.reach

    def backlog(self, queue: str) -> int | None:
        return 0

    def check(self, queue: str) -> Sequence[Finding]:
        if self.error is not None:
            raise self.error
        return self.problems.get(queue, [])

    def close(self) -> None:
        self.closed += 1
