"""What becomes of the messages of one receive: claims, in-place mending, and their fates.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workhorse.domain.hints import Hint
from workhorse.domain.ids import RunId
from workhorse.domain.sightings import (
    DELETE,
    NEWER_FORMAT_AGAIN_MS,
    Fate,
    Note,
    ShowAgain,
    Sighting,
    fate_of,
)
from workhorse.ports import Message, Unreadable, Wakeup
from workhorse.runtime.claims.claimer import Claimer
from workhorse.runtime.claims.slots import Slots
from workhorse.store.lifecycle.claiming import Claim
from workhorse.telemetry import Counters, Metric, get_logger

if TYPE_CHECKING:
    from workhorse.store.lifecycle.cursors import Cursor, Head

_log = get_logger("worker")

AT_ONCE: Final = ShowAgain(0)


def looked_at_before(message: Message) -> bool:
    """Whether a message was shown before, or its like: then its run's commit had time to come."""
    content = message.content
    missed = isinstance(content, Wakeup) and content.missed > 0
    return message.receive_count > 1 or missed


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a message, and what is counted about it."""

    message: Message
    fate: Fate
    note: str


class Receipt:
    """The messages of one receive, and what is decided about them.

    `decisions` may be read at any time: what is not in it yet is kept by the broker and comes back.

    Args:
        messages: The messages.
        counters: Where to count.
        seen_before: Whether a message whose run is not there has been looked at before.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        counters: Counters,
        *,
        seen_before: Callable[[Message], bool] = looked_at_before,
    ) -> None:
        self.decisions: list[Decision] = []
        self._counters = counters
        self._seen_before = seen_before
        self._named: dict[RunId, list[Message]] = {}
        for message in messages:
            content = message.content
            if isinstance(content, Wakeup):
                self._named.setdefault(content.run_id, []).append(message)
            elif content is Unreadable.NEWER_FORMAT:
                self._decide([message], ShowAgain(NEWER_FORMAT_AGAIN_MS), content.value)
            else:
                _log.warning("message %s cannot be read; it is deleted", message.message_id)
                self._decide([message], DELETE, content.value)

    @property
    def fates(self) -> list[tuple[Message, Fate]]:
        """The messages that were decided about, each with its fate."""
        return [(each.message, each.fate) for each in self.decisions]

    @property
    def ids(self) -> list[RunId]:
        """The runs that are named and not decided about."""
        return list(self._named)

    def give_back(self) -> None:
        """Show again what nothing was decided about: no slot is free, or no time is left."""
        for run_id in self.ids:
            self._decide(self._named.pop(run_id), AT_ONCE, Note.CROWDED)

    def turn_away(self) -> None:
        """Delete what nothing was decided about: its queue is not served here."""
        for run_id in self.ids:
            self._decide(self._named.pop(run_id), DELETE, Note.OTHER_QUEUE)

    def split(self) -> list[Receipt]:
        """Hand what nothing was decided about to receipts of one run each."""
        apart = [
            Receipt(messages, self._counters, seen_before=self._seen_before)
            for messages in self._named.values()
        ]
        self._named.clear()
        return apart

    def claim(
        self,
        claimer: Claimer,
        reserved: int,
        cursor: Cursor | Head | None,
        *,
        known: Container[str],
        slots: Slots,
        publish: Callable[[Sequence[Hint]], None],
        scan: bool = True,
        fits: Callable[[str], bool] | None = None,
        patient: bool = False,
    ) -> Claim:
        """Claim the named runs, fill up by scan, and decide about every message.

        Args:
            reserved: Slots that were reserved for the claim.
            cursor: Where the scan starts.
            known: The tasks that are known here.
            publish: Sends the wakeups of runs that were recovered in place.
            scan: Whether to fill up.
            fits: Whether there is time for a task just now; by default there always is.
            patient: Whether what found no slot waits for the next call, undecided.

        Raises:
            StoreUnavailableError: No answer; messages without a fate are kept.
        """
        ids = self.ids
        claim = claimer.take(ids, reserved, scan=scan, cursor=cursor)
        taken = self._taken(run.id for run in claim.runs)
        if not self._named:
            return claim
        room = taken < reserved
        seen = claimer.sight(self.ids)
        overdue = {
            run_id: each
            for run_id, each in seen.items()
            if each.overdue and each.queue == claimer.queue and each.task in known
        }
        if overdue:
            hints = claimer.mend(overdue)
            with slots.turn(claimer.queue) as turn:
                more = turn.reserve(len(overdue), 0)
            mended = claimer.take(list(overdue), more, scan=False).runs if more else []
            self._taken(run.id for run in mended)
            # Others among them were freed by the end of a run, and nobody else wakes them.
            running = {run.id for run in mended}
            publish([hint for hint in hints if hint.run_id not in running])
            room = room and len(mended) < more
            seen = claimer.sight(self.ids)
        for run_id in self.ids:
            self._judge(
                run_id,
                seen.get(run_id),
                queue=claimer.queue,
                known=known,
                room=room,
                fits=fits,
                patient=patient,
            )
        return claim

    def _taken(self, run_ids: Iterable[RunId]) -> int:
        named = [run_id for run_id in run_ids if run_id in self._named]
        for run_id in named:
            self._decide(self._named.pop(run_id), DELETE, Note.CLAIMED)
        return len(named)

    def _judge(
        self,
        run_id: RunId,
        sighting: Sighting | None,
        *,
        queue: str,
        known: Container[str],
        room: bool,
        fits: Callable[[str], bool] | None,
        patient: bool,
    ) -> None:
        in_time = sighting is None or fits is None or fits(sighting.task)
        judged = [
            (
                message,
                *fate_of(
                    sighting,
                    queue=queue,
                    known_task=sighting is not None and sighting.task in known,
                    seen_before=self._seen_before(message),
                    room=room and in_time,
                ),
            )
            for message in self._named[run_id]
        ]
        if patient and in_time and any(note is Note.CROWDED for _, _, note in judged):
            return
        del self._named[run_id]
        for message, fate, note in judged:
            self._decide([message], fate, note)

    def _decide(self, messages: Sequence[Message], fate: Fate, note: str) -> None:
        self.decisions.extend(Decision(message, fate, note) for message in messages)
        self._counters.add(Metric.MESSAGES, len(messages), label=note)
