"""A real store whose answers a test can lose, delay or refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from workhorse.errors import StoreUnavailableError
from workhorse.runtime.writing.batching import write_batch, write_successes
from workhorse.store.base.database import Store

T = TypeVar("T")

Fault = Callable[[Callable[[], Any]], Any]
"""Gets the operation to carry out, or not; returns its answer, or raises."""


def writes_batch(op: Callable[..., Any]) -> bool:
    """Say whether an operation is one of those by which the writer writes a batch."""
    return op in (write_batch, write_successes)


class FaultyStore(Store):
    """A store on the same database as another; `faults` by the name of the operation.

    `calls` notes the operations in order. The writer's two are both `write_batch`.
    """

    def __init__(self, store: Store, *, connections: int = 3) -> None:
        super().__init__(
            store.target,
            schema=store.schema,
            environment=store.environment,
            clock=store.manual_clock,
            connections=connections,
            pooler=False,
        )
        self.faults: dict[str, Fault] = {}
        self.calls: list[str] = []

    def run(self, op: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return self._faulty(super().run, op, args, kwargs)

    def run_once(self, op: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return self._faulty(super().run_once, op, args, kwargs)

    def try_once(self, op: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return self._faulty(super().try_once, op, args, kwargs)

    def _faulty(self, how: Any, op: Callable[..., T], args: Any, kwargs: Any) -> T:
        name = "write_batch" if writes_batch(op) else op.__name__
        self.calls.append(name)
        fault = self.faults.get(name)
        if fault is None:
            answer: T = how(op, *args, **kwargs)
            return answer
        answered: T = fault(lambda: how(op, *args, **kwargs))
        return answered


class Lost:
    """Carries the operation out and loses the answer, the first `times` times."""

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.happened = threading.Event()

    def __call__(self, carry_out: Callable[[], Any]) -> Any:
        answer = carry_out()
        if self.times:
            self.times -= 1
            self.happened.set()
            raise StoreUnavailableError("the answer was lost")
        return answer


class Away:
    """Raises as a database that does not answer, until `back` is set."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.asked = threading.Semaphore(0)
        self.times = 0

    def __call__(self, carry_out: Callable[[], Any]) -> Any:
        if self.back.is_set():
            return carry_out()
        self.times += 1
        self.asked.release()
        raise StoreUnavailableError("away")


class Refused:
    """Raises an error, the first `times` times."""

    def __init__(self, error: Exception, times: int = 1) -> None:
        self.error = error
        self.times = times

    def __call__(self, carry_out: Callable[[], Any]) -> Any:
        if self.times:
            self.times -= 1
            raise self.error
        return carry_out()
