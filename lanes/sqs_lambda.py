"""Messages that SQS hands to a function on Lambda, and the answer that AWS expects.

The event source mapping receives, and deletes what the answer does not name. So this is no lane:
wakeups are sent over the lane `sqs` here too.

Source: docs/lambda.md; docs/adr/0023-invocations.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from lanes import wire
from workhorse.errors import InvalidEventError
from workhorse.ports import Activations, BatchResponse, Message

_COUNT: Final = re.compile("[0-9]{1,9}", re.ASCII)
_OTHER: Final = re.compile("[a-z]{1,20}:[a-z0-9-]{1,20}", re.ASCII)
"""The name of a source; what else stands there may be anything, and is not shown."""


@dataclass(frozen=True, slots=True)
class _Record:
    message: Message
    group: tuple[str, str] | None
    """The queue and the message group, where it is a FIFO queue: order is kept within a group."""


class SqsEvents:
    """Reads events of SQS and answers with partial batch responses (ReportBatchItemFailures).

    Args:
        activations: Runs what the messages name.
    """

    def __init__(self, activations: Activations) -> None:
        self._activations = activations

    @classmethod
    def open(cls, activations: Activations) -> Self:
        """Open the source; nothing is imported or called."""
        return cls(activations)

    def handle(self, event: Any, time_left_ms: Callable[[], float]) -> BatchResponse:
        """Serve one invocation; the answer names the messages that the queue is to keep.

        Raises:
            InvalidEventError: The event is none of SQS.
        """
        records = [_record(number, record) for number, record in enumerate(_records(event))]
        kept = self._activations.serve([record.message for record in records], time_left_ms)
        return {
            "batchItemFailures": [{"itemIdentifier": name} for name in _failures(records, kept)]
        }


def _records(event: Any) -> Sequence[Any]:
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise InvalidEventError(
            "this function was invoked with an event that holds no Records, and is for those of "
            "SQS: let an event source mapping of an SQS queue invoke it. Nothing was done"
        )
    return records


def _record(number: int, record: Any) -> _Record:
    fields: Mapping[str, Any] = record if isinstance(record, Mapping) else {}
    source, message_id = fields.get("eventSource"), fields.get("messageId")
    attributes = fields.get("attributes")
    if (
        source != "aws:sqs"
        or not isinstance(message_id, str)
        or "body" not in fields
        or not isinstance(attributes, Mapping)
    ):
        other = isinstance(source, str) and source != "aws:sqs" and _OTHER.fullmatch(source)
        found = source if other else "not a whole one"
        raise InvalidEventError(
            f"record {number} of the event is no message of SQS ({found!a}), which has a "
            "messageId, a body and attributes: let an event source mapping of an SQS queue invoke "
            "this function. Nothing was done"
        )
    message = Message(
        message_id, wire.decode(fields["body"]), _count(attributes.get("ApproximateReceiveCount"))
    )
    arn, group = fields.get("eventSourceARN"), attributes.get("MessageGroupId")
    # Standard queues may carry groups too, which promise no order.
    fifo = isinstance(arn, str) and arn.endswith(".fifo")
    named = group if isinstance(group, str) else ""
    return _Record(message, (str(arn), named) if fifo else None)


def _count(value: object) -> int:
    return int(value) if isinstance(value, str) and _COUNT.fullmatch(value) else 1


def _failures(records: Sequence[_Record], kept: Collection[str]) -> list[str]:
    """Return the messages to be kept: of a FIFO group all behind the first of them, too."""
    names, broken = [], set()
    wanted = frozenset(kept)
    for record in records:
        behind = record.group is not None and record.group in broken
        if record.message.message_id in wanted or behind:
            names.append(record.message.message_id)
            if record.group is not None:
                broken.add(record.group)
    return names
