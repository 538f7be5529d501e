"""What becomes of the messages of one receive: claims, in-place mending, and their fates.

Source: docs/design.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from workhorse.handlers.registry import TaskRegistry
from workhorse.ports import Message, Unreadable, Wakeup
from workhorse.runtime.claimer import Claimer
from workhorse.runtime.slots import Slots
from workhorse.store.claiming import Claim
from workhorse.telemetry import Counters, Metric, get_logger

if TYPE_CHECKING:
    from workhorse.store.cursors import Cursor, Head

_log = get_logger("worker")

AT_ONCE: Final = ShowAgain(0)


class Receipt:
    """The messages of one receive, and what is decided about them.

    `fates` may be read at any time: what is not in it yet is kept by the broker and comes back.
    """

    def __init__(self, messages: Sequence[Message], counters: Counters) -> None:
        self.fates: list[tuple[Message, Fate]] = []
        self._counters = counters
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
    def ids(self) -> list[RunId]:
        """The runs that are named and not decided about."""
        return list(self._named)

    def give_back(self) -> None:
        """Show again what nothing was decided about: no slot is free."""
        for run_id in self.ids:
            self._decide(self._named.pop(run_id), AT_ONCE, Note.CROWDED)

    def claim(
        self,
        claimer: Claimer,
        reserved: int,
        cursor: Cursor | Head | None,
        *,
        registry: TaskRegistry,
        slots: Slots,
        publish: Callable[[Sequence[Hint]], None],
    ) -> Claim:
        """Claim the named runs, fill up by scan, and decide about every message.

        Args:
            reserved: Slots that were reserved for the claim.
            cursor: Where the scan starts.
            publish: Sends the wakeups of runs that were recovered in place.

        Raises:
            StoreUnavailableError: No answer; messages without a fate are kept.
        """
        ids = self.ids
        claim = claimer.take(ids, reserved, scan=True, cursor=cursor)
        taken = self._taken(run.id for run in claim.runs)
        if not self._named:
            return claim
        room = taken < reserved
        seen = claimer.sight(self.ids)
        overdue = {
            run_id: each
            for run_id, each in seen.items()
            if each.overdue and each.queue == claimer.queue and each.task in registry
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
        self._judge(claimer.queue, seen, registry, room=room)
        return claim

    def _taken(self, run_ids: Iterable[RunId]) -> int:
        named = [run_id for run_id in run_ids if run_id in self._named]
        for run_id in named:
            self._decide(self._named.pop(run_id), DELETE, Note.CLAIMED)
        return len(named)

    def _judge(
        self, queue: str, seen: dict[RunId, Sighting], registry: TaskRegistry, *, room: bool
    ) -> None:
        for run_id in self.ids:
            sighting = seen.get(run_id)
            for message in self._named.pop(run_id):
                fate, note = fate_of(
                    sighting,
                    queue=queue,
                    known_task=sighting is not None and sighting.task in registry,
                    seen_before=message.receive_count > 1,
                    room=room,
                )
                self._decide([message], fate, note)

    def _decide(self, messages: Sequence[Message], fate: Fate, note: str) -> None:
        self.fates.extend((message, fate) for message in messages)
        self._counters.add(Metric.MESSAGES, len(messages), label=note)
