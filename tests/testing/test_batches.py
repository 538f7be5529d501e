"""Batch handlers in a kit, and run now: as many runs at once as there are slots."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from workhorse import BatchItem, Context, RetryPolicy, Workhorse
from workhorse.errors import RunFailedError
from workhorse.testing import Kit


@pytest.fixture
def sizes(app: Workhorse) -> list[int]:
    """An app's batch task, `mails`, and what its handler is handed."""
    sizes: list[int] = []

    @app.task("mails", batch=10, retry=RetryPolicy(max_attempts=2))
    async def mails(items: list[BatchItem[str]]) -> list[str | ValueError]:
        sizes.append(len(items))
        return [
            f"sent to {item.payload}" if "@" in item.payload else ValueError(item.payload)
            for item in items
        ]

    return sizes


@pytest.mark.parametrize(("concurrency", "handed"), [(1, [1, 1, 1]), (10, [3])])
def test_a_kit_hands_over_as_many_as_it_has_slots(
    app: Workhorse, sizes: list[int], concurrency: int, handed: list[int]
) -> None:
    mails = app.registry.require("mails")
    with Kit(app, concurrency=concurrency) as kit:
        runs = [mails.enqueue(to) for to in ("a@x", "b@x", "c@x")]
        kit.run_until_idle()

        assert [run.result() for run in runs] == ["sent to a@x", "sent to b@x", "sent to c@x"]
        assert sizes == handed


def test_a_batch_of_which_one_fails_goes_on_without_the_others(
    app: Workhorse, sizes: list[int]
) -> None:
    mails = app.registry.require("mails")
    with Kit(app, concurrency=10) as kit:
        good, bad = mails.enqueue("a@x"), mails.enqueue("nobody")
        kit.run_to_end(bad)

        assert good.view().attempt == 1
        assert (bad.view().attempt, bad.view().error_message) == (2, "nobody")
        assert sizes == [2, 1]


def test_run_now_is_a_batch_of_one(app: Workhorse, sizes: list[int]) -> None:
    mails = app.registry.require("mails")
    with Kit(app):
        assert mails.run_now("a@x").result() == "sent to a@x"

        async def from_a_loop() -> Any:
            return (await mails.run_now_async("b@x")).result()

        assert asyncio.run(from_a_loop()) == "sent to b@x"
        once = mails.run_now
        with pytest.raises(RunFailedError):
            once("nobody", retry=RetryPolicy(max_attempts=1))
        assert sizes == [1, 1, 1]


def test_a_run_of_batches_may_be_a_child(app: Workhorse, sizes: list[int]) -> None:
    mails = app.registry.require("mails")

    @app.task("parent")
    def parent(ctx: Context) -> list[Any]:
        return ctx.children("mails", mails, ["a@x", "b@x"])

    with Kit(app, concurrency=10) as kit:
        run = parent.enqueue()
        kit.run_to_end(run)

        assert run.result() == ["sent to a@x", "sent to b@x"]
        assert sum(sizes) == 2  # one claim may be between the starts of the two
