"""What comes from a broker: bodies, events of SQS, answers to a receive, bells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from lanes import wire
from lanes.sqs.clients import Calls
from lanes.sqs.explaining import SqsError, explain
from lanes.sqs_lambda import SqsEvents
from tests.fuzz.evil import (
    OBJECTS,
    json_values,
    just,
    leaves,
    objects,
    or_evil,
    or_json,
    texts,
    typed,
)
from tests.fuzz.judging import judge_message, refusal_of
from tests.fuzz.kind import Check, Kind
from tests.fuzz.source import Source
from workhorse.domain.ids import parse_run_id
from workhorse.errors import InvalidEventError
from workhorse.ports import Message, Unreadable, Wakeup

RUN_ID: Final = "0197c5a0-7b5e-7c7b-9f5d-1d4c3a1b2c3d"
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _bodies(source: Source) -> Any:
    return source.one(_fields, _fields, lambda s: _as_json(json_values(s)), texts, leaves)


def _fields(source: Source) -> str:
    return _as_json(
        source.fields(
            workhorse=or_json(just(1)),
            run_id=or_json(just(RUN_ID, RUN_ID, RUN_ID.upper(), f"{RUN_ID}\n")),
            queue=or_json(just("mail")),
        )
        | source.options(
            traceparent=or_json(just(TRACE)),
            missed=or_json(lambda s: s.below(2_000)),
            more=json_values,
        )
    )


def _as_json(value: Any) -> str:
    return json.dumps(value)


def _decode(body: Any) -> bool:
    found = wire.decode(body)
    if isinstance(found, Unreadable):
        return True
    assert parse_run_id(found.run_id) == found.run_id
    written = wire.encode(found)
    assert len(written.encode()) < wire.MAX_WRITTEN_BYTES
    assert wire.decode(written) == found
    return False


def _encode(given: tuple[Any, ...]) -> bool:
    """Write a wakeup that was read elsewhere: what is written can be read."""
    run_id, queue, trace, missed = given
    written = wire.encode(Wakeup(run_id, queue, trace, missed))
    assert len(written.encode()) < wire.MAX_WRITTEN_BYTES
    found = wire.decode(written)
    assert isinstance(found, Wakeup)
    assert (found.run_id, found.queue) == (run_id, queue)
    return False


class _Activations:
    """Keeps every other message, and some that nobody has handed it."""

    def serve(
        self, messages: Sequence[Message], time_left_ms: Callable[[], float]
    ) -> Collection[str]:
        return {message.message_id for message in messages[::2]} | {"another"}


def _events(source: Source) -> Any:
    attributes = or_evil(
        lambda s: s.options(
            ApproximateReceiveCount=or_evil(just("1", "9")), MessageGroupId=or_evil(just("group"))
        )
    )
    arn = or_evil(just("arn:aws:sqs:eu-west-1:1:mail.fifo", "arn:aws:sqs:eu-west-1:1:mail"))

    def whole(s: Source) -> Any:
        return {
            "eventSource": "aws:sqs",
            "messageId": texts(s),
            "body": _bodies(s),
            "attributes": s.options(
                ApproximateReceiveCount=or_evil(just("1")), MessageGroupId=or_evil(just("group"))
            ),
        } | s.options(eventSourceARN=arn)

    def broken(s: Source) -> Any:
        return s.fields(
            eventSource=or_evil(just("aws:sqs")),
            messageId=or_evil(just("059f36b4")),
            body=_bodies,
            attributes=attributes,
            eventSourceARN=arn,
        )

    return source.one(
        lambda s: {"Records": s.many(whole, 6)},
        lambda s: {"Records": s.many(lambda s: s.one(whole, whole, broken), 4)},
        lambda s: {"Records": objects(s)},
        objects,
    )


@contextmanager
def _serving() -> Iterator[Check]:
    source = SqsEvents.open(_Activations())

    def check(event: Any) -> bool:
        answer: list[Any] = []
        error = refusal_of(lambda: answer.append(source.handle(event, lambda: 1_000.0)))
        if error is not None:
            assert isinstance(error, InvalidEventError)
            return True
        names = {record["messageId"] for record in event["Records"]}
        assert {each["itemIdentifier"] for each in answer[0]["batchItemFailures"]} <= names
        json.dumps(answer[0])
        return False

    yield check


class _Canned(Calls):
    """Answers a receive with whatever it was given."""

    region = "eu-west-1"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def _call(self, operation: str, *, long: bool = False, **parameters: Any) -> Any:
        return self._answer

    async def prepare(self) -> None: ...

    async def close(self) -> None: ...


def _received(answer: Any) -> bool:
    """Read an answer to a receive: what cannot be read is an error that can be told."""

    async def receive() -> None:
        for raw in await _Canned(answer).receive("https://sqs/q", 10, 0):
            wire.decode(raw.body)

    try:
        asyncio.run(receive())
    except Exception as error:  # noqa: BLE001 - the lane explains each
        judge_message(str(SqsError(explain(error, "mail", None, "eu-west-1"))))
        return True
    return False


def _answers(source: Source) -> Any:
    def message(s: Source) -> Any:
        return s.fields(
            MessageId=or_json(just("059f36b4")),
            ReceiptHandle=or_json(just("handle")),
            Body=_bodies,
            Attributes=or_json(lambda s: {"ApproximateReceiveCount": or_json(just("1"))(s)}),
        )

    return source.one(
        lambda s: {"Messages": s.many(message, 4)},
        lambda s: {"Messages": s.many(lambda s: s.one(message, json_values), 4)},
        json_values,
    )


def _wakeups(source: Source) -> Any:
    queue = typed("az09-_", 60)(source) or "q"
    return RUN_ID, queue, or_evil(just(TRACE))(source), source.below(1_001)


KINDS: Final = (
    Kind(
        name="bodies",
        share=20_000,
        draw=_bodies,
        corpus=OBJECTS,
        rig=lambda: nullcontext(_decode),
    ),
    Kind(name="wakeups", share=3_000, draw=_wakeups, rig=lambda: nullcontext(_encode)),
    Kind(
        name="events",
        share=10_000,
        draw=_events,
        corpus=[*OBJECTS, *({"Records": each} for each in OBJECTS)],
        rig=_serving,
    ),
    Kind(
        name="receives",
        share=2_000,
        draw=_answers,
        corpus=[None, [], {}, {"Messages": None}, {"Messages": [{}]}, {"Messages": [[]]}],
        rig=lambda: nullcontext(_received),
    ),
)
