"""Children: runs that are started once, and whose ends are their parent's to know."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tests.handlers.durable import World
from workhorse.domain.boundaries import BoundaryKind, DeliveryState
from workhorse.domain.ids import RunId
from workhorse.domain.recording import Record, RecordAnswer
from workhorse.domain.runs import Reason
from workhorse.errors import (
    ChildFailedError,
    ConfigurationError,
    InvalidInstantError,
    InvalidNameError,
    UnstorableValueError,
    WaitConflictError,
)
from workhorse.handlers.failures import reason_for
from workhorse.handlers.recording import Pending
from workhorse.handlers.registry import TaskRegistry

CHILD, GROUP = BoundaryKind.CHILD, BoundaryKind.GROUP
FAILED, CANCELLED = DeliveryState.FAILED, DeliveryState.CANCELLED
END = {
    "run_id": "0197",
    "task": "ship",
    "reason": "error",
    "error_type": "builtins.ValueError",
    "error_message": "no stock\nmore of it",
}
REGISTRY = TaskRegistry()


class Receipt(BaseModel):
    cents: int


def ship(order: int) -> Receipt:
    return Receipt(cents=order)


SHIP = REGISTRY.register(ship, "ship", queue="slow", aliases=["send"])
PLAIN = REGISTRY.register(lambda payload: payload, "plain")


def begun(world: World, name: str, *arguments: Any, **options: Any) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.child(name, *arguments, **options))


def child_ids(world: World) -> list[RunId]:
    return [record.child.run.id for record in world.run.records if record.child]


# -- one -----------------------------------------------------------------------------------------


def test_a_child_is_started_once_and_its_result_is_decoded(world: World) -> None:
    begun(world, "ship", SHIP, 5, priority=7, deadline=timedelta(hours=1))
    begun(world, "ship", SHIP, 5)

    [record] = world.run.records
    assert record.child is not None
    run = record.child.run
    assert (run.task, run.queue, run.payload, run.priority) == ("ship", "slow", "5", 7)
    assert (run.parent, run.keep, run.deadline_ms) == (world.run.claimed.id, False, 3_600_000)
    assert json.loads(record.boundary.detail or "") == run.id
    assert record.child.on_parent_end == "cancel"

    world.run.deliver(CHILD, "ship", {"cents": 5})
    assert world.activate().child("ship", SHIP, 5) == Receipt(cents=5)


def test_a_child_may_be_kept_when_its_parent_ends(world: World) -> None:
    begun(world, "ship", SHIP, 5, on_parent_end="keep")
    [record] = world.run.records
    assert record.child is not None
    assert (record.child.run.keep, record.child.on_parent_end) == (True, "keep")


@pytest.mark.parametrize(
    ("state", "end", "said"),
    [
        (FAILED, END, "has failed (error): builtins.ValueError: no stock"),
        (CANCELLED, {**END, "reason": "cancelled", "error_type": None}, "was cancelled"),
    ],
)
def test_a_child_that_did_not_succeed_raises_in_each_activation(
    world: World, state: DeliveryState, end: dict[str, object], said: str
) -> None:
    begun(world, "ship", SHIP, 5)
    world.run.deliver(CHILD, "ship", end, state)
    for _ in range(2):
        with pytest.raises(ChildFailedError, match="child 'ship'") as raised:
            world.activate().child("ship", SHIP, 5)
        error = raised.value
        assert str(error).endswith(said)
        assert (error.run_id, error.reason, error.error_type, error.error_message) == (
            end["run_id"],
            end["reason"],
            end["error_type"],
            end["error_message"],
        )
    assert reason_for(None, error) is Reason.NOT_RETRYABLE, "each attempt would meet it again"


def test_another_payload_or_task_under_its_name_conflicts(world: World) -> None:
    begun(world, "ship", SHIP, 5)
    for task, payload in ((SHIP, 6), (PLAIN, 5)):
        with pytest.raises(WaitConflictError, match="child 'ship' was started with another"):
            world.activate().child("ship", task, payload)
    assert len(world.run.records) == 1


def test_a_task_that_was_renamed_is_the_same_task(world: World) -> None:
    before = TaskRegistry().register(ship, "send")
    begun(world, "ship", before, 5)
    begun(world, "ship", SHIP, 5)
    assert len(world.run.records) == 1


def test_what_cannot_work_is_refused_before_anything_is_started(world: World) -> None:
    ctx = world.activate(session="customer 7")
    for error, task, options in (
        (ConfigurationError, SHIP, {"key": "k"}),
        (ConfigurationError, SHIP, {"session": "customer 7"}),
        (ConfigurationError, SHIP, {"on_parent_end": "forget"}),
        (ConfigurationError, ship, {}),
        (InvalidNameError, SHIP, {"queue": "NO"}),
        (InvalidInstantError, SHIP, {"timeout": timedelta(0)}),
    ):
        with pytest.raises(error):
            ctx.child("ship", task, 5, **options)
    with pytest.raises(UnstorableValueError):
        ctx.child("ship", SHIP, "five")
    assert world.run.records == []
    begun(world, "ship", SHIP, 5, session="another", key=None)


def test_a_result_that_was_left_out_of_the_claim_is_read(world: World) -> None:
    begun(world, "ship", SHIP, 5)
    world.run.deliver(CHILD, "ship", {"cents": 5})
    world.run.left_out = {"ship"}
    assert world.activate().child("ship", SHIP, 5) == Receipt(cents=5)


# -- many ----------------------------------------------------------------------------------------


def group(world: World, payloads: list[int], **options: Any) -> None:
    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.children("all", SHIP, payloads, **options))


def test_children_all_start_and_their_results_come_in_order(world: World) -> None:
    group(world, [1, 2, 3])
    assert [record.boundary.name for record in world.run.records] == [
        "all",
        "all[0]",
        "all[1]",
        "all[2]",
    ]
    assert world.run.boundaries["all"].kind is GROUP

    world.run.deliver(CHILD, "all[2]", {"cents": 3})
    group(world, [1, 2, 3])
    world.run.deliver(CHILD, "all[0]", {"cents": 1})
    world.run.deliver(CHILD, "all[1]", {"cents": 2})

    assert world.activate().children("all", SHIP, [1, 2, 3]) == [
        Receipt(cents=1),
        Receipt(cents=2),
        Receipt(cents=3),
    ]
    assert len(world.run.records) == 4


def test_children_start_together_and_not_one_by_one(world: World) -> None:
    """Their writes are all on their way before the first answer: they share a commit."""
    under_way: list[int] = []
    write = world.run.record

    def watched(record: Record) -> Pending[RecordAnswer]:
        world.run.hold = record.child is not None
        pending = write(record)
        if record.child is not None:
            under_way.append(len(world.run.held))
            if len(world.run.held) == 2:
                world.run.release()
        return pending

    world.run.record = watched  # type: ignore[method-assign]
    group(world, [1, 2])

    assert under_way == [1, 2]


def test_no_children_are_no_wait(world: World) -> None:
    assert world.activate().children("all", SHIP, []) == []
    with pytest.raises(WaitConflictError):
        world.activate().children("all", SHIP, [1])


def test_max_parallel_limits_how_many_are_unfinished(world: World) -> None:
    group(world, [1, 2, 3], max_parallel=2)
    assert len(child_ids(world)) == 2
    group(world, [1, 2, 3], max_parallel=2)
    assert len(child_ids(world)) == 2

    world.run.deliver(CHILD, "all[1]", {"cents": 2})
    group(world, [1, 2, 3], max_parallel=2)
    assert [record.boundary.name for record in world.run.records if record.child][2:] == ["all[2]"]

    ctx = world.activate()
    world.suspends(ctx, lambda: ctx.children("all", SHIP, [1, 2, 3], max_parallel=2))
    assert [wait.name for wait in ctx.core.suspension] == ["all[0]", "all[2]"]


def test_raise_raises_the_first_failure_and_lets_the_others_go_on(world: World) -> None:
    group(world, [1, 2, 3], max_parallel=2)
    world.run.deliver(CHILD, "all[1]", END, FAILED)

    for _ in range(2):
        with pytest.raises(ChildFailedError, match=r"all\[1\]"):
            world.activate().children("all", SHIP, [1, 2, 3], max_parallel=2)
        world.run.deliver(CHILD, "all[0]", END, FAILED)  # later, and so not the first

    assert len(child_ids(world)) == 2, "none is started after a failure"
    assert all(record.cancels == () for record in world.run.records)


def test_cancel_asks_once_that_the_others_end(world: World) -> None:
    group(world, [1, 2, 3, 4], max_parallel=3, on_failure="cancel")
    ids = child_ids(world)
    world.run.deliver(CHILD, "all[0]", {"cents": 1})
    world.run.deliver(CHILD, "all[1]", END, FAILED)

    for _ in range(2):
        with pytest.raises(ChildFailedError, match=r"all\[1\]"):
            world.activate().children("all", SHIP, [1, 2, 3, 4], on_failure="cancel")
        world.run.deliver(CHILD, "all[2]", {**END, "reason": "cancelled"}, CANCELLED)

    asked = [record for record in world.run.records if record.cancels]
    assert [(each.boundary.name, each.cancels) for each in asked] == [("all[cancel]", (ids[2],))]


def test_return_gives_results_and_failures_in_their_places(world: World) -> None:
    group(world, [1, 2], on_failure="return")
    world.run.deliver(CHILD, "all[0]", END, FAILED)
    group(world, [1, 2], on_failure="return")
    world.run.deliver(CHILD, "all[1]", {"cents": 2})

    failed, result = world.activate().children("all", SHIP, [1, 2], on_failure="return")

    assert isinstance(failed, ChildFailedError)
    assert failed.reason == "error"
    assert result == Receipt(cents=2)


def test_another_number_of_payloads_or_another_payload_conflicts(world: World) -> None:
    group(world, [1, 2])
    with pytest.raises(WaitConflictError, match="another number of payloads"):
        world.activate().children("all", SHIP, [1, 2, 3])
    with pytest.raises(WaitConflictError, match=r"all\[1\]"):
        world.activate().children("all", SHIP, [1, 3])


@pytest.mark.parametrize(
    "options",
    [
        {"on_failure": "ignore"},
        {"on_parent_end": "forget"},
        {"max_parallel": 0},
        {"max_parallel": 1.5},
        {"max_parallel": True},
    ],
)
def test_an_option_of_children_that_cannot_work_is_refused(
    world: World, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match="'all'"):
        world.activate().children("all", SHIP, [1], **options)
    assert world.run.records == []


def test_nothing_is_started_where_one_of_the_children_can_never_be(world: World) -> None:
    ctx = world.activate()
    for error, task, payloads, options in (
        (UnstorableValueError, SHIP, [1, 2, "three"], {}),
        (ConfigurationError, ship, [1], {}),
        (ConfigurationError, SHIP, [1], {"key": "k"}),
        (InvalidNameError, SHIP, [1], {"queue": "NO"}),
    ):
        with pytest.raises(error):
            ctx.children("all", task, payloads, **options)
    assert world.run.records == []


def test_the_names_of_the_members_must_fit(world: World) -> None:
    with pytest.raises(InvalidNameError):
        world.activate().children("x" * 196, SHIP, [1])
    assert world.run.records == []
