"""Dead-letter queues: each of their messages is held against the store, then deleted.

A dead-lettered wakeup is harmless: its run is in the store, where the nets find it. What is done
here is to clear up, and to save those runs whose turn it is the wait for a net.

Source: docs/doctor.md
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from workhorse.client.publishing import Publisher
from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.names import check_queue
from workhorse.domain.runs import RunState
from workhorse.domain.sightings import Sighting
from workhorse.errors import ConfigurationError
from workhorse.ports import DeadLetters, Lane, LaneError, Message, Unreadable, dead_letters_of
from workhorse.store.base.database import Store
from workhorse.store.lifecycle.sighting import sight

_BATCH: Final = 10
SECONDS: Final = 300.0
"""How long a drain goes on at most, unless it is told."""


class Outcome(StrEnum):
    """What the store says of the run that a dead-lettered message names."""

    READY = "ready"
    """A new wakeup is sent, then the message is deleted."""
    PAUSED = "paused"
    """It is ready in a queue that is paused, which is woken when it is resumed."""
    RUNNING = "running"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    FINISHED = "finished"
    UNKNOWN = "unknown"
    """No run has that id."""
    UNREADABLE = "unreadable"
    NEWER_FORMAT = "newer_format"
    """Left where it is: a newer version can read it."""


class Ended(StrEnum):
    """Why a drain came to its end."""

    NO_QUEUE = "no_queue"
    """There is no dead-letter queue."""
    EMPTY = "empty"
    """Nothing is left that was not looked at."""
    MOST = "most"
    TIME = "time"
    NOT_SENT = "not_sent"
    """A wakeup could not be sent; its message was left where it is."""
    NOT_DELETED = "not_deleted"

    @property
    def bad(self) -> bool:
        """Whether something has to be done."""
        return self in (Ended.NOT_SENT, Ended.NOT_DELETED)


@dataclass(frozen=True, slots=True)
class DeadLetterQueue:
    """A queue's dead-letter queue; `name` is None where it has none.

    Args:
        messages: About how many it holds; None where the broker did not say.
        trouble: Why it did not.
    """

    queue: str
    name: str | None
    messages: int | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Drained:
    """What was done about one dead-letter queue.

    Args:
        ended: Why it is over; None while it goes on.
        looked_at: Messages that were held against the store.
        sent: Wakeups that were sent for ready runs.
        outcomes: How many messages there were of each `Outcome`.
    """

    queue: str
    name: str | None
    ended: Ended | None
    dry_run: bool = False
    looked_at: int = 0
    sent: int = 0
    deleted: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)


class DeadLetterCalls:
    """The calls of `app.admin` about dead-letter queues."""

    _store: Callable[[], Store]
    _lane: Callable[[], Lane]
    _publisher: Publisher
    _names: Callable[[], Sequence[str]]

    def dead_letters(self, queue: str | None = None) -> list[DeadLetterQueue]:
        """Return the dead-letter queues, with about how many messages they hold.

        Args:
            queue: Only that of this queue; None for all that are served or hold runs.

        Raises:
            ConfigurationError: The lane has no dead-letter queues.
        """
        find = self._finder()
        found = []
        for name in self._wanted(queue):
            try:
                box = find(name)
                there = None if box is None else (box.name, box.count())
            except LaneError as error:
                found.append(DeadLetterQueue(name, None, trouble=error.finding.sentence))
            except ConfigurationError as error:
                found.append(DeadLetterQueue(name, None, trouble=str(error)))
            else:
                found.append(DeadLetterQueue(name, *(there or (None,))))
        return found

    def drain_dead_letters(
        self,
        queue: str | None = None,
        *,
        most: int | None = None,
        seconds: float = SECONDS,
        dry_run: bool = False,
        progress: Callable[[Drained], object] | None = None,
    ) -> list[Drained]:
        """Hold each dead-lettered message against the store, and delete it.

        Where the run is ready, a new wakeup is sent first. It may be interrupted at any moment:
        what is in hand then comes back to the dead-letter queue.

        Args:
            queue: Only that of this queue; None for all that are served or hold runs.
            most: Look at no more messages than this.
            seconds: Begin nothing new after this time.
            dry_run: Send and delete nothing; the messages are put back at the end.
            progress: Told after each batch what was done for its queue so far.

        Raises:
            ConfigurationError: The lane has no dead-letter queues, or a number is below 1.
            LaneError: The broker refused; nothing was deleted that was not dealt with.
            StoreUnavailableError: The store does not answer; as above.
        """
        if (most is not None and most < 1) or seconds <= 0:
            raise ConfigurationError("most and seconds must be above zero")
        find = self._finder()
        deadline = time.monotonic() + seconds
        done: list[Drained] = []
        for name in self._wanted(queue):
            box = find(name)
            if box is None:
                done.append(Drained(name, None, Ended.NO_QUEUE, dry_run))
                continue
            left = None if most is None else most - sum(each.looked_at for each in done)
            drain = _Drain(name, box, self._store, self._publisher, dry_run=dry_run)
            done.append(drain.run(left, deadline, progress))
        return done

    def _finder(self) -> Callable[[str], DeadLetters | None]:
        lane = self._lane()
        find = dead_letters_of(lane)
        if find is None:
            raise ConfigurationError(
                f"{type(lane).__name__} has no dead-letter queues; give the lane that the fleet "
                "works over, e.g. --lane sqs"
            )
        return find

    def _wanted(self, queue: str | None) -> Sequence[str]:
        return self._names() if queue is None else [check_queue(queue)]


class _Drain:
    """One dead-letter queue on its way to be empty."""

    def __init__(
        self,
        queue: str,
        box: DeadLetters,
        store: Callable[[], Store],
        publisher: Publisher,
        *,
        dry_run: bool,
    ) -> None:
        self._queue = queue
        self._box = box
        self._store = store
        self._publisher = publisher
        self._dry_run = dry_run
        self._held: dict[str, Message] = {}
        """What is in hand: it is put back at the end, whatever ends it."""
        self._seen: set[str] = set()
        self._outcomes: Counter[Outcome] = Counter()
        self._sent = 0
        self._deleted = 0

    def run(
        self,
        most: int | None,
        deadline: float,
        progress: Callable[[Drained], object] | None,
    ) -> Drained:
        """Go on until nothing is left to look at, or an end is set."""
        try:
            while True:
                ended = self._batch(most, deadline)
                if ended is not None:
                    return self._so_far(ended)
                if progress is not None:
                    progress(self._so_far(None))
        finally:
            if self._held:
                with suppress(LaneError):  # then they are visible again by themselves
                    self._box.show_again(list(self._held.values()))

    def _batch(self, most: int | None, deadline: float) -> Ended | None:
        """Deal with some messages; answer why that was the end, None where it goes on."""
        left = _BATCH if most is None else min(_BATCH, most - len(self._seen))
        if left < 1:
            return Ended.MOST
        if time.monotonic() >= deadline:
            return Ended.TIME
        # By id: a broker may hand a message out twice, and the later handle is the one that counts.
        messages = {message.message_id: message for message in self._box.receive(left)}
        self._held.update(messages)
        fresh = [message for each, message in messages.items() if each not in self._seen]
        if not fresh:
            return Ended.EMPTY  # or what was looked at before has come back
        sightings = self._store().read(sight, _ids(fresh))
        self._seen.update(message.message_id for message in fresh)
        judged = [(message, _outcome(message, sightings)) for message in fresh]
        self._outcomes.update(outcome for _message, outcome in judged)
        if self._dry_run:
            return None
        return self._deal_with(judged, sightings)

    def _deal_with(
        self, judged: Sequence[tuple[Message, Outcome]], sightings: dict[RunId, Sighting]
    ) -> Ended | None:
        ready = _ids([message for message, outcome in judged if outcome is Outcome.READY])
        report = self._publisher.publish([Hint(each, sightings[each].queue) for each in ready])
        self._sent += report.sent
        keep = {Outcome.NEWER_FORMAT}
        if report.failed:
            keep.add(Outcome.READY)  # which of them is not known
        done_with = [message for message, outcome in judged if outcome not in keep]
        # Only now: whoever dies before it has done nothing but sent a wakeup twice.
        deleted = self._box.delete(done_with) if done_with else ()
        self._deleted += len(deleted)
        for message in deleted:
            del self._held[message.message_id]
        if report.failed:
            return Ended.NOT_SENT
        return Ended.NOT_DELETED if len(deleted) < len(done_with) else None

    def _so_far(self, ended: Ended | None) -> Drained:
        return Drained(
            self._queue,
            self._box.name,
            ended,
            self._dry_run,
            len(self._seen),
            self._sent,
            self._deleted,
            {each.value: self._outcomes[each] for each in Outcome if self._outcomes[each]},
        )


def _ids(messages: Sequence[Message]) -> list[RunId]:
    return list(
        dict.fromkeys(
            message.content.run_id
            for message in messages
            if not isinstance(message.content, Unreadable)
        )
    )


def _outcome(message: Message, sightings: dict[RunId, Sighting]) -> Outcome:
    content = message.content
    if isinstance(content, Unreadable):
        newer = content is Unreadable.NEWER_FORMAT
        return Outcome.NEWER_FORMAT if newer else Outcome.UNREADABLE
    sighting = sightings.get(content.run_id)
    if sighting is None:
        return Outcome.UNKNOWN
    if sighting.state is RunState.READY:
        return Outcome.PAUSED if sighting.queue_paused else Outcome.READY
    return Outcome.FINISHED if sighting.state.finished else Outcome(sighting.state.value)
