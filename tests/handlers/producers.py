"""A producer that keeps what it is asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from workhorse.handlers.producing import Request


class FakeProducer:
    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = now
        self.enqueued: list[tuple[Request[Any], Any]] = []
        self.enqueued_async: list[tuple[Request[Any], Any]] = []
        self.ran: list[Request[Any]] = []
        self.ran_async: list[Request[Any]] = []

    def now(self) -> datetime:
        return self._now

    def enqueue(self, request: Request[Any], connection: Any = None) -> Any:
        self.enqueued.append((request, connection))
        return request.run.id

    async def enqueue_async(self, request: Request[Any], connection: Any = None) -> Any:
        self.enqueued_async.append((request, connection))
        return request.run.id

    def run_now(self, request: Request[Any]) -> Any:
        self.ran.append(request)
        return request.run.id

    async def run_now_async(self, request: Request[Any]) -> Any:
        self.ran_async.append(request)
        return request.run.id
