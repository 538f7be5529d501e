"""Boundaries and deliveries: what a durable handler has passed, and what came for it from outside.

A *boundary* is a named row that only the holder of the run's lease writes: a checkpoint's value, or
a wait that was reached. A *delivery* is a row that only the outside writes, under the run's lock: a
signal, a decision, a token's value, a child's end, and also the time-out of a wait, or that it was
closed. Both are written once; the first stands. A wait is settled when there is a delivery of its
kind and name; a timer when its time has come. So who came first is one question to one key, and a
boundary never changes after its insert.

Source: docs/design.md, section 7; docs/adr/0012-boundaries-and-deliveries.md
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

MAX_BOUNDARIES: Final = 10_000
MAX_BOUNDARY_BYTES: Final = 64 * 1024 * 1024
"""What the values of a run's boundaries may take together, as compact JSON."""
MAX_CHECKPOINT_BYTES: Final = 1024 * 1024
MAX_OPEN_WAITS: Final = 1_000
MAX_UNREAD: Final = 1_000
"""Signals and decisions that may lie with a run before a wait has asked for them."""
LOADED_BYTES: Final = 256 * 1024
"""What comes of a run's values with its claim; the others are read by name when reached."""


class BoundaryKind(StrEnum):
    """What a boundary is. A name keeps its kind for the life of the run."""

    CHECKPOINT = "checkpoint"
    """The stored result of a stage, of `checkpoint` or `transaction`."""
    TIMER = "timer"
    """`sleep`, `sleep_until`: passed at `wake_at`."""
    SIGNAL = "signal"
    HUMAN = "human"
    """A wait for an operator's decision; `detail` is the context that is shown."""
    REFERENCE = "reference"
    """`ctx.token`: `value` is the reference that was made."""
    TOKEN = "token"  # noqa: S105 - a kind of wait
    """A wait for a token; `detail` is its reference."""
    CHILD = "child"
    """A run that was started; `detail` is its id, and its end is the delivery."""
    GROUP = "group"
    """`ctx.children`: what was decided once for all of them."""
    ANY = "any"
    """`ctx.wait_any`, once decided: `value` names the winner."""
    PATCH = "patch"
    """`ctx.patched`: `value` says which branch the run takes."""


AWAITED: Final = frozenset(
    {BoundaryKind.SIGNAL, BoundaryKind.HUMAN, BoundaryKind.TOKEN, BoundaryKind.CHILD}
)
"""The kinds that a delivery settles."""
WAITS: Final = AWAITED | {BoundaryKind.TIMER}


class DeliveryState(StrEnum):
    """What a delivery brought."""

    VALUE = "value"
    TIMED_OUT = "timed_out"
    """The wait's time came first."""
    CLOSED = "closed"
    """Another of `wait_any` came first; nothing more is taken under this name."""
    FAILED = "failed"
    """A child has failed: `value` says how, see `ChildEnd`."""
    CANCELLED = "cancelled"
    """A child was cancelled."""


@dataclass(slots=True, kw_only=True)
class Boundary:
    """A boundary as it is stored.

    `value`, `detail` are JSON text. `left_out` says that the value did not come with the claim and
    is to be read by name. `due` says that `wake_at` had come when it was read, by the database's
    clock. `absolute` says that the caller named the instant himself.
    """

    name: str
    kind: BoundaryKind
    seq: int
    value: str | None = None
    left_out: bool = False
    fingerprint: str | None = None
    detail: str | None = None
    wake_at: datetime | None = None
    absolute: bool = False
    due: bool = False
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A delivery as it is stored; `inbox` is its number in the run, from 1: who came first."""

    kind: BoundaryKind
    name: str
    state: DeliveryState
    inbox: int
    value: str | None = None
    left_out: bool = False
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What comes with a claim; `last_seq` and `bytes` count all boundaries, the left out too.

    `count` is how many boundaries the run has.
    """

    boundaries: tuple[Boundary, ...] = ()
    deliveries: tuple[Delivered, ...] = ()
    count: int = 0
    bytes: int = 0
    last_seq: int = 0


NO_HISTORY: Final = History()


def octets(text: str | None) -> int:
    """Return how many bytes a text takes as UTF-8; none takes none."""
    if not text:
        return 0
    return len(text) if text.isascii() else len(text.encode())


@dataclass(slots=True, kw_only=True)
class NewBoundary:
    """A boundary that is to be written.

    `delay_ms` counts from the write, by the database's clock; `wake_at` is an instant that the
    caller named; at most one of them is set. Only the first write of a name counts.
    """

    name: str
    kind: BoundaryKind
    seq: int
    value: str | None = None
    fingerprint: str | None = None
    detail: str | None = None
    delay_ms: int | None = None
    wake_at: datetime | None = None

    @property
    def size_bytes(self) -> int:
        """What it counts for in the run's limit."""
        return octets(self.value) + octets(self.detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait that an activation ends at.

    `new` is its boundary where it is reached for the first time. `token` is the reference that a
    wait of kind TOKEN links to.
    """

    kind: BoundaryKind
    name: str
    new: NewBoundary | None = None
    token: str | None = None


class DeliveryResult(StrEnum):
    """What came of a delivery. The first one to a name stands."""

    DELIVERED = "delivered"
    """It is stored, and the run that waited for it goes on."""
    KEPT = "kept"
    """It is stored, and the run finds it when it gets to a wait of that name."""
    DUPLICATE = "duplicate"
    """The same value was delivered under the same idempotency key before."""
    ALREADY_SETTLED = "already_settled"
    """Another delivery, or the wait's time-out, came first; this one is not stored."""
    RUN_FINISHED = "run_finished"
    """The run has ended; nothing is stored."""
