"""`check_replay`: does changed code still take the way that a stored run has gone?

Source: docs/testing.md; docs/design.md, section 7
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import traceback
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from workhorse.client.importing import ImportedRun, run_of
from workhorse.client.rehearsal import Divergence, Ended, RehearsedCore, Watch, described
from workhorse.domain.boundaries import BoundaryKind
from workhorse.domain.names import check_boundary
from workhorse.errors import (
    CheckpointConflictError,
    ConfigurationError,
    NonRetryableError,
    ReplayDivergenceError,
    WaitConflictError,
)
from workhorse.handlers.registry import TaskRegistry
from workhorse.handlers.signals import Suspended
from workhorse.handlers.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from workhorse.domain.ids import RunId

_CONFLICTS: Final = (CheckpointConflictError, WaitConflictError)
_TURNS: Final = 100
"""How many turns of the event loop the tasks of a handler get once it has come to its end."""


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """A handler that still takes the way of a run: what it came to, in order, and how it ended."""

    run_id: RunId
    task: str
    reached: tuple[str, ...]
    ended: str


def check_replay(
    task: Task[Any, Any] | Callable[..., Any],
    exported: Mapping[str, Any] | str | bytes,
    *,
    optional: Collection[str] = (),
) -> ReplayCheck:
    """Call a handler with a stored run's payload and history, and see that it comes the same way.

    Each boundary that the run has passed must be asked for again: in order, of the same kind, for
    the same instant, duration, input, token or child. Nothing is stored and no operation is called:
    the check ends at the first boundary that the run has not come to yet. What the handler does
    outside of its boundaries it does here too, as on each replay.

    Args:
        task: The task, or its handler.
        exported: What `app.admin.export` returned, or the file of `workhorse runs export`.
        optional: Boundaries that need not be asked for: those made inside the operation of another,
            whose stored value answers for them.

    Returns:
        What was reached, and how the check ended.

    Raises:
        ReplayDivergenceError: The handler goes another way; its `boundary`, `expected`, `came` and
            `place` (the file and line of the call) say where the first difference is.
        ConfigurationError: The document is none, or the handler cannot be one, or is one of
            batches, whose runs have no boundaries.

    Source: docs/testing.md
    """
    imported = run_of(exported)
    checked = task if isinstance(task, Task) else TaskRegistry().register(task)
    if checked.batch is not None:
        raise ConfigurationError(
            f"task '{checked.name}': {checked.where} is handed batches, whose runs have no "
            "boundaries: there is no way to replay, and nothing to check"
        )
    watch = Watch(imported, [check_boundary(name) for name in optional])
    error: BaseException | None = None
    try:
        payload = checked.decode(imported.claimed.payload)
    except NonRetryableError as misfit:
        divergence: Divergence | None = _of_payload(checked, misfit)
        error = misfit
    else:
        error = _called(checked, payload, RehearsedCore(imported, watch))
        divergence = _divergence(checked, watch, error)
    if divergence is not None:
        raise _error(imported, divergence) from (error if isinstance(error, Exception) else None)
    stored = [name for name in watch.reached if name in watch.stored]
    return ReplayCheck(imported.claimed.id, checked.name, tuple(stored), _end(watch, error))


def _called(task: Task[Any, Any], payload: object, core: RehearsedCore) -> BaseException | None:
    """Call the handler; return what it raised."""
    try:
        if task.is_async:
            _in_a_loop(task, core, payload)
        else:
            contextvars.copy_context().run(task.invoke, core, payload)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return error
    return None


def _in_a_loop(task: Task[Any, Any], core: RehearsedCore, payload: object) -> None:
    """Call an async handler on a loop in a thread of its own: the caller's may be running."""
    failed: list[BaseException] = []

    async def call() -> None:
        asyncio.get_running_loop().set_exception_handler(_say_nothing)
        try:
            await task.invoke_async(core, payload)
        except BaseException as error:  # noqa: BLE001 - it is raised by the caller
            failed.append(error)
        for _ in range(_TURNS):  # what runs side by side comes to its boundaries too
            await asyncio.sleep(0)

    def serve() -> None:
        with suppress(Ended, Suspended):
            asyncio.run(call())

    thread = threading.Thread(target=contextvars.copy_context().run, args=(serve,))
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _say_nothing(_loop: asyncio.AbstractEventLoop, _details: dict[str, Any]) -> None:
    """Tasks that were ended by the check are nobody's to retrieve."""


def _of_payload(task: Task[Any, Any], misfit: NonRetryableError) -> Divergence:
    refused = f"one that it refuses ({misfit})"
    return Divergence(None, "a payload that the handler takes", refused, _first_line(task))


def _divergence(
    task: Task[Any, Any], watch: Watch, error: BaseException | None
) -> Divergence | None:
    """Return the first difference; None where there is none."""
    if watch.diverged is not None:
        return watch.diverged
    if isinstance(error, _CONFLICTS) and watch.last in watch.stored:
        stored = watch.stored[watch.last]
        return Divergence(
            stored.name,
            f"{described(stored)} as it was stored",
            f"one for another {_of_what(stored.kind)}",
            _line_of(error, task) or watch.reached[stored.name],
        )
    missing = watch.unreached()
    if missing is None:
        return None
    instead = watch.instead_of(missing)
    if instead is not None:
        came, place = instead
    elif error is None:
        came, place = "the end: the handler returned", _first_line(task)
    elif isinstance(error, Ended | Suspended | BaseExceptionGroup):
        came, place = "a wait that is still open", watch.reached.get(watch.last or "")
    else:
        came, place = f"{type(error).__name__}, which it raised", _line_of(error, task)
    return Divergence(missing.name, described(missing), came, place)


def _of_what(kind: BoundaryKind) -> str:
    match kind:
        case BoundaryKind.CHECKPOINT:
            return "input"
        case BoundaryKind.CHILD:
            return "task or payload"
        case BoundaryKind.TOKEN:
            return "token"
        case BoundaryKind.ANY | BoundaryKind.GROUP:
            return "set of waits"
        case _:
            return "instant"


def _error(imported: ImportedRun, found: Divergence) -> ReplayDivergenceError:
    run = imported.claimed
    where = f"{found.place}: " if found.place is not None else ""
    return ReplayDivergenceError(
        f"{where}run {run.id} of task '{run.task}' would not replay: expected {found.expected}, "
        f"came {found.came}. Keep the old way for runs that are under way (ctx.patched), or give "
        "what is new a name of its own behind what is stored",
        boundary=found.boundary,
        expected=found.expected,
        came=found.came,
        place=found.place,
    )


def _end(watch: Watch, error: BaseException | None) -> str:
    if watch.new is not None:
        what, place = watch.new
        return f"at {what}" + (f" ({place})" if place is not None else "")
    if error is None:
        return "the handler returned"
    if isinstance(error, Ended | Suspended | BaseExceptionGroup):
        return f"at the open wait '{watch.last}'"
    return f"the handler raised {type(error).__name__}"


def _line_of(error: BaseException, task: Task[Any, Any]) -> str | None:
    """Return the last line of the handler's own file that an error came through."""
    own_file = _first_line(task).rpartition(":")[0]
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == own_file
    ]
    return places[-1] if places else None


def _first_line(task: Task[Any, Any]) -> str:
    return task.where.rpartition("(")[2].removesuffix(")")
