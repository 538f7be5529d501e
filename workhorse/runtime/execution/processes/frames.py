"""What a worker and its processes say to each other: JSON behind its length, nothing else.

No object crosses: values are the JSON text that is stored, errors are text, and handlers are named.
A lease's token stays with the worker, which puts it into what it writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from workhorse.domain.boundaries import BoundaryKind, History, NewBoundary, Wait
from workhorse.domain.ids import RunId
from workhorse.domain.recording import NewChild, NewToken, RecordAnswer
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Failure, Reason
from workhorse.handlers.places import Place
from workhorse.handlers.signals import StopReason

_HEADER: Final = struct.Struct("!I")
_MOST_BYTES: Final = 256 * 1024 * 1024
"""Far more than any value may have: what claims to be larger is no frame."""

# -- to a process --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Import these, and say that you are ready."""

    kind: Literal["prepare"] = "prepare"
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Call a handler. `now` is the time by the worker, for coarse checks."""

    kind: Literal["begin"] = "begin"
    place: Place
    now: datetime
    run_id: RunId
    task: str
    queue: str
    payload: str
    attempt: int
    fence: int
    retry: RetryPolicy
    session: str | None
    tags: tuple[str, ...]
    key: str | None
    created_at: datetime
    started_at: datetime
    traceparent: str | None
    history: History


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to an `Asked`, or to a `Read`."""

    kind: Literal["answered"] = "answered"
    number: int
    answer: RecordAnswer | None = None
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was asked for has failed; `error` is the class's name in `workhorse.errors`."""

    kind: Literal["refused"] = "refused"
    number: int
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Set a signal of the handler's context."""

    kind: Literal["told"] = "told"
    signal: Literal["stopping", "cancelled"]
    reason: StopReason


ToChild: TypeAlias = Prepare | Begin | Answered | Refused | Told

# -- from a process ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The process takes handlers now."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The handler is about to be called: what the process dies of from here on is its doing."""

    kind: Literal["begun"] = "begun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Write a boundary: a `Record` without its lease."""

    kind: Literal["asked"] = "asked"
    number: int
    boundary: NewBoundary
    token: NewToken | None = None
    child: NewChild | None = None
    closes: tuple[tuple[BoundaryKind, str], ...] = ()
    cancels: tuple[RunId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read a value by name."""

    kind: Literal["read"] = "read"
    number: int
    name: str
    of: BoundaryKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """What the run says of its progress, as JSON text."""

    kind: Literal["progressed"] = "progressed"
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspending:
    """The handler has come to these waits, and is ending."""

    kind: Literal["suspending"] = "suspending"
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The handler has ended: with a result, or with a failure.

    `stopped` says that its error tells of a stop or of a lost lease, or that a boundary of it was
    not begun because the worker ends; `passed_on` that its error tells of a stop or of a wait.
    """

    kind: Literal["ended"] = "ended"
    result: str | None = None
    failure: Failure | None = None
    reason: Reason = Reason.ERROR
    stopped: bool = False
    passed_on: bool = False
    waits: tuple[Wait, ...] = ()


FromChild: TypeAlias = Ready | Begun | Asked | Read | Progressed | Suspending | Ended

# -- bytes ---------------------------------------------------------------------------------------

_to_child: Final[TypeAdapter[ToChild]] = TypeAdapter(
    Annotated[ToChild, Field(discriminator="kind")]
)
_from_child: Final[TypeAdapter[FromChild]] = TypeAdapter(
    Annotated[FromChild, Field(discriminator="kind")]
)


def to_child(message: ToChild) -> bytes:
    """Return the frame of a message to a process."""
    return _frame(_to_child, message)


def from_child(message: FromChild) -> bytes:
    """Return the frame of a message from a process."""
    return _frame(_from_child, message)


def _frame(adapter: TypeAdapter[Any], message: object) -> bytes:
    body = adapter.dump_json(message)
    return _HEADER.pack(len(body)) + body


class Frames:
    """Puts what comes over a socket together to messages.

    Args:
        side: Whose messages they are.
    """

    def __init__(self, side: Literal["to_child", "from_child"]) -> None:
        self._adapter: TypeAdapter[Any] = _to_child if side == "to_child" else _from_child
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take bytes, and yield the messages that are whole now.

        Raises:
            ValueError: That is no message.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(buffer)
            if length > _MOST_BYTES:
                raise ValueError("a frame that is too large")
            end = _HEADER.size + length
            if len(buffer) < end:
                return
            body = bytes(buffer[_HEADER.size : end])
            del buffer[:end]
            yield self._adapter.validate_json(body)
