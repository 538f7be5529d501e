"""A claimed run, as a worker would get it from the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from workhorse.domain.ids import new_run_id
from workhorse.domain.retry import DEFAULT_RETRY, RetryPolicy
from workhorse.domain.runs import ClaimedRun, Lease


def a_claimed_run(
    *,
    payload: str = "null",
    attempt: int = 1,
    retry: RetryPolicy = DEFAULT_RETRY,
    session: str | None = None,
    tags: tuple[str, ...] = (),
    key: str | None = None,
) -> ClaimedRun:
    created_at = datetime(2026, 1, 1, tzinfo=UTC)
    run_id = new_run_id()
    return ClaimedRun(
        id=run_id,
        task="orders.ship",
        queue="default",
        payload=payload,
        attempt=attempt,
        lease=Lease(run_id, fence=4, token=8_123_456_789),
        retry=retry,
        session=session,
        tags=tags,
        key=key,
        created_at=created_at,
        started_at=created_at + timedelta(seconds=2),
    )
