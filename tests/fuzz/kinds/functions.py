"""Functions on Lambda, whole: any event, any time left; an answer, or a typed error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from lanes.memory import MemoryLane
from tests.fuzz.evil import OBJECTS, just, objects, or_evil, or_json, texts
from tests.fuzz.judging import refusal_of
from tests.fuzz.kind import Check, Kind
from tests.fuzz.kinds.messages import _bodies as bodies
from tests.fuzz.rigs import installation
from tests.fuzz.source import Source
from workhorse.domain.runs import RunState
from workhorse.errors import ConfigurationError, InvalidEventError
from workhorse.functions import lambda_handler, lambda_maintenance


class _Context:
    """Says how much time is left, counting down as it is asked, as time goes on."""

    def __init__(self, left_ms: float) -> None:
        self._left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        self._left_ms = max(0, self._left_ms - 1)
        return int(self._left_ms)


@contextmanager
def _handling() -> Iterator[Check]:
    with installation(lane="memory") as installed:
        app = installed.app

        @app.task("plain")
        def plain(value: Any = None) -> None: ...

        assert isinstance(app.lane, MemoryLane)
        handler, maintain = lambda_handler(app), lambda_maintenance(app)

        def check(given: tuple[Any, int, bool]) -> bool:
            event, left_ms, run_it = given
            run = plain.enqueue() if run_it else None
            records = event.get("Records") if isinstance(event, dict) else None
            if run is not None and isinstance(records, list):
                body = json.dumps({"workhorse": 1, "run_id": run.id, "queue": "default"})
                ours = {"eventSource": "aws:sqs", "messageId": "ours", "attributes": {}}
                records.insert(0, ours | {"body": body})
            answers: list[Any] = []
            error = refusal_of(lambda: answers.append(handler(event, _Context(left_ms))))
            if error is not None:
                assert isinstance(error, InvalidEventError | ConfigurationError), error
                return True
            json.dumps(answers[0])
            if run is not None and isinstance(records, list) and left_ms >= 60_000:
                assert run.view().state is RunState.SUCCEEDED
            assert refusal_of(lambda: maintain(event, _Context(left_ms))) is None
            return False

        yield check


def _invocation(source: Source) -> tuple[Any, int, bool]:
    def record(s: Source) -> Any:
        return {
            "eventSource": "aws:sqs",
            "messageId": texts(s),
            "body": bodies(s),
            "attributes": s.options(ApproximateReceiveCount=or_evil(just("1", "9"))),
        }

    event = source.one(
        lambda s: {"Records": s.many(record, 4)},
        lambda s: {"Records": s.many(record, 4)},
        lambda s: {"Records": or_json(just([]))(s)},
        objects,
    )
    return event, source.pick([60_000, 60_000, 900_000, 20_000, 1_000, 1, 0]), source.maybe()


KINDS: Final = (
    Kind(
        name="functions",
        share=400,
        draw=_invocation,
        corpus=[(each, 60_000, False) for each in OBJECTS[::4]],
        rig=_handling,
    ),
)
