"""What a lane offers to Workhorse, and what it is handed.

A lane carries wakeups: hints that name a run and nothing else. It may lose, double, delay and
reorder them; the store holds the truth, and two nets find what a lane lost. So a lane needs no
acknowledgement, no ordering and no store of its own, and its contract is small.

A lane is found by its name in the entry-point group `workhorse.lanes`; the entry is a class with a
class method `open(context)`, see `LaneFactory`. `workhorse.testing.LaneSuite` is the conformance
suite that every lane passes.

Source: docs/design.md, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, runtime_checkable

from workhorse.domain.findings import Finding
from workhorse.domain.ids import RunId
from workhorse.domain.sightings import Fate

if TYPE_CHECKING:
    from workhorse.settings import Settings
    from workhorse.telemetry import Counters


@dataclass(frozen=True, slots=True)
class Wakeup:
    """The hint itself: look at this run."""

    run_id: RunId
    queue: str
    traceparent: str | None = None
    missed: int = 0
    """How often its run was not there. A wakeup that is sent in place of another one carries it
    on: whoever gets it sees a message that the broker has handed out for the first time."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A wakeup to be sent, to arrive after `delay_ms` at the earliest where the lane can."""

    wakeup: Wakeup
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class SendReport:
    """How a send went. `error` describes the last failure, without payloads or credentials."""

    sent: int = 0
    failed: int = 0
    error: str | None = None


class Unreadable(StrEnum):
    """Why a message's body names no run."""

    MALFORMED = "malformed"
    NEWER_FORMAT = "newer_format"


@dataclass(frozen=True, slots=True)
class Message:
    """A wakeup as it was received, to be deleted or shown again.

    Args:
        message_id: The broker's id of the message; may be logged.
        content: The wakeup, or why there is none.
        receive_count: How often the broker has handed the message out, this time included. It is
            never an attempt of the run.
        handle: What the lane needs to settle the message; nobody else looks at it.
    """

    message_id: str
    content: Wakeup | Unreadable
    receive_count: int = 1
    handle: object = field(default=None, repr=False)


class LaneError(Exception):
    """A failure whose cause the lane knows: what it raises where it can say more than a type."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.sentence)
        self.finding = finding


class Receiver(Protocol):
    """Takes messages of one queue for one worker. Used by one thread, but for `close`."""

    def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """Return up to `limit` messages, waiting up to `wait_ms` for the first.

        A lane may return more than one and fewer than `limit`; it never returns more. It may raise
        any exception when the broker fails, whose text is logged and so holds no credentials, best
        a `LaneError`; the caller backs off and calls again. After `close` it returns an empty list.
        """
        ...

    def settle(self, fates: Sequence[tuple[Message, Fate]]) -> None:
        """Delete messages or show them again. Never raises: what fails comes back by itself."""
        ...

    def close(self) -> None:
        """End a receive that is under way, soon; from any thread, any number of times."""
        ...


@runtime_checkable
class Lane(Protocol):
    """A way for wakeups to travel. All calls may come from several threads at once."""

    carries_messages: bool
    """Whether workers receive messages. Where they do not, workers find runs by scanning, and
    `Receiver.receive` only waits (it may end early when it knows of new work)."""

    def send(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """Send wakeups; two tries, 2 s in all. Never raises for the broker: the nets are there."""
        ...

    async def send_async(self, outgoing: Sequence[Outgoing]) -> SendReport:
        """As `send`, without blocking the event loop."""
        ...

    def receiver(self, queue: str) -> Receiver:
        """Return a receiver of a queue's messages."""
        ...

    def reach_ms(self, queue: str) -> int:
        """Return how far ahead a delayed wakeup may be sent on this queue; 0 where not at all."""
        ...

    def backlog(self, queue: str) -> int | None:
        """Return about how many messages are visible in a queue; None where the lane has none.

        May raise any exception when the broker fails, whose text is logged.
        """
        ...

    def check(self, queue: str) -> Sequence[Finding]:
        """Return what is wrong with a queue, or worth knowing of it; empty when nothing is.

        It is what an operator asks, who may look at the broker's settings. It may raise any
        exception, whose text is not shown.
        """
        ...

    def close(self) -> None:
        """Let go of connections and threads; any number of times."""
        ...


Announce: TypeAlias = Callable[[Collection[str]], Collection[str]]
"""Takes queues for which runs are being stored, and returns those whose bells may be rung within
that transaction. The others' wakeups are sent once it has committed, as on any lane, and so are
those that the store does not ring for. It is quick, never raises, and may be called again for the
same runs."""


def announce_of(lane: Lane) -> Announce | None:
    """Return a lane's `announce`, an optional method of type `Announce`; None where it has none.

    It is for a lane whose wakeups can travel in the store's own transaction: one commit does both,
    and what is rolled back wakes nobody.
    """
    return getattr(lane, "announce", None)


Probe: TypeAlias = Callable[[str], Sequence[Finding]]
"""Tries, without any effect, whether this process may do with a queue what a worker does; returns
what is in the way. It may take seconds, and never raises."""


def probe_of(lane: Lane) -> Probe | None:
    """Return a lane's `probe`, an optional method of type `Probe`; None where it has none."""
    return getattr(lane, "probe", None)


