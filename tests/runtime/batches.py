"""What tests of batch handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.runtime.rig import Rig
from workhorse import BatchItem
from workhorse.domain.ids import RunId
from workhorse.domain.retry import RetryPolicy

ONCE = RetryPolicy(max_attempts=1)
LATER = RetryPolicy(first=timedelta(seconds=60), jitter=False)

Items = list[BatchItem[Any]]


def handler(kind: str, body: Callable[[Items], Any]) -> Callable[[Items], Any]:
    """Return a handler of this kind; the body of an async one runs in a thread, and may block."""

    def plain(items: list[BatchItem[Any]]) -> Any:
        return body(items)

    async def waits(items: list[BatchItem[Any]]) -> Any:
        return await asyncio.to_thread(body, items)

    return plain if kind == "plain" else waits


def enqueue(rig: Rig, count: int, **fields: Any) -> list[RunId]:
    """Store runs of task `t` whose payloads are their numbers."""
    return [rig.enqueue("t", str(number), **fields) for number in range(count)]


def states(rig: Rig, run_ids: list[RunId]) -> list[str]:
    return [rig.state(run_id).value for run_id in run_ids]
