"""What an exploration looks at: the rows of one run, and what its workers believe.

A world is all that decides what can happen next. Two worlds go on alike, have one canonical form
and are explored once, when they differ only in what nothing is decided by: the names of tokens,
which of the workers is which, how long ago something was, what a value is. So are those that differ
in what a worker believes whose lease is gone: such a one may try everything, so it does not matter
what it still knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TICK_MS: Final = 10_000
LEASE: Final = 2
"""How long a lease lasts, in ticks of the clock."""
REST: Final = 1
"""How long a failed attempt rests."""
TIMEOUT: Final = 2
"""How long a wait lasts."""
NAP: Final = 1
MAX_ATTEMPTS: Final = 2
_TICK_US: Final = TICK_MS * 1_000

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "live": (
        "state", "attempt", "fence", "token", "lease_expires_at", "due_at", "ready_at", "wake_sent",
        "inbox", "hand_backs", "cancel_asked_at", "started_at",
    ),
    "outcomes": ("state", "reason", "attempt", "fence", "token", "result"),
    "attempts": ("attempt", "fence", "reason"),
    "boundaries": ("name", "kind", "value", "wake_at", "fence"),
    "deliveries": ("kind", "name", "state", "inbox", "value", "key"),
    "progress": ("value", "fence"),
    "audit": ("act", "request_id", "answer"),
}  # fmt: skip
"""The tables that steps may change, and what is looked at of each; whole rows are kept beside."""

Rows = tuple[tuple[tuple[Any, ...], ...], ...]
"""All rows of `TABLES`, whole, in their order."""


@dataclass(frozen=True, slots=True)
class Live:
    """The live row; instants in ticks of the clock since the run was enqueued."""

    state: str
    attempt: int
    fence: int
    token: int | None
    expires: int | None
    due: int | None
    wake_sent: bool
    inbox: int
    hand_backs: int
    cancel_asked: bool
    started: bool


@dataclass(frozen=True, slots=True)
class End:
    """The outcome."""

    state: str
    reason: str | None
    attempt: int
    fence: int
    token: int | None
    result: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the tables say."""

    live: Live | None
    end: End | None
    attempts: tuple[tuple[int, int, str], ...]
    boundaries: Mapping[str, tuple[str, str | None, int | None, int]]
    """Kind, value, time and fence of each, by name."""
    deliveries: Mapping[str, tuple[str, str | None, str | None]]
    """State, value and key of each, by name."""
    progress: str | None
    cancels: int
    """Cancels that the audit knows of."""
    broken: str = ""
    """What cannot be told in these words: two rows where one may be."""

    @property
    def state(self) -> str:
        if self.live is not None:
            return self.live.state
        return self.end.state if self.end is not None else "gone"


@dataclass(frozen=True, slots=True)
class Activation:
    """What a worker knows of the run that it has claimed; whether it still holds it is not told.

    `number` is that of its claim among all, also those before the database was set back.
    """

    number: int
    token: int
    fence: int
    attempt: int
    hand_backs: int
    inbox: int
    passed: frozenset[str]
    came: frozenset[str]
    progressed: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """Everything: the rows, the clock, the workers; what was done so far, as far as it is bounded.

    What the rows say is not asked for `holder` (the number of the claim whose lease is held), for
    `ended_by` (that of the claim under whose lease the run ended), `errors` and `recoveries`: they
    follow from what was seen to happen. `looked` is what a recovery that works in two transactions
    has seen by its first.
    """

    rows: Rows
    now: int
    workers: tuple[Activation | None, ...]
    claims: int = 0
    restored_at: int | None = None
    """How many claims there were when the database was set back."""
    holder: int | None = None
    ended_by: int | None = None
    errors: int = 0
    recoveries: int = 0
    looked: tuple[int, ...] = ()
    fences: bool = False
    """Whether fences may come again, so that those of lost leases are told apart."""


def see(columns: Mapping[str, tuple[str, ...]], rows: Rows, start: int) -> Seen:
    """Return what some rows say. `columns` are those of whole rows, `start` the clock's beginning.

    Instants are told in ticks.
    """
    by_name = {
        name: [dict(zip(columns[name], row, strict=True)) for row in found]
        for name, found in zip(TABLES, rows, strict=True)
    }

    def tick(instant: int | None) -> int | None:
        # Up: what is due within a tick is seen as due at its end, as the clock moves.
        return None if instant is None else -((start - instant) // _TICK_US)

    lives = [
        Live(
            row["state"], row["attempt"], row["fence"], row["token"],
            tick(row["lease_expires_at"]), tick(row["due_at"]), bool(row["wake_sent"]),
            row["inbox"], row["hand_backs"], row["cancel_asked_at"] is not None,
            row["started_at"] is not None,
        )
        for row in by_name["live"]
    ]  # fmt: skip
    ends = [
        End(*(row[name] for name in ("state", "reason", "attempt", "fence", "token", "result")))
        for row in by_name["outcomes"]
    ]
    return Seen(
        live=lives[0] if lives else None,
        end=ends[0] if ends else None,
        attempts=tuple(
            (row["attempt"], row["fence"], row["reason"]) for row in by_name["attempts"]
        ),
        boundaries={
            row["name"]: (row["kind"], row["value"], tick(row["wake_at"]), row["fence"])
            for row in by_name["boundaries"]
        },
        deliveries={
            row["name"]: (row["state"], row["value"], row["key"]) for row in by_name["deliveries"]
        },
        progress=next((row["value"] for row in by_name["progress"]), None),
        cancels=len(by_name["audit"]),
        broken="more than one live row" * (len(lives) > 1),
    )


def memory(world: World, activation: Activation | None) -> tuple[Any, ...]:
    """Return what matters of what a worker believes."""
    if activation is None:
        return ()
    if activation.number == world.holder:
        passed, came = tuple(sorted(activation.passed)), tuple(sorted(activation.came))
        return (passed, came, activation.inbox, activation.progressed)
    # A fence comes again once the database was set back, so it is told apart then.
    return (activation.number == world.ended_by, activation.fence if world.fences else 0)


def canonical(world: World, seen: Seen) -> tuple[Any, ...]:
    """Return what two worlds have in common that go on alike."""
    live, end = seen.live, seen.end

    def left(tick: int | None) -> int:
        return -1 if tick is None else max(0, tick - world.now)

    workers = tuple(sorted((memory(world, each) for each in world.workers), key=repr))
    names = tuple(seen.boundaries), tuple(map(str, seen.deliveries.items()))
    done = (world.claims * world.fences, world.restored_at is not None, seen.cancels)
    if live is None:
        state = end.state if end is not None else ""
        return ("ended", state, workers, names, done)
    return (
        live.state,
        (live.attempt, live.fence, live.inbox, live.hand_backs, live.cancel_asked),
        (left(live.expires), left(live.due), live.wake_sent),
        workers,
        names,
        tuple(left(row[2]) for row in seen.boundaries.values()),
        done,
        () if not world.looked else (live.token == world.looked[0], world.looked[2]),
    )
