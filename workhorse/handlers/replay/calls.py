"""A handler's calls of its context: which of them it never awaits, and which it makes twice.

Source: docs/adr/0025-one-name-one-stage.md
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Coroutine, Mapping
from types import CodeType
from typing import Any, Final, TypeAlias

from workhorse.domain.boundaries import Boundary
from workhorse.errors import BoundaryNotAwaitedError, DuplicateBoundaryError
from workhorse.handlers.replay.flights import Steps
from workhorse.telemetry import get_logger

_log = get_logger("handlers")

_MOST_TOLD: Final = 1_000
_MOST_NAMED: Final = 5


Place: TypeAlias = tuple[CodeType, int]
"""Some code that calls a context, and where in it; its line is looked up when that is asked."""


class Calls:
    """The calls of one activation. Safe in threads.

    Args:
        owner: How errors call the run.
        task: The name of its task.
        boundaries: What the run has passed, by name.
    """

    __slots__ = ("_boundaries", "_owner", "_task", "asked", "made")

    def __init__(self, owner: str, task: str, boundaries: Mapping[str, Boundary]) -> None:
        self._owner: Final = owner
        self._task: Final = task
        self._boundaries: Final = boundaries
        self.asked: Final[dict[str, Place]] = {}
        """Where the handler itself has asked for a name, in no thread or task of its making."""
        self.made: Final[dict[Steps[Any], tuple[Coroutine[Any, Any, Any], str, Place]]] = {}
        """What was called of an async context and is not awaited yet, by its steps."""

    # -- the same name twice ---------------------------------------------------------------------

    def is_stored(self, name: str) -> bool:
        """Say whether a name that is asked for again has something stored for it."""
        return name in self._boundaries

    def answered_again(self, name: str, place: Place) -> None:
        """Take in that the handler itself has asked for a name twice, and got what is stored.

        What does not fit what is stored was refused before, with an error that says why.

        Raises:
            DuplicateBoundaryError: The first time was at another place.
        """
        first, again = line_of(self.asked[name]), line_of(place)
        if self.asked[name] != place:
            raise DuplicateBoundaryError(
                f"{self._owner}: two stages of its handler have the name '{name}', at {first} and "
                f"at {again}; the second would be answered with what the first has stored, which "
                "stands. Give each a name of its own; to read a stored value again, use "
                "ctx.get_checkpoint or ctx.get_wait"
            )
        if _is_told(self._task, name):
            return
        _log.warning(
            "%s: task '%s' asks for '%s' at %s again, and is answered with what is stored already. "
            "In a loop, put into the name which turn it is; to read a stored value again, use "
            "ctx.get_checkpoint or ctx.get_wait. This is said once for a task and name",
            self._owner,
            self._task,
            name,
            again,
        )

    # -- never awaited ---------------------------------------------------------------------------

    def forgotten(self, held: Collection[Any]) -> BoundaryNotAwaitedError | None:
        """Return what there is to say of calls that were made and never awaited, and close them.

        Args:
            held: Coroutines of the handler's tasks: these are awaited, or were cancelled.
        """
        found = []
        for steps, (call, what, place) in list(self.made.items()):
            if call not in held and inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
                name = inspect.getgeneratorlocals(steps).get("name")
                named = f"'{name}'" if name is not None else ""
                found.append(f"ctx.{what}({named}) at {line_of(place)}")
                call.close()  # or Python warns of it too, some time
        if not found:
            return None
        left = len(found) - _MOST_NAMED
        which = ", ".join(found[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")
        return BoundaryNotAwaitedError(
            f"{self._owner}: its handler never awaited {which}, so that nothing was done there. "
            "Put `await` before the call; what was stored before stands"
        )


def line_of(place: Place) -> str:
    """Return the file and line of a place."""
    code, at = place
    lines = (line for start, end, line in code.co_lines() if start <= at < end)
    return f"{code.co_filename}:{next(lines, None) or code.co_firstlineno}"


_telling: Final = threading.Lock()
_told: Final[set[tuple[str, str]]] = set()


def _is_told(task: str, name: str) -> bool:
    """Say whether something was said of a task and a name before; it is from now on."""
    with _telling:
        if (task, name) in _told:
            return True
        if len(_told) >= _MOST_TOLD:
            _told.clear()
        _told.add((task, name))
        return False
