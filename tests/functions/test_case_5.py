"""Case 5: throttled deliveries burn the receive count and dead-letter untouched messages."""

from __future__ import annotations

import json

from tests.functions.conftest import Deployed
from tests.support.eventually import eventually
from workhorse.domain.runs import RunState

RUNS = 25


def test_case_5_untouched_messages_are_dead_lettered_and_every_run_is_run(
    deployed: Deployed,
) -> None:
    """The store has the runs: maintenance tops the queue up, and functions run them."""
    name = f"{deployed.prefix}default"
    deployed.queue.delete()
    deployed.queue = deployed.endpoint.create_queue(name, visibility_s=1, dead_letters_after=1)
    dead = deployed.endpoint.queue(f"dead-{name}")
    runs = [deployed.new("quick", f"{number}") for number in range(RUNS)]
    deployed.put(*runs)

    def throttled() -> bool:
        deployed.queue.take()  # received, and not handled: the function was throttled
        return dead.counts().total == RUNS

    eventually(throttled, within=60, what="every wakeup is dead-lettered")
    assert deployed.queue.counts().total == 0
    (finding,) = [
        each for each in deployed.app().lane.check("default") if "maxReceiveCount" in each.sentence
    ]
    assert "1" in finding.sentence

    maintained = deployed.function("program.maintain", hint_stride="1").invoke({})
    assert maintained["counts"]["top_up"] == RUNS
    assert maintained["failed"] == {}
    # From here on nothing is throttled: a queue of which each message is received once.
    deployed.endpoint.client.set_queue_attributes(
        QueueUrl=deployed.queue.url, Attributes={"VisibilityTimeout": "60"}
    )
    mapping = deployed.mapping(deployed.function())
    while mapping.poll() is not None:
        pass

    views = [deployed.view(run_id) for run_id in runs]
    assert {view.state for view in views} == {RunState.SUCCEEDED}
    assert {view.attempt for view in views} == {1}  # a receive is no attempt
    assert sorted(deployed.witnessed()) == sorted(f"quick {number}" for number in range(RUNS))
    # What lies in the dead-letter queue is harmless: wakeups of runs that have ended.
    bodies = [json.loads(message["Body"])["run_id"] for message in dead.take()]
    assert set(bodies) <= set(runs)
