"""A function's own time-out: what is begun under it, and how what still runs ends before it."""

from __future__ import annotations

import pytest

from tests.functions.conftest import Deployed, body_of, event_of
from tests.functions.program import ONCE_AGAIN
from tests.support.eventually import eventually
from tests.support.lambda_runtime import FunctionError
from workhorse.domain.runs import RunState

ENDED: dict[str, list[str]] = {"batchItemFailures": []}


def test_a_handler_that_would_overrun_is_handed_back_in_time(deployed: Deployed) -> None:
    """It is told to stop, then cancelled; another invocation ends the run, no attempt is spent."""
    function = deployed.function(min_time_left_seconds="5", concurrency="1")
    function.invoke(event_of(body_of(deployed.new("quick", "warm up"))))
    run_id = deployed.new("obedient", retry=ONCE_AGAIN)
    behind = deployed.new("quick", "behind")

    answer = function.invoke(event_of(body_of(run_id)), timeout_s=8)

    assert answer == ENDED
    assert [line for line in deployed.witnessed() if "obedient" in line] == [
        "obedient one begins, 1",
        "obedient one is to stop",
        "obedient one is cancelled",
    ]
    assert (deployed.state(run_id), deployed.view(run_id).attempt) == (RunState.READY, 1)
    # One wakeup for what was handed back, and one since the queue has more than was taken.
    assert deployed.queue.counts().visible == 2
    mapping = deployed.mapping(function)
    assert mapping.poll() == []
    assert deployed.state(run_id) is deployed.state(behind) is RunState.SUCCEEDED
    assert deployed.view(run_id).attempt == 1
    assert deployed.queue.counts().total == 0


def test_a_plain_handler_that_does_not_stop_does_not_keep_the_function(deployed: Deployed) -> None:
    """Its run is handed back and run elsewhere; what it comes to in the end is not stored."""
    function, other = (deployed.function(min_time_left_seconds="4") for _ in range(2))
    function.invoke(event_of(body_of(deployed.new("quick", "warm up"))))
    run_id = deployed.new("obstinate", retry=ONCE_AGAIN)

    assert function.invoke(event_of(body_of(run_id)), timeout_s=8) == ENDED

    function.freeze()
    assert deployed.mapping(other).poll() == []
    assert deployed.view(run_id).result == '"one under fence 2"'
    deployed.witness_file.with_name("witness.open").touch()
    function.thaw()
    deployed.sees("obstinate one ends, fence 1")
    last = deployed.new("quick", "last")
    assert function.invoke(event_of(body_of(last))) == ENDED
    assert deployed.view(run_id).result == '"one under fence 2"'
    assert function.starts == 1


def test_a_run_is_begun_only_while_its_task_has_time(deployed: Deployed) -> None:
    """With four seconds left there is time for the one task, and the other is left to others."""
    function = deployed.function(min_time_left_seconds="6")
    function.invoke(event_of(body_of(deployed.new("quick", "warm up"))))
    fits, too_long = deployed.new("short"), deployed.new("quick", "too long")

    assert function.invoke(event_of(body_of(fits), body_of(too_long)), timeout_s=5) == ENDED

    assert deployed.state(fits) is RunState.SUCCEEDED
    assert deployed.state(too_long) is RunState.READY
    assert "task 'quick' is begun only while 6.0 s are left" in function.output()


def test_what_there_is_no_time_for_any_more_is_sent_anew(deployed: Deployed) -> None:
    """At its end an invocation begins nothing more; the messages go on to the next one at once."""
    function = deployed.function(min_time_left_seconds="5", concurrency="1")
    function.invoke(event_of(body_of(deployed.new("quick", "warm up"))))
    blocking = deployed.new("obedient", retry=ONCE_AGAIN)
    names = [deployed.new("quick", f"{number}") for number in range(3)]

    answer = function.invoke(event_of(*map(body_of, [blocking, *names])), timeout_s=8)

    assert answer == ENDED
    assert {deployed.state(run_id) for run_id in names} == {RunState.READY}
    mapping = deployed.mapping(function)
    while mapping.poll() is not None:
        pass
    assert {deployed.state(run_id) for run_id in [blocking, *names]} == {RunState.SUCCEEDED}


def test_a_function_whose_time_is_too_short_for_anything_says_so(deployed: Deployed) -> None:
    function = deployed.function(min_time_left_seconds="30")
    run_id = deployed.new("quick")
    with pytest.raises(FunctionError, match=r"begun with less than 3\.0 s left") as failed:
        function.invoke(event_of(body_of(run_id)), timeout_s=2.5)
    assert failed.value.kind == "ConfigurationError"
    assert deployed.state(run_id) is RunState.READY


def test_one_wakeup_empties_a_queue(deployed: Deployed) -> None:
    """The invocation goes on by scan while there is something, and then says nothing to anybody."""
    function = deployed.function(concurrency="4")
    names = [deployed.new("chain", number) for number in range(30)]
    assert function.invoke(event_of(body_of(names[0]))) == ENDED
    assert {deployed.state(run_id) for run_id in names} == {RunState.SUCCEEDED}
    assert deployed.queue.counts().total == 0


def test_what_an_end_frees_is_run_by_the_same_invocation(deployed: Deployed) -> None:
    """The runs of a session take turns; none of them waits for an invocation of its own."""
    function = deployed.function()
    names = [deployed.new("quick_async", f"{number}", session="s") for number in range(3)]
    assert function.invoke(event_of(body_of(names[0]))) == ENDED
    assert {deployed.state(run_id) for run_id in names} == {RunState.SUCCEEDED}
    assert deployed.witnessed() == [f"quick_async {number}" for number in range(3)]


def test_a_process_that_is_killed_leaves_its_run_to_others(deployed: Deployed) -> None:
    """As Lambda does at the time-out, whatever the reason: the lease runs out, and it is run."""
    function = deployed.function(lease_seconds="1")
    run_id = deployed.new("obstinate", retry=ONCE_AGAIN)
    call = function.begin(event_of(body_of(run_id)))
    deployed.sees("obstinate one begins")
    function.kill()
    with pytest.raises(FunctionError):
        function.finish(call)

    def taken_over() -> bool:
        function.invoke(event_of(body_of(run_id)))
        return deployed.state(run_id) is RunState.SUCCEEDED

    eventually(taken_over, within=40, what="another environment ends the run")
    assert (deployed.view(run_id).attempt, function.starts) == (2, 2)
