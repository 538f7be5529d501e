"""A lane whose broker says what the test wants it to say."""

from __future__ import annotations

from collections.abc import Sequence

from workhorse.domain.findings import Finding
from workhorse.domain.hints import Hint
from workhorse.ports import Outgoing, Receiver, SendReport

REACH_MS = 900_000


class TalkingLane:
    """Says how many messages are visible; `None` says that it has none, an error is raised."""

    carries_messages = True

    def __init__(self, **backlogs: int | Exception | None) -> None:
        self.backlogs = backlogs
        self.asked: list[str] = []

    def reach_ms(self, queue: str) -> int:
        return REACH_MS

    def backlog(self, queue: str) -> int | None:
        self.asked.append(queue)
        said = self.backlogs.get(queue, 0)
        if isinstance(said, Exception):
            raise said
        return said

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        raise AssertionError("maintenance publishes through what it was given")

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        raise AssertionError("maintenance publishes through what it was given")

    def receiver(self, queue: str) -> Receiver:
        raise AssertionError("maintenance receives nothing")

    def check(self, queue: str) -> Sequence[Finding]:
        return ()

    def close(self) -> None:
        pass


class Outbox:
    """Takes the wakeups that are published."""

    def __init__(self) -> None:
        self.pages: list[list[Hint]] = []

    def __call__(self, hints: Sequence[Hint]) -> None:
        self.pages.append(list(hints))

    @property
    def hints(self) -> list[Hint]:
        """All of them, in order."""
        return [hint for page in self.pages for hint in page]
