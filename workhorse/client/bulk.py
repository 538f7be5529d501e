"""Enqueue many: a list is one transaction; what comes one by one is committed in thousands.

Source: docs/design.md, section 8.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from workhorse.client.background import Background
from workhorse.client.joining import Joiner
from workhorse.client.producing import Client
from workhorse.client.publishing import Publisher
from workhorse.client.results import Run
from workhorse.domain.runs import Enqueued, NewRun
from workhorse.errors import ConfigurationError
from workhorse.handlers.producing import Request

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

Requests: TypeAlias = Iterable[Request[Any]]
Progress: TypeAlias = Callable[[int], object]

COMMIT_EACH: Final = 1_000


class BulkClient:
    """`app.enqueue_many` and its async form.

    Args:
        client: Stores the runs.
        joiner: Stores them in callers' transactions.
        publisher: Sends the wakeups.
        background: Where store calls of async callers run.
        stride: One wakeup for so many ready runs of a queue.
    """

    def __init__(
        self,
        client: Client,
        joiner: Joiner,
        publisher: Publisher,
        background: Background,
        *,
        stride: int,
    ) -> None:
        self._client = client
        self._joiner = joiner
        self._publisher = publisher
        self._background = background
        self._stride = stride

    def enqueue_many(
        self,
        requests: Requests,
        connection: Session | Connection | None = None,
        progress: Progress | None = None,
    ) -> list[Run[Any]]:
        """Enqueue requests; see `Workhorse.enqueue_many`."""
        _check(requests, Iterable)
        if connection is not None:
            return self._join(_runs(requests), connection)
        report = _Report(progress, self._client)
        with report.on_error():
            if isinstance(requests, Sequence):
                report.committed(self._commit(_runs(requests)))
            else:
                self._commit_in_thousands(iter(requests), report)
        return report.handles

    async def enqueue_many_async(
        self,
        requests: Requests | AsyncIterable[Request[Any]],
        connection: AsyncSession | AsyncConnection | None = None,
        progress: Progress | None = None,
    ) -> list[Run[Any]]:
        """As `enqueue_many`, without blocking the event loop; requests may come from one too."""
        _check(requests, (Iterable, AsyncIterable))
        if connection is not None:
            if isinstance(requests, AsyncIterable):
                requests = [request async for request in requests]
            return await self._join_async(_runs(requests), connection)
        store_runs = self._client.store_runs
        report = _Report(progress, self._client)
        with report.on_error():
            async for runs in _commits_async(requests):
                done, hints = await self._background.call(store_runs, runs, stride=self._stride)
                await self._publisher.publish_async(hints)
                report.committed(done)
        return report.handles

    def _commit(self, runs: list[NewRun]) -> list[Enqueued]:
        if not runs:
            return []
        done, hints = self._client.store_runs(runs, stride=self._stride)
        self._publisher.publish(hints)
        return done

    def _commit_in_thousands(self, requests: Iterator[Request[Any]], report: _Report) -> None:
        """Commit what comes one by one; while a thousand is on its way, the next is drawn.

        The iterator is asked in this thread alone, and one transaction is under way at a time, so
        that what comes first is committed first.
        """
        under_way: Future[list[Enqueued]] | None = None
        try:
            while runs := _runs(islice(requests, COMMIT_EACH)):
                last, under_way = under_way, None
                done = [] if last is None else last.result()
                under_way = self._background.start(self._commit, runs)
                report.committed(done)
        except BaseException:
            # What was handed over is committed all the same, and is to be counted.
            if under_way is not None:
                with suppress(Exception):
                    report.committed(under_way.result())
            raise
        if under_way is not None:
            report.committed(under_way.result())

    def _join(self, runs: Sequence[NewRun], connection: Session | Connection) -> list[Run[Any]]:
        if not runs:
            return []
        done = self._joiner.enqueue(runs, connection, stride=self._stride)
        return [self._client.handle(answer, joined=True) for answer in done]

    async def _join_async(
        self, runs: Sequence[NewRun], connection: AsyncSession | AsyncConnection
    ) -> list[Run[Any]]:
        if not runs:
            return []
        done = await self._joiner.enqueue_async(runs, connection, stride=self._stride)
        return [self._client.handle(answer, joined=True) for answer in done]


class _Report:
    """What has been committed, told as it grows and when it stops."""

    def __init__(self, progress: Progress | None, client: Client) -> None:
        self._progress = progress
        self._client = client
        self.handles: list[Run[Any]] = []

    def committed(self, done: Sequence[Enqueued]) -> None:
        if not done:
            return
        self.handles += [self._client.handle(answer) for answer in done]
        if self._progress is not None:
            self._progress(len(self.handles))

    @contextmanager
    def on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if count := len(self.handles):
                error.add_note(
                    f"enqueue_many: the first {count:,} runs are committed and stand; "
                    "go on behind them, or give the runs keys and repeat all"
                )
            raise


def _check(requests: object, kinds: type[Any] | tuple[type[Any], ...]) -> None:
    if not isinstance(requests, kinds):
        raise ConfigurationError(
            f"enqueue_many takes what task.prepare(...) returns, several of them, and was given a "
            f"{type(requests).__name__}; nothing was enqueued"
        )


def _commits(requests: Requests) -> Iterator[list[NewRun]]:
    """Yield what one transaction takes: a sequence whole, else a thousand each."""
    if isinstance(requests, Sequence):
        if requests:
            yield _runs(requests)
        return
    iterator = iter(requests)
    while chunk := _runs(islice(iterator, COMMIT_EACH)):
        yield chunk


async def _commits_async(
    requests: Requests | AsyncIterable[Request[Any]],
) -> AsyncIterator[list[NewRun]]:
    if not isinstance(requests, AsyncIterable):
        for chunk in _commits(requests):
            yield chunk
        return
    runs: list[NewRun] = []
    async for request in requests:
        runs += _runs([request])
        if len(runs) == COMMIT_EACH:
            yield runs
            runs = []
    if runs:
        yield runs


def _runs(requests: Requests) -> list[NewRun]:
    runs = []
    for request in requests:
        if not isinstance(request, Request):
            raise ConfigurationError(
                f"enqueue_many takes what task.prepare(...) returns; got {type(request).__name__}"
            )
        runs.append(request.run)
    return runs
