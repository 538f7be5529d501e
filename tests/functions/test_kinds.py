"""Handlers of each kind, FIFO queues, events that are none, and messages that cannot be sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.functions.conftest import Deployed, body_of, counted, event_of
from tests.support.lambda_runtime import FunctionError, a_record
from tests.support.sqs_proxy import UNAVAILABLE, Answer, SqsProxy
from workhorse import Workhorse, lambda_handler
from workhorse.domain.ids import RunId, new_run_id
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError

ENDED: dict[str, Any] = {"batchItemFailures": []}


def kept(answer: dict[str, Any]) -> list[str]:
    return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


def test_handlers_of_every_kind_run(deployed: Deployed) -> None:
    """Plain, async, many runs at once, and in a process of its own, in one invocation and again."""
    function = deployed.function()
    for _ in range(2):
        run_ids = [
            deployed.new("quick"), deployed.new("quick_async"), deployed.new("many", "a"),
            deployed.new("many", "b"), deployed.new("square", 7),
        ]  # fmt: skip
        assert function.invoke(event_of(*map(body_of, run_ids))) == ENDED
        assert {deployed.state(run_id) for run_id in run_ids} == {RunState.SUCCEEDED}
        assert deployed.view(run_ids[-1]).result == "49"
    assert deployed.witnessed().count("many a b") == 2
    assert deployed.witnessed().count("square in another process: True") == 2


def test_a_run_that_is_not_there_is_looked_for_twice(deployed: Deployed) -> None:
    """Its wakeup comes back once, by a message of its own, however often SQS counted."""
    function = deployed.function()
    unknown = new_run_id()
    record = a_record(body_of(unknown), attributes={"ApproximateReceiveCount": "5"})
    assert function.invoke({"Records": [record]}) == ENDED
    assert deployed.queue.counts().delayed == 1
    # It comes back as the first receipt of a new message, which says that it was looked for.
    again = deployed.function()
    assert again.invoke(event_of(f'{body_of(unknown)[:-1]},"missed":1}}')) == ENDED
    assert counted(again, "messages[missing]") == 1
    assert deployed.queue.counts().total == 1  # the first one alone


def test_the_same_run_named_twice_is_run_once(deployed: Deployed) -> None:
    function = deployed.function()
    run_id = deployed.new("quick")
    assert function.invoke(event_of(*[body_of(run_id)] * 5)) == ENDED
    assert deployed.witnessed() == ["quick one"]
    assert deployed.queue.counts().total == 0


def test_a_queue_that_the_function_does_not_serve(deployed: Deployed) -> None:
    """Its wakeups are deleted and counted, and the log says why nothing came of them."""
    function = deployed.function()
    run_id = deployed.new("quick", queue="elsewhere")
    assert function.invoke(event_of(body_of(run_id, "elsewhere"))) == ENDED
    assert deployed.state(run_id) is RunState.READY
    assert counted(function, "messages[other_queue]") == 1
    assert "queue 'elsewhere', which this function does not serve" in function.output()


def test_a_newer_format_stays_in_the_queue(deployed: Deployed) -> None:
    event = event_of('{"workhorse": 2, "anything": 1}')
    answer = deployed.function().invoke(event)
    assert kept(answer) == [event["Records"][0]["messageId"]]


def test_in_a_fifo_queue_the_rest_of_a_group_stays_behind_the_first_that_does(
    deployed: Deployed,
) -> None:
    """No message is delayed alone there: the unknown run's stays, the early run's is promoted."""
    function = deployed.function(sqs_fifo="true")
    deployed.make_queue("default.fifo")
    unknown, early = new_run_id(), deployed.new("quick", "early", delay_ms=20_000)
    fine = [deployed.new("quick", f"fine {number}") for number in range(3)]
    groups = [(fine[0], "a"), (unknown, "a"), (early, "b"), (fine[1], "a"), (fine[2], "b")]
    records = [_fifo(deployed, run_id, group) for run_id, group in groups]

    answer = function.invoke({"Records": records})

    assert kept(answer) == [records[1]["messageId"], records[3]["messageId"]]
    assert {deployed.state(run_id) for run_id in fine} == {RunState.SUCCEEDED}
    assert deployed.endpoint.queue(f"{deployed.prefix}default.fifo").counts().total == 0
    # The second receipt of the same message is the second look.
    again = _fifo(deployed, unknown, "a", ApproximateReceiveCount="2")
    assert function.invoke({"Records": [again]}) == ENDED
    assert counted(function, "messages[missing]") == 1


def _fifo(deployed: Deployed, run_id: RunId, group: str, **attributes: str) -> dict[str, Any]:
    return a_record(
        body_of(run_id),
        queue_name=f"{deployed.prefix}default.fifo",
        attributes={"MessageGroupId": group, **attributes},
    )


def test_what_cannot_be_sent_anew_stays_in_the_queue(deployed: Deployed) -> None:
    """Of what should come back, that alone which the broker does not take."""
    with SqsProxy(deployed.endpoint.url) as proxy:
        function = deployed.function(aws_endpoint_url=proxy.url)
        unknown = [new_run_id() for _ in range(3)]
        event = event_of(body_of(deployed.new("quick")), *map(body_of, unknown))
        names = [record["messageId"] for record in event["Records"]]
        proxy.always(UNAVAILABLE, "SendMessageBatch")
        assert kept(function.invoke(event)) == names[1:]
        assert deployed.queue.counts().total == 0

        def refuse_one(call: Any) -> Answer | None:
            if call.operation != "SendMessageBatch" or not any(
                unknown[1] in entry["MessageBody"] for entry in call.entries
            ):
                return None
            failed = [
                {"Id": entry["Id"], "SenderFault": False, "Code": "InternalError"}
                for entry in call.entries
                if unknown[1] in entry["MessageBody"]
            ]
            sent = [
                {"Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": ""}
                for entry in call.entries
                if unknown[1] not in entry["MessageBody"]
            ]
            return Answer(200, {"Successful": sent, "Failed": failed})

        proxy.fault = refuse_one
        proxy.forget()
        event = event_of(*map(body_of, unknown))
        names = [record["messageId"] for record in event["Records"]]
        assert kept(function.invoke(event)) == names[1:2]
        assert deployed.queue.counts().delayed == 2
        sent = proxy.made("SendMessageBatch")[0].entries
        assert {json.loads(entry["MessageBody"])["missed"] for entry in sent} == {1}
        assert {entry["DelaySeconds"] for entry in sent} == {5}


@pytest.mark.parametrize(
    "event",
    [
        {},
        [],
        {"Records": "no list"},
        {"Records": [{"eventSource": "aws:s3"}]},
        {"Records": [{"eventSource": "aws:sqs", "messageId": "1", "attributes": {}}]},
        {"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": ""}]},
        {"Records": [None]},
    ],
    ids=["empty", "list", "text", "s3", "no body", "no attributes", "null"],
)
def test_an_event_that_is_none_of_sqs_is_refused(event: Any) -> None:
    """One clear error, before anything is looked at."""
    from lanes.sqs_lambda import SqsEvents
    from workhorse.errors import InvalidEventError

    class NeverAsked:
        def serve(self, messages: object, time_left_ms: object) -> list[str]:
            raise AssertionError("it was asked")

    with pytest.raises(InvalidEventError, match="Nothing was done"):
        SqsEvents.open(NeverAsked()).handle(event, lambda: 60_000)


def test_a_wrong_event_fails_the_invocation(deployed: Deployed) -> None:
    with pytest.raises(FunctionError) as failed:
        deployed.function().invoke({"detail-type": "Scheduled Event"})
    assert failed.value.kind == "InvalidEventError"


def test_a_lane_without_messages_is_refused_when_the_module_is_loaded() -> None:
    with pytest.raises(ConfigurationError, match="WORKHORSE_LANE=sqs"):
        lambda_handler(Workhorse(lane="polling"))


def test_an_empty_batch_is_answered(deployed: Deployed) -> None:
    assert deployed.function().invoke({"Records": []}) == ENDED
