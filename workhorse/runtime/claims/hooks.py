"""`can_claim` and `on_claimed`: the user's say in what a worker takes.

They are user code, so they run on threads of their own, or, where they are async, on the loop of
the async handlers; they have a second, and what they raise is logged, counted and stands for no.

Source: docs/design.md, section 6.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from workhorse.domain.runs import ClaimedRun
from workhorse.runtime.execution.eventloop import HandlerLoop
from workhorse.runtime.execution.threads import Threads
from workhorse.telemetry import Counters, Metric, get_logger

_log = get_logger("worker")


class Hooks:
    """Calls the hooks of a worker; safe in threads.

    Args:
        serves: Says whether a queue is this worker's to claim from; its own, and asked first.
    """

    def __init__(
        self,
        can_claim: Callable[[], Any] | None,
        on_claimed: Callable[[Sequence[ClaimedRun]], Any] | None,
        *,
        serves: Callable[[str], bool],
        loop: HandlerLoop,
        limit_ms: float,
        counters: Counters,
    ) -> None:
        self._can_claim = can_claim
        self._on_claimed = on_claimed
        self._serves = serves
        self._loop = loop
        self._limit_s = limit_ms / 1000
        self._counters = counters
        self._threads = Threads("workhorse-hook")
        self._late: dict[str, _Call] = {}

    def may_claim(self, queue: str) -> bool:
        """Say whether the queue is this worker's, and ask `can_claim`, where there is one."""
        if not self._serves(queue):
            return False
        if self._can_claim is None:
            return True
        return bool(self._ask("can_claim", self._can_claim))

    def tell_claimed(self, runs: Sequence[ClaimedRun]) -> None:
        """Tell `on_claimed` what was claimed."""
        if self._on_claimed is not None and runs:
            told = self._on_claimed
            self._ask("on_claimed", lambda: told(runs))

    def close(self) -> None:
        """End the threads that are idle."""
        self._threads.close()

    def _ask(self, name: str, hook: Callable[[], Any]) -> Any:
        late = self._late.get(name)
        if late is not None and not late.done.is_set():
            # One that does not come back is not called again, or each call would cost a thread.
            late.done.wait(self._limit_s)
            return False
        call = _Call(hook, self._loop, self._limit_s)
        self._threads.submit(call.run)
        if not call.done.wait(self._limit_s):
            self._late[name] = call
            self._note(name, f"it has not answered for {self._limit_s:.1f} s")
            return False
        if call.error is not None:
            self._note(name, type(call.error).__name__, call.error)
            return False
        return call.answer

    def _note(self, name: str, why: str, error: BaseException | None = None) -> None:
        self._counters.add(Metric.HOOK_ERRORS, label=name)
        _log.warning("the hook %s failed, which counts as False: %s", name, why, exc_info=error)


class _Call:
    """One call of a hook, in a thread of its own."""

    def __init__(self, hook: Callable[[], Any], loop: HandlerLoop, limit_s: float) -> None:
        self._hook = hook
        self._loop = loop
        self._until = time.monotonic() + limit_s
        self.done = threading.Event()
        self.answer: Any = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call the hook; async ones go on in the loop of the async handlers."""
        try:
            answer = self._hook()
            if inspect.isawaitable(answer):
                waiting = self._loop.call(_awaited(answer))
                try:
                    answer = waiting.result(max(0.0, self._until - time.monotonic()))
                finally:
                    waiting.cancel()
            self.answer = answer
        except BaseException as error:  # noqa: BLE001 - it counts as False, whatever it is
            self.error = error
        finally:
            self.done.set()


async def _awaited(answer: Any) -> Any:
    return await answer
