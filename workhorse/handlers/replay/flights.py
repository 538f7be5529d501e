"""What a call of a context yields, and how several calls of one name become one execution."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from workhorse.domain.boundaries import BoundaryKind
from workhorse.handlers.recording import Pending

if TYPE_CHECKING:
    from workhorse.handlers.replay.state import Replay

T = TypeVar("T")


class Invoke:
    """Asks the driver to call the user's operation, and for what it returned."""

    __slots__ = ("flight", "operation")

    def __init__(self, operation: Callable[[], object], flight: Flight) -> None:
        self.operation = operation
        self.flight = flight


Ask: TypeAlias = Invoke | Pending[Any]
"""What a generator yields; it is sent the answer, or thrown the error."""

Steps: TypeAlias = Generator[Ask, Any, T]
"""A call of a context, written without I/O."""

within: Final[ContextVar[tuple[Flight, ...]]] = ContextVar("workhorse.within", default=())
"""The executions that the code here is a part of, the outermost first."""


class Flight:
    """The one execution of a name that is under way; other calls of the name wait for it.

    As a context manager it ends with its block, unless what it stores has been handed to the
    recorder: from then on it belongs to the core, and ends when the answer comes.
    """

    __slots__ = ("_replay", "closes", "joined", "landed", "launched", "name")

    def __init__(self, name: str, replay: Replay) -> None:
        self.name: Final = name
        self._replay: Final = replay
        self.joined: Pending[None] | None = None
        """What the others wait for; the leader's error is theirs."""
        self.closes: tuple[tuple[BoundaryKind, str], ...] = ()
        """Waits that are closed by what it stores."""
        self.launched = False
        self.landed = False

    def __enter__(self) -> Flight:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.launched:
            self._replay.release(self, error)
