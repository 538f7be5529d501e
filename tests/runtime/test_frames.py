"""Frames between a worker and its processes: whole messages, however the bytes come."""

from __future__ import annotations

import inspect
import struct
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from workhorse.domain.boundaries import (
    Boundary,
    BoundaryKind,
    Delivered,
    DeliveryState,
    History,
    NewBoundary,
    Wait,
)
from workhorse.domain.ids import new_run_id
from workhorse.domain.recording import NewChild, NewToken, Record, RecordAnswer, Recorded
from workhorse.domain.retry import RetryPolicy
from workhorse.domain.runs import ClaimedRun, Failure, NewRun, Reason
from workhorse.handlers.places import Place
from workhorse.handlers.signals import StopReason
from workhorse.runtime.execution.processes.frames import (
    Answered,
    Asked,
    Begin,
    Begun,
    Ended,
    Frames,
    FromChild,
    Prepare,
    Progressed,
    Read,
    Ready,
    Refused,
    Suspending,
    ToChild,
    Told,
    from_child,
    to_child,
)

NOW = datetime(2026, 11, 30, 7, 5, 1, 123_456, tzinfo=UTC)
ID = new_run_id()
PLACE = Place(module="shop.jobs", qualname="Jobs.report", task="report", file="/srv/\u00fc.py")
RETRY = RetryPolicy(
    max_attempts=3, first=timedelta(microseconds=1_500), factor=1.5, longest=timedelta(days=9)
)
NEW = NewBoundary(
    name="a 'name' \U0001f40e", kind=BoundaryKind.TIMER, seq=3, value='{"a":"\\u0000"}',
    fingerprint="f", detail="[1]", delay_ms=5,
)  # fmt: skip
STORED = Boundary(
    name="b", kind=BoundaryKind.CHECKPOINT, seq=1, value="1" * 300_000, wake_at=NOW, due=True
)
CAME = Delivered(
    kind=BoundaryKind.SIGNAL, name="s", state=DeliveryState.VALUE, inbox=2, left_out=True, at=NOW
)
CHILD = NewRun(
    id=ID, task="t", queue="q", payload="{}", run_at=NOW, tags=("a",), retry=RETRY, parent=ID,
)  # fmt: skip

TO_CHILD: list[ToChild] = [
    Prepare(places=(PLACE,)),
    Begin(
        place=PLACE, now=NOW, run_id=ID, task="t", queue="q", payload='"\u00fc"', attempt=2,
        fence=7, retry=RETRY, session="s", tags=("a", "b"), key=None, created_at=NOW,
        started_at=NOW, traceparent="00-1", history=History((STORED,), (CAME,), 4, 5, 6),
    ),
    Answered(number=1, answer=RecordAnswer(Recorded.EXISTS, STORED, (CAME,))),
    Answered(number=2, value="null"),
    Refused(number=3, error="LeaseLostError", message="gone"),
    Told(signal="cancelled", reason=StopReason.TIMEOUT),
]  # fmt: skip
FROM_CHILD: list[FromChild] = [
    Ready(),
    Begun(),
    Asked(
        number=1, boundary=NEW, token=NewToken(ref="r", timeout_ms=5),
        child=NewChild(run=CHILD, on_parent_end="keep"),
        closes=((BoundaryKind.HUMAN, "h"),), cancels=(ID,),
    ),
    Read(number=2, name="n", of=BoundaryKind.TOKEN),
    Progressed(value="{}"),
    Suspending(waits=(Wait(kind=BoundaryKind.TIMER, name="w", new=NEW, token="r"),)),  # noqa: S106
    Ended(result='"x"'),
    Ended(
        failure=Failure("T", "a\\x00b", None), reason=Reason.NOT_RETRYABLE, stopped=True,
        passed_on=True,
    ),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 1_000_000], ids=["bytes", "pieces", "at once"])
def test_messages_come_as_they_were_sent(size: int) -> None:
    there = b"".join(to_child(each) for each in TO_CHILD[:1] + TO_CHILD[2:])  # all but a large one
    here = b"".join(from_child(each) for each in FROM_CHILD)

    assert cut(Frames("to_child"), there, size) == TO_CHILD[:1] + TO_CHILD[2:]
    assert cut(Frames("from_child"), here, size) == FROM_CHILD
    assert cut(Frames("to_child"), to_child(TO_CHILD[1]), 65_536) == [TO_CHILD[1]]


def cut(frames: Frames, data: bytes, size: int) -> list[Any]:
    return [
        message for at in range(0, len(data), size) for message in frames.feed(data[at : at + size])
    ]


@pytest.mark.parametrize(
    "data",
    [struct.pack("!I", 2) + b"{}", struct.pack("!I", 3) + b"\xff\xff\xff", b"\xff\xff\xff\xff"],
    ids=["no message", "no text", "too large"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        list(Frames("from_child").feed(data))


def test_what_a_handler_is_handed_and_writes_crosses_whole() -> None:
    """A field that is new in what a claim brings, or in a record, must not be forgotten here."""
    claimed = set(inspect.signature(ClaimedRun).parameters)
    stays = {"lease", "inbox", "hand_backs", "active_ms", "priority", "timeout_ms"}
    crosses = {field.name for field in fields(Begin)} - {"kind", "place", "now", "fence"}
    assert claimed - stays - {"id", "deadline_in_ms"} == crosses - {"run_id"}
    asked = {field.name for field in fields(Asked)} - {"kind", "number"}
    assert set(inspect.signature(Record).parameters) - {"lease"} == asked
