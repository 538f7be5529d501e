"""What becomes of a request that the database refuses when it stands alone."""

from __future__ import annotations

from workhorse.errors import UnstorableValueError, WorkhorseError
from workhorse.runtime.activations.requests import ToProgress, ToRead, ToRecord, ToSettle
from workhorse.runtime.base.calls import lock_not_got, refuses_value
from workhorse.telemetry import get_logger

_log = get_logger("worker")


def refuse(asked: ToRecord | ToRead, error: Exception) -> None:
    """Answer a handler that what it asked for is refused."""
    asked.taken = True
    asked.recorder.forget(asked.pending)
    asked.pending.fail(_refusal_of(asked, error))


def refuse_progress(said: ToProgress, error: Exception) -> None:
    """Leave a progress out; one whose run is locked is written a little later."""
    said.taken = True
    if not lock_not_got(error):
        say_left_out(said, error)
    elif said.recorder.unwritten is not None:
        said.recorder.unwritten.put_off()


def say_left_out(said: ToProgress | ToSettle, error: Exception) -> None:
    """Log that a run's progress is not stored."""
    _log.warning(
        "run %s: its progress could not be stored (%s); it is left out",
        said.lease.run_id,
        type(error).__name__,
    )


def _refusal_of(asked: ToRecord | ToRead, error: Exception) -> Exception:
    kind, answer = type(error).__name__, None
    if isinstance(asked, ToRead):
        name = asked.request.name
        answer = WorkhorseError(f"run {asked.lease.run_id}: '{name}' could not be read ({kind})")
    else:
        what = f"run {asked.lease.run_id}: boundary '{asked.record.boundary.name}'"
        if refuses_value(error):
            answer = UnstorableValueError(
                f"{what}: the database refused its value ({kind}); nothing was stored"
            )
        else:
            answer = WorkhorseError(f"{what} could not be stored ({kind}); nothing was stored")
    answer.__cause__ = error
    return answer
