"""How a process has ended, in words that are stored with the attempt."""

from __future__ import annotations

import signal

from workhorse.domain.runs import Failure


def died(code: int, fault: str | None = None) -> Failure:
    """Return the failure of an attempt whose process died while its handler was running.

    Args:
        code: The exit code, negative after a signal.
        fault: What the worker has ended it for.
    """
    how = fault or _how(code)
    return Failure(
        "ProcessDied", f"the process of the handler {how}; the worker goes on with a new one"
    )


def never_ready(code: int, fault: str | None = None) -> Failure:
    """Return the failure of an attempt whose process died before it took a run."""
    how = fault or _how(code)
    return Failure(
        "ProcessDied",
        f"the process of the handler {how} before it could take the run, and the handler was not "
        "called. It first imports the modules of all tasks with executor='process': look there",
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"was killed by {name}: by the system, where memory ran out, or from outside"
    return f"was killed by {name}"