def warm_up(lane: Lane) -> None:
    """Have a lane get ready to send, in the background, where it takes long to and says how.

    That is `warm_up`, an optional method, which returns at once and never raises.
    """
    get_ready: Callable[[], None] | None = getattr(lane, "warm_up", None)
    if get_ready is not None:
        get_ready()


class BatchItemFailure(TypedDict):
    """A message that the broker is to keep, as AWS words it."""

    itemIdentifier: str
    """The message's id."""


class BatchResponse(TypedDict):
    """What a function answers to a batch of messages with ReportBatchItemFailures."""

    batchItemFailures: list[BatchItemFailure]


class Activations(Protocol):
    """Runs what messages name, within one invocation of a function."""

    def serve(
        self, messages: Sequence[Message], time_left_ms: Callable[[], float]
    ) -> Collection[str]:
        """Look at messages, run what can be run, and return before the time is over.

        A message that should come back is sent anew, with its delay.

        Args:
            messages: What the function was handed.
            time_left_ms: Says how much time the invocation has left.

        Returns:
            The ids of the messages that the broker is to keep: those that could neither be looked
            at nor be sent anew.

        Raises:
            ConfigurationError: The function's time is too short for any of its tasks.
            SchemaMismatchError: The database's schema does not fit.
        """
        ...


class EventSource(Protocol):
    """Turns what a function is invoked with into messages, and answers in the broker's words."""

    def handle(self, event: Any, time_left_ms: Callable[[], float]) -> Any:
        """Serve one invocation; return what the function answers.

        Raises:
            InvalidEventError: The event is none of this source's.
        """
        ...


class EventSourceFactory(Protocol):
    """The class that an entry point of `workhorse.event_sources` names."""

    @classmethod
    def open(cls, activations: Activations) -> EventSource:
        """Open the source; nothing is called."""
        ...


class SecretReader(Protocol):
    """Reads what must not stand in a setting from where it is kept. Safe in threads."""

    def read(self, name: str) -> str:
        """Return a secret's current text.

        It may block for some seconds, and raise anything; its errors never hold the secret.
        """
        ...


class SecretReaderFactory(Protocol):
    """The class that an entry point of `workhorse.secrets` names."""

    @classmethod
    def open(cls, settings: Settings) -> SecretReader:
        """Open the reader; nothing is called."""
        ...


class DeadLetters(Protocol):
    """Where a queue's messages go that were received too often, for one who looks through them.

    Calls block for seconds at most and raise `LaneError` where they fail.
    """

    name: str
    """What the broker calls it."""

    def count(self) -> int:
        """Return about how many messages it holds."""
        ...

    def receive(self, limit: int) -> Sequence[Message]:
        """Return up to `limit` messages, or fewer; none where it seems to hold no more.

        They come back by themselves if nothing is done with them.
        """
        ...

    def delete(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Delete messages; returns those that were deleted."""
        ...

    def show_again(self, messages: Sequence[Message]) -> None:
        """Put messages back, now."""
        ...


def dead_letters_of(lane: Lane) -> Callable[[str], DeadLetters | None] | None:
    """Return a lane's `dead_letters`, an optional method; None where it has none.

    It takes a queue's name and returns its dead-letter queue, or None where that queue has none.
    """
    return getattr(lane, "dead_letters", None)


class BellLine(Protocol):
    """One connection that rings and hears bells, one for each queue; of one store.

    Used by one thread, but for `interrupt`. Whatever raises `StoreUnavailableError` here has ended
    the line: it is to be closed, and another opened.
    """

    def hear(self, queues: Collection[str], wait_ms: float) -> Collection[str]:
        """Return the queues, of these, whose bells were rung since the last call.

        It waits up to `wait_ms` for the first. A queue that this line was not told of before counts
        as rung: what was rung earlier went by unheard.

        Raises:
            StoreUnavailableError: The line is dead.
        """
        ...

    def ring(self, queues: Collection[str]) -> None:
        """Ring the bells of queues, now: whoever listens hears it, this line too.

        Raises:
            StoreUnavailableError: The line is dead; the bells may have been rung.
        """
        ...

    def interrupt(self) -> None:
        """End a wait that is under way, or the next one, at once; from any thread."""
        ...

    def close(self) -> None:
        """Let go of the connection; any number of times."""
        ...


class Bells(Protocol):
    """The bells of a store's queues, which its database rings and hears."""

    def ring(self, queues: Collection[str]) -> None:
        """Ring the bells of queues over the store's own connections, as an enqueue does.

        Raises:
            StoreUnavailableError: The database did not answer.
        """
        ...

    def open_line(self) -> BellLine:
        """Open a line, over a connection of its own; it takes seconds at most.

        Raises:
            StoreUnavailableError: The database did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class LaneContext:
    """What a lane is handed when it is opened.

    Args:
        settings: The process's settings.
        counters: Where to count.
        bells: Returns where the database can ring; None where it cannot. It is not connected to.
    """

    settings: Settings
    counters: Counters
    bells: Callable[[], Bells | None] = lambda: None


class LaneFactory(Protocol):
    """The class that an entry point of `workhorse.lanes` names."""

    @classmethod
    def open(cls, context: LaneContext) -> Lane:
        """Open the lane. No call to the broker is made yet.

        Raises:
            ConfigurationError: A setting that the lane needs is missing or wrong.
        """
        ...
