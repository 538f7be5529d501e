"""Values too large, and values that are none (docs/cases.md, cases 7 and 8), on their whole way.

For checkpoints, signals, decisions and tokens: what fits comes back as it was, what does not is
refused at the call, and nothing loops.
"""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.durable.handlers import handler, its
from tests.runtime.rig import Rig
from tests.store.acting import history_of, rows
from workhorse.app import Workhorse
from workhorse.domain.boundaries import MAX_CHECKPOINT_BYTES, DeliveryResult
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.domain.values import MAX_DELIVERY_BYTES
from workhorse.errors import UnstorableValueError, ValueTooLargeError

AT_ONCE = RetryPolicy(max_attempts=5, first=timedelta(0))
FAR_OVER = 64 * 1024 * 1024
QUOTES = 2  # of a text's JSON

NUMBERS: list[Any] = [
    2**70, -(2**63) - 1, 10**300, 1.0, 1, 0.1, -0.0, 5e-324, 1.7976931348623157e308, True, None,
]  # fmt: skip

NO_VALUES: list[Any] = [
    float("nan"),
    float("inf"),
    -float("inf"),
    1e400,
    decimal.Decimal(1),
    {1, 2},
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1),  # noqa: DTZ001 - a naive one
    b"bytes",
    (1, 2),
    "a\0b",
    "\ud800",
    {1: "a key that is no text"},
    object(),
]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (
        (one == other and math.copysign(1, one) == math.copysign(1, other))
        if isinstance(one, float)
        else one == other
    )


# -- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [MAX_CHECKPOINT_BYTES - 1, MAX_CHECKPOINT_BYTES])
def test_case_7_a_checkpoint_up_to_the_cap_comes_back(rig: Rig, kind: str, size: int) -> None:
    text = "é" * (size // 2 - 8)
    text += "x" * (size - QUOTES - len(text.encode()))

    async def steps(ctx: Any) -> bool:
        stored = await its(ctx.checkpoint("a", lambda: text))
        if ctx.attempt == 1:
            raise ValueError("once more")
        return bool(stored == text)

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AT_ONCE)
    worker = rig.worker()
    assert worker.process_run(claimed) is RunState.READY

    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED
    assert rig.view(claimed.id).result == "true"


@pytest.mark.parametrize("size", [MAX_CHECKPOINT_BYTES + 1, FAR_OVER])
def test_case_7_a_checkpoint_over_the_cap_fails_its_run_at_the_first_try(
    rig: Rig, kind: str, size: int
) -> None:
    calls: list[int] = []

    def operation() -> str:
        calls.append(1)
        return "x" * (size - QUOTES)

    async def steps(ctx: Any) -> None:
        await its(ctx.checkpoint("render", operation))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AT_ONCE)

    assert rig.worker().process_run(claimed) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.attempt, len(calls)) == (Reason.NOT_RETRYABLE, 1, 1)
    said = view.error_message or ""
    assert "checkpoint 'render'" in said
    assert f"{MAX_CHECKPOINT_BYTES:,}" in said
    if size < FAR_OVER:
        assert f"{size:,}" in said
    assert "xxx" not in said
    assert history_of(rig.store, claimed.id).boundaries == ()


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: repr(value)[:20])
def test_case_8_a_checkpoint_that_is_no_value_fails_its_run_at_the_first_try(
    rig: Rig, kind: str, value: Any
) -> None:
    """The message says where the bad part is; the step is not repeated for it."""
    calls: list[int] = []

    def operation() -> Any:
        calls.append(1)
        return {"parts": [1, value]}

    async def steps(ctx: Any) -> None:
        await its(ctx.checkpoint("train", operation))

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AT_ONCE)

    assert rig.worker().process_run(claimed) is RunState.FAILED

    view = rig.view(claimed.id)
    assert (view.reason, view.attempt, len(calls)) == (Reason.NOT_RETRYABLE, 1, 1)
    assert view.error_type == "workhorse.errors.UnstorableValueError"
    assert "checkpoint 'train'" in (view.error_message or "")
    assert "$.parts[1]" in (view.error_message or "")
    assert history_of(rig.store, claimed.id).boundaries == ()


