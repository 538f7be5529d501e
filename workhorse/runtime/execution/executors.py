"""What calls handlers: one executor for each kind of them.

An executor takes activations, calls their handlers, and says how each of them ended. The engine
asks it nothing else, but to end a handler from outside, where its kind can be ended at all.

Source: docs/design.md, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from workhorse.domain.outcomes import Outcome
from workhorse.runtime.activations import verdicts
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.base.pace import Pace
from workhorse.runtime.execution.threads import Threads
from workhorse.telemetry import get_logger

_log = get_logger("worker")


class Concluded(Protocol):
    """Takes activations that have ended, in bulk, and those whose handler has returned."""

    def __call__(self, ended: Sequence[Activation], returned: Sequence[Activation]) -> None:
        """Take them; it must not raise."""
        ...


class Executor(Protocol):
    """Calls the handlers of one kind. All methods are safe in threads."""

    uproots: bool
    """Whether a handler can be ended from outside; where not, it ends when it looks."""

    def submit(self, activations: Sequence[Activation]) -> None:
        """Have the handlers called; returns at once.

        Raises:
            RuntimeError: None of them was taken: the worker has ended.
        """
        ...

    def uproot(self, activation: Activation) -> None:
        """End a handler from outside; nothing happens where it has ended, or cannot be ended."""
        ...

    def close(self, timeout: float) -> bool:
        """End, in so many seconds; answer whether nothing is left."""
        ...


class ThreadExecutor:
    """Calls plain handlers, each in a thread of its own for the time.

    Args:
        concluded: Told what has ended.
        hand_back: Takes what could not be called.
    """

    uproots = False

    def __init__(
        self,
        concluded: Concluded,
        *,
        hand_back: Callable[[Sequence[Activation]], None],
        pace: Pace,
    ) -> None:
        self._concluded = concluded
        self._hand_back = hand_back
        self._pace = pace
        self._threads = Threads("workhorse-plain")

    def submit(self, activations: Sequence[Activation]) -> None:
        """Call handlers; one for which the system has no thread is handed back."""
        for activation in activations:
            try:
                self._threads.submit(partial(self._run, activation))
            except RuntimeError:
                _log.exception("no thread for run %s: it is handed back", activation.claimed.id)
                self._hand_back([activation])

    def uproot(self, activation: Activation) -> None:
        """Do nothing: a thread cannot be ended, its handler ends when it looks."""

    def close(self, timeout: float) -> bool:
        """End the threads that have nothing to do; the others end when they are done."""
        self._threads.close()
        return True

    def _run(self, activation: Activation) -> None:
        try:
            if activation.begin(self._pace.now_ms()):
                outcome = activation.take_variables().run(call_plain, activation)
                if activation.conclude(outcome, self._pace.now_ms()):
                    self._concluded([activation], ())
        finally:
            self._concluded((), [activation])


def call_plain(activation: Activation) -> Outcome:
    """Call a plain handler in this thread, and say what it came to."""
    task = activation.task
    try:
        value = task.invoke(activation.core, task.decode(activation.claimed.payload))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is this attempt's failure
        return verdicts.of_error(activation, error)
    finally:
        activation.core.end()
    return verdicts.of_value(activation, value)
