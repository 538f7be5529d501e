"""What a function makes of a batch: one of each kind, under the real runtime interface client."""

from __future__ import annotations

from tests.functions.conftest import Deployed, body_of, counted, event_of
from tests.support.faults import break_claims_of
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import RunState


def test_a_batch_of_each_kind_keeps_the_failed_store_call_alone(deployed: Deployed) -> None:
    """One of each: what comes back is sent anew, and one message alone stays in the queue."""
    function = deployed.function()
    finished = deployed.new("quick", "finished")
    function.invoke(event_of(body_of(finished)))
    assert deployed.state(finished) is RunState.SUCCEEDED
    assert deployed.queue.counts().total == 0

    unknown, early = new_run_id(), deployed.new("quick", "early", delay_ms=20_000)
    elsewhere = deployed.new("of another program", "elsewhere")
    fine = [deployed.new("quick", f"fine {i}") for i in range(3)]
    fine_async = deployed.new("quick_async", "fine")
    broken = deployed.new("quick", "broken")
    break_claims_of(deployed.store, broken)
    event = event_of(
        "{no JSON", *map(body_of, [finished, unknown, early, elsewhere, broken, *fine, fine_async])
    )

    answer = function.invoke(event)

    kept = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    assert kept == [r["messageId"] for r in event["Records"] if r["body"] == body_of(broken)]
    assert {deployed.state(run_id) for run_id in [*fine, fine_async]} == {RunState.SUCCEEDED}
    assert deployed.state(broken) is RunState.READY
    assert sorted(deployed.witnessed()) == [
        "quick fine 0", "quick fine 1", "quick fine 2", "quick finished", "quick_async fine",
    ]  # fmt: skip
    assert deployed.queue.counts().delayed == 2  # the unknown one and the early one
    assert deployed.queue.counts().total == 2
    notes = ("malformed", "unknown_task", "unseen", "early", "stale")
    assert [counted(function, f"messages[{note}]") for note in notes] == [1] * 5
    assert unreadable_id(event) in function.output()
    assert "no JSON" not in function.output()


def test_a_run_that_nobody_named_does_not_stand_in_the_way(deployed: Deployed) -> None:
    """A scan that meets the broken run fails; what the batch names is looked at all the same."""
    function = deployed.function()
    break_claims_of(deployed.store, deployed.new("quick", "broken"))
    named, unknown = deployed.new("quick", "named"), new_run_id()
    for run_id in (named, unknown):
        assert function.invoke(event_of(body_of(run_id))) == {"batchItemFailures": []}
    assert deployed.state(named) is RunState.SUCCEEDED
    assert deployed.queue.counts().delayed == deployed.queue.counts().total == 1


def unreadable_id(event: dict[str, list[dict[str, str]]]) -> str:
    return next(r["messageId"] for r in event["Records"] if r["body"] == "{no JSON")
