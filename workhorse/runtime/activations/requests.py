"""What waits for the writer: what handlers ask for on their way, and how activations end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from workhorse.domain.outcomes import Finish, Suspend
from workhorse.domain.recording import NewProgress, ReadValue, Record, RecordAnswer
from workhorse.domain.runs import Lease
from workhorse.handlers.recording import Pending

if TYPE_CHECKING:
    from workhorse.runtime.activations.activation import Activation
    from workhorse.runtime.activations.recorder import ActivationRecorder


@dataclass(slots=True, eq=False)
class ToRecord:
    """A boundary that a handler waits for."""

    recorder: ActivationRecorder
    record: Record
    pending: Pending[RecordAnswer] = field(default_factory=Pending)
    taken: bool = False
    """Whether the store has answered."""

    @property
    def lease(self) -> Lease:
        """The lease that it is written under."""
        return self.record.lease

    @property
    def done(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.taken or self.pending.done

    @property
    def size(self) -> int:
        """About how many characters it puts into a batch."""
        boundary, child = self.record.boundary, self.record.child
        size = len(boundary.value or "") + len(boundary.detail or "")
        return size if child is None else size + len(child.run.payload)


@dataclass(slots=True, eq=False)
class ToRead:
    """A value that a handler waits for."""

    recorder: ActivationRecorder
    request: ReadValue
    pending: Pending[str | None] = field(default_factory=Pending)
    taken: bool = False

    @property
    def lease(self) -> Lease:
        """The lease of the activation that asks; reading needs none."""
        return self.recorder.lease

    @property
    def done(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.taken or self.pending.done


@dataclass(slots=True, eq=False)
class ToProgress:
    """What a run says of its progress; `value` is the latest when the writer comes to it."""

    recorder: ActivationRecorder
    value: NewProgress | None = None
    taken: bool = False

    @property
    def lease(self) -> Lease:
        """The lease that it is written under."""
        return self.recorder.lease

    @property
    def done(self) -> bool:
        """Whether there is nothing to write any more."""
        return self.taken


class ToSettle:
    """An activation that has ended; `progress` is what it said last and nobody has written."""

    __slots__ = ("activation", "lease", "progress")

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        self.lease: Final[Lease] = activation.lease
        """The lease that is given up."""
        self.progress: NewProgress | None = None

    @property
    def done(self) -> bool:
        """Whether it is settled."""
        return self.activation.settled

    @property
    def size(self) -> int:
        """About how many characters it puts into a batch."""
        settlement = self.activation.settlement
        if type(settlement) is Finish:
            return 0 if settlement.result is None else len(settlement.result)
        if type(settlement) is Suspend:
            return sum(len(each.new.detail or "") for each in settlement.waits if each.new)
        return 0


Item: TypeAlias = ToRecord | ToRead | ToProgress | ToSettle