def test_case_8_numbers_of_a_checkpoint_lose_nothing(rig: Rig, kind: str) -> None:
    seen: list[list[Any]] = []

    async def steps(ctx: Any) -> None:
        seen.append(await its(ctx.checkpoint("a", lambda: NUMBERS)))
        if ctx.attempt == 1:
            raise ValueError("once more")

    rig.task("t")(handler(kind, steps))
    claimed = rig.claimed("t", retry=AT_ONCE)
    worker = rig.worker()
    worker.process_run(claimed)
    assert worker.process_run(rig.claim()) is RunState.SUCCEEDED

    assert len(seen) == 2  # made, and read from the store
    for each in seen:
        assert all(map(same, each, NUMBERS))


# -- signals, decisions, tokens ------------------------------------------------------------------

Send = Callable[[Any], DeliveryResult]


class Waiting:
    """A run that waits for a value, and how one sends it."""

    def __init__(self, app: Workhorse, what: str) -> None:
        @app.task("waits", retry=AT_ONCE)
        def waits(ctx: Any, ref: str) -> Any:
            if what == "signal":
                return ctx.wait_for_signal("a")
            if what == "decision":
                return ctx.wait_for_human("a")
            return ctx.wait_for_token("a", ref)

        self.app = app
        ref = app.create_token()
        self.run = waits.enqueue(ref)
        app.worker().drain()
        sends: dict[str, Send] = {
            "signal": lambda value: app.send_signal(self.run.id, "a", value),
            "decision": lambda value: app.complete_human_wait(self.run.id, "a", value, by="ann"),
            "token": lambda value: app.complete_token(ref, value),
        }
        self.send = sends[what]

    def result(self) -> Any:
        self.app.worker().drain()
        return self.run.result(timeout=0)


@pytest.fixture(params=["signal", "decision", "token"])
def waiting(request: pytest.FixtureRequest, database_url: str) -> Iterator[Waiting]:
    with Workhorse(database_url=database_url, lane="polling") as app:
        yield Waiting(app, request.param)


@pytest.mark.parametrize("size", [MAX_DELIVERY_BYTES - 1, MAX_DELIVERY_BYTES])
def test_case_7_what_is_sent_up_to_the_cap_comes_through(waiting: Waiting, size: int) -> None:
    text = "x" * (size - QUOTES)

    assert waiting.send(text) is DeliveryResult.DELIVERED
    assert waiting.result() == text


@pytest.mark.parametrize("size", [MAX_DELIVERY_BYTES + 1, FAR_OVER])
def test_case_7_what_is_sent_over_the_cap_is_refused_and_the_run_waits_on(
    waiting: Waiting, size: int
) -> None:
    with pytest.raises(ValueTooLargeError, match=f"{MAX_DELIVERY_BYTES:,}") as refused:
        waiting.send("x" * (size - QUOTES))

    assert "xxx" not in str(refused.value)
    assert rows(waiting.app.store, "select 1 from {s}deliveries") == []
    waiting.send("small")
    assert waiting.result() == "small"


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: repr(value)[:20])
def test_case_8_what_is_no_value_is_refused_and_the_run_waits_on(
    waiting: Waiting, value: Any
) -> None:
    with pytest.raises(UnstorableValueError) as refused:
        waiting.send({"parts": [1, value]})

    assert "$.parts[1]" in str(refused.value)
    assert rows(waiting.app.store, "select 1 from {s}deliveries") == []
    waiting.send(None)
    assert waiting.result() is None


def test_case_8_numbers_that_are_sent_lose_nothing(waiting: Waiting) -> None:
    waiting.send(NUMBERS)

    result = waiting.result()
    assert all(map(same, result, NUMBERS))
    assert json.dumps(result) == json.dumps(NUMBERS)
