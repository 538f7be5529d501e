"""Batch handlers in a worker: what makes a batch, and how each of its runs ends by itself."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from tests.runtime.batches import LATER, ONCE, Items, enqueue, handler, states
from tests.runtime.faults import FaultyStore
from tests.runtime.rig import Gate, Rig
from tests.support.eventually import eventually
from workhorse import BatchItem, current_context
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import Reason, RunState
from workhorse.errors import ConfigurationError
from workhorse.handlers.context import Context

# -- what makes a batch --------------------------------------------------------------------------


def test_the_runs_of_a_claim_are_cut_to_the_size_of_their_task(rig: Rig, kind: str) -> None:
    handed: list[list[int]] = []
    lock = threading.Lock()

    def body(items: Items) -> None:
        with lock:
            handed.append([item.payload for item in items])

    rig.task("t", batch=3)(handler(kind, body))
    run_ids = enqueue(rig, 7)

    assert rig.worker(concurrency=10).drain() == 7

    assert sorted(handed) == [[0, 1, 2], [3, 4, 5], [6]]
    assert set(states(rig, run_ids)) == {"succeeded"}


def test_a_batch_is_no_larger_than_the_slots_that_are_free(rig: Rig, kind: str) -> None:
    handed: list[int] = []
    rig.task("t", batch=100)(handler(kind, lambda items: handed.append(len(items))))
    enqueue(rig, 10)

    assert rig.worker(concurrency=4).drain() == 10

    assert handed == [4, 4, 2]


def test_each_task_of_a_claim_has_batches_of_its_own(rig: Rig, kind: str) -> None:
    handed: dict[str, list[int]] = {"t": [], "u": []}
    single: list[int] = []
    for name in ("t", "u"):
        rig.task(name, batch=100)(
            handler(kind, lambda items, name=name: handed[name].append(len(items)))  # type: ignore[misc]
        )
    rig.task("single")(lambda number: single.append(number))
    for number in range(3):
        rig.enqueue("t")
        rig.enqueue("u")
        rig.enqueue("single", str(number))

    assert rig.worker(concurrency=9).drain() == 9

    assert handed == {"t": [3], "u": [3]}
    assert sorted(single) == [0, 1, 2]


def test_a_hundred_runs_cost_one_claim_and_one_settle(rig: Rig, kind: str) -> None:
    taken: list[int] = []

    def claims(carry_out: Callable[[], Any]) -> Any:
        claim = carry_out()
        taken.append(len(claim.runs))
        return claim

    rig.task("t", batch=100)(handler(kind, lambda items: [item.payload for item in items]))
    run_ids = enqueue(rig, 100)

    with closing(FaultyStore(rig.store)) as store:
        store.faults["claim"] = claims
        assert rig.worker(concurrency=200, store=store).drain() == 100

        assert store.calls.count("write_batch") == 1
    assert [count for count in taken if count] == [100]
    assert set(states(rig, run_ids)) == {"succeeded"}


def test_process_run_makes_a_batch_of_one(rig: Rig, kind: str) -> None:
    rig.task("t", batch=100)(handler(kind, lambda items: [len(items)]))

    claimed = rig.claimed("t")

    assert rig.worker().process_run(claimed) is RunState.SUCCEEDED
    assert rig.view(claimed.id).result == "1"


# -- what decides --------------------------------------------------------------------------------


def test_results_are_stored_run_by_run_and_one_that_fails_is_tried_again_alone(
    rig: Rig, kind: str
) -> None:
    values: list[Any] = ["zero", ValueError("one"), object(), "x" * (1 << 20), None, [5]]
    sizes: list[int] = []

    def body(items: Items) -> list[Any]:
        sizes.append(len(items))
        return [values[item.payload] for item in items]

    rig.task("t", batch=100)(handler(kind, body))
    run_ids = enqueue(rig, 6, retry=RetryPolicy(max_attempts=2, first=timedelta(0)))

    rig.worker(concurrency=10).drain()

    views = [rig.view(run_id) for run_id in run_ids]
    assert [view.result for view in views] == ['"zero"', None, None, None, "null", "[5]"]
    assert [(view.reason, view.attempt) for view in views[1:4]] == [
        (Reason.ERROR, 2), (Reason.NOT_RETRYABLE, 1), (Reason.NOT_RETRYABLE, 1)
    ]  # fmt: skip
    assert [view.error_type for view in views[1:4]] == [
        "builtins.ValueError",
        "workhorse.errors.UnstorableValueError",
        "workhorse.errors.ValueTooLargeError",
    ]
    assert sizes == [6, 1]


def test_a_handler_that_returns_nothing_has_succeeded_with_all(rig: Rig, kind: str) -> None:
    rig.task("t", batch=100)(handler(kind, lambda items: None))
    run_ids = enqueue(rig, 3)

    rig.worker().drain()

    assert [rig.view(run_id).result for run_id in run_ids] == ["null"] * 3


def test_what_is_decided_early_is_settled_while_the_handler_goes_on(rig: Rig, kind: str) -> None:
    gate = Gate()
    said: list[Any] = []

    def body(items: Items) -> list[Any]:
        said.append(items[0].succeed({"early": True}))
        said.append(items[1].fail(ValueError("early")))
        said.append(items[2].succeed(object()))
        gate.come()
        said.append([item.decided for item in items])
        said.append(items[0].succeed("again"))
        said.append(items[0].fail(ValueError("again")))
        return ["late", "late", "late", "late"]

    rig.task("t", batch=4)(handler(kind, body))
    run_ids = enqueue(rig, 4, retry=LATER)
    worker = rig.worker(concurrency=4)
    worker.start()
    gate.wait()

    eventually(
        lambda: states(rig, run_ids) == ["succeeded", "scheduled", "failed", "running"],
        what="three are settled",
    )
    assert worker._parts.slots.free == 0
    assert worker.busy()
    gate.open()

    eventually(lambda: worker._parts.slots.free == 4)
    assert said == [True, True, True, [True, True, True, False], False, False]
    assert [rig.view(run_id).result for run_id in run_ids] == [
        '{"early":true}', None, None, '"late"'
    ]  # fmt: skip
    assert rig.view(run_ids[1]).attempt == 2


@pytest.mark.parametrize("returned", [[1], [1, 2, 3, 4], (), "abc", {"a": 1}, 3, range(3)])
def test_a_result_that_fits_no_run_fails_what_is_undecided_and_names_both_lengths(
    rig: Rig, kind: str, returned: Any
) -> None:
    def body(items: Items) -> Any:
        items[1].succeed("early")
        return returned

    rig.task("t", batch=3)(handler(kind, body))
    run_ids = enqueue(rig, 3)

    rig.worker().drain()

    views = [rig.view(run_id) for run_id in run_ids]
    assert [view.state.value for view in views] == ["failed", "succeeded", "failed"]
    for view in (views[0], views[2]):
        assert (view.reason, view.attempt) == (Reason.NOT_RETRYABLE, 1)
        message = view.error_message or ""
        if isinstance(returned, list | tuple):
            assert "3 runs" in message
            assert f"{len(returned)} results" in message
        else:
            assert f"returned a {type(returned).__name__}" in message


def test_a_plain_handler_that_returns_an_awaitable_has_done_nothing(rig: Rig) -> None:
    async def work(items: list[BatchItem[Any]]) -> None:
        raise AssertionError("nobody awaits it")

    rig.task("t", batch=3)(handler("plain", work))
    (run_id,) = enqueue(rig, 1)

    rig.worker().drain()

    assert "async def" in (rig.view(run_id).error_message or "")


def test_an_error_fails_what_is_undecided_each_by_its_own_policy(rig: Rig, kind: str) -> None:
    def body(items: Items) -> None:
        items[0].succeed("early")
        raise ConnectionError("the warehouse is away")

    rig.task("t", batch=3)(handler(kind, body))
    run_ids = [
        rig.enqueue("t", "0"),
        rig.enqueue("t", "1", retry=ONCE),
        rig.enqueue("t", "2", retry=LATER),
    ]

    rig.worker().drain()

    assert states(rig, run_ids) == ["succeeded", "failed", "scheduled"]
    view = rig.view(run_ids[1])
    assert (view.error_type, view.error_message) == (
        "builtins.ConnectionError", "the warehouse is away"
    )  # fmt: skip
    assert "in body" in (view.error_traceback or "")


def test_errors_that_the_task_names_are_not_tried_again(rig: Rig, kind: str) -> None:
    def body(items: Items) -> list[Any]:
        items[0].fail(KeyError("early"))
        return [None, KeyError("late"), ValueError()]

    rig.task("t", batch=3, not_retryable=(KeyError,))(handler(kind, body))
    run_ids = enqueue(rig, 3, retry=LATER)

    rig.worker().drain()

    assert states(rig, run_ids) == ["failed", "failed", "scheduled"]


def test_a_payload_that_does_not_fit_fails_its_own_run_alone(rig: Rig, kind: str) -> None:
    handed: list[Any] = []

    def plain(items: list[BatchItem[int]]) -> None:
        handed.append([item.payload for item in items])

    async def waits(items: list[BatchItem[int]]) -> None:
        handed.append([item.payload for item in items])

    rig.task("t", batch=3)(plain if kind == "plain" else waits)
    run_ids = [rig.enqueue("t", payload) for payload in ("1", '"two"', "3", '"four"')]
    worker = rig.worker(concurrency=4)

    assert worker.drain() == 4

    assert states(rig, run_ids) == ["succeeded", "failed", "succeeded", "failed"]
    assert rig.view(run_ids[1]).reason is Reason.NOT_RETRYABLE
    assert handed == [[1, 3]]  # the fourth was alone in its batch


def test_what_is_not_handed_over_keeps_no_slot(rig: Rig, kind: str) -> None:
    gate = Gate()

    def plain(items: list[BatchItem[int]]) -> None:
        gate.come()

    async def waits(items: list[BatchItem[int]]) -> None:
        await asyncio.to_thread(gate.come)

    rig.task("t", batch=3)(plain if kind == "plain" else waits)
    run_ids = [rig.enqueue("t", payload) for payload in ("1", '"two"', "3")]
    worker = rig.worker(concurrency=4)
    worker.start()
    gate.wait()

    eventually(lambda: worker._parts.slots.free == 2)
    assert states(rig, run_ids) == ["running", "failed", "running"]
    gate.open()
    eventually(lambda: worker._parts.slots.free == 4)


class NoLength(list[Any]):
    """A result that cannot even be looked at."""

    def __len__(self) -> int:
        raise ValueError("no length")


def test_a_result_that_cannot_be_looked_at_is_an_error_like_others(rig: Rig, kind: str) -> None:
    rig.task("t", batch=3)(handler(kind, lambda items: NoLength()))
    run_ids = enqueue(rig, 2, retry=ONCE)

    rig.worker().drain()

    assert [rig.view(run_id).error_message for run_id in run_ids] == ["no length"] * 2


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
    ids=repr,
)
def test_case_17_whatever_a_handler_raises_is_these_attempts_failure(
    rig: Rig, kind: str, error: BaseException
) -> None:
    def plain(items: list[BatchItem[int]]) -> None:
        raise error

    async def waits(items: list[BatchItem[int]]) -> None:
        raise error

    rig.task("t", batch=3)(plain if kind == "plain" else waits)
    rig.task("light")(lambda: None)
    run_ids = enqueue(rig, 3, retry=ONCE)
    worker = rig.worker()
    worker.start()

    eventually(lambda: set(states(rig, run_ids)) == {"failed"})
    assert type(error).__name__ in (rig.view(run_ids[2]).error_type or "")
    light = rig.enqueue("light")
    eventually(lambda: rig.state(light) is RunState.SUCCEEDED)


@pytest.mark.parametrize("error", [ValueError, "text", None], ids=repr)
def test_case_17_what_is_no_error_fails_its_run_all_the_same(rig: Rig, error: Any) -> None:
    rig.task("t", batch=3)(handler("plain", lambda items: items[1].fail(error) and None))
    run_ids = enqueue(rig, 3, retry=ONCE)

    rig.worker().drain()

    assert states(rig, run_ids) == ["succeeded", "failed", "succeeded"]


def test_a_batch_has_no_context_and_context_variables_of_its_own(rig: Rig, kind: str) -> None:
    of_worker: contextvars.ContextVar[str] = contextvars.ContextVar("of_worker", default="nobody's")
    seen: list[Any] = []

    def note() -> None:
        seen.append(of_worker.get())
        of_worker.set("of the batch before")
        with pytest.raises(ConfigurationError, match="a batch handler is running here"):
            current_context()

    def plain(items: list[BatchItem[int]]) -> None:
        note()

    async def waits(items: list[BatchItem[int]]) -> None:
        note()

    task = rig.task("t", batch=1)(plain if kind == "plain" else waits)
    run_ids = enqueue(rig, 3)
    of_worker.set("the worker's")
    worker = rig.worker()
    worker.start()
    eventually(lambda: set(states(rig, run_ids)) == {"succeeded"})
    worker.stop()
    assert seen == ["the worker's"] * 3

    @rig.task("outer")
    def outer(ctx: Context) -> str:
        inner.process_run(claimed)
        return "its own" if current_context() is ctx else "another's"

    claimed = rig.claimed("t", "1")
    inner = rig.worker()
    run = rig.claimed("outer")
    assert rig.worker().process_run(run) is RunState.SUCCEEDED
    assert rig.view(run.id).result == '"its own"'
    assert rig.state(claimed.id) is RunState.SUCCEEDED
    assert task.batch == 1
