"""A producer of the soak: that of the fault suite, with more ways to enqueue.

    python -m tests.soak.producer NUMBER

No handler ends its process: those workers that are to grow old would not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
import uuid
from collections import deque
from datetime import timedelta
from typing import Any, Final

from tests.faults.handlers import app
from tests.faults.producer import AWAY, BAD, WEIGHTS, Producer
from workhorse.errors import RunNotFoundError
from workhorse.handlers.producing import RunHandle

WAYS: Final = {
    "single": 30, "keyed": 20, "bulk": 4, "async": 10, "joined": 8, "session": 6, "delayed": 8,
    "chained": 8, "deadline": 3,
}  # fmt: skip
"""Of a hundred, about; `bulk` makes ten at once."""
BULK: Final = 10
_LEFT_OUT: Final = {"faults.exits"}


class SoakProducer(Producer):
    """Notes with each run when it is due, so that its latency is known."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        bad = [name for name in BAD if name not in _LEFT_OUT]
        weights = WEIGHTS | dict.fromkeys(bad, int(os.environ["FAULTS_BAD"]) / len(bad))
        self._tasks, self._weights = list(weights), list(weights.values())
        self._last: deque[RunHandle[Any]] = deque(maxlen=3)
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """End its event loop."""
        self._runner.close()

    def _one(self, draw: random.Random, nth: int) -> None:
        name = draw.choices(self._tasks, self._weights)[0]
        task = app.registry.require(name)
        payload: Any = draw.randint(0, self._millis)
        ref = None
        if name == "faults.token":
            ref = payload = self._until_told(lambda: app.create_token(timedelta(seconds=20)))
        way = draw.choices(list(WAYS), list(WAYS.values()))[0]
        delay_ms = draw.randint(1, 5000) if way == "delayed" else 0
        key = f"{self._number}-{nth}-{uuid.uuid4().hex[:8]}" if way == "keyed" else None
        try:
            if way == "bulk":
                handles: list[RunHandle[Any]] = list(
                    app.enqueue_many([task.prepare(payload) for _ in range(BULK)])
                )
            elif way == "joined":
                handles = [self._joined(task, payload, nth)]
            elif way == "async":
                handles = [self._runner.run(task.enqueue_async(payload))]
            elif key is not None:
                handles = [self._until_told(lambda: task.enqueue(payload, key=key))]
            else:
                handles = [task.enqueue(payload, **self._options(draw, way, delay_ms))]
        except RunNotFoundError:  # what it was to come after was lost with a set-back
            self._note("refused", nth=nth, task=name)
            self._last.clear()
            return
        except AWAY:
            self._note("unknown", nth=nth, task=name)  # it may be there, or not
            time.sleep(0.2)
            return
        for handle in handles:
            self._note(
                "accepted", run=str(handle.id), task=name, way=way, key=key, delay_ms=delay_ms
            )
            self._plan(draw, name, handle, ref)
        self._last.append(handles[-1])

    def _options(self, draw: random.Random, way: str, delay_ms: int) -> dict[str, Any]:
        match way:
            case "session":
                return {"session": f"{self._number}-{draw.randint(0, 3)}"}
            case "delayed":
                return {"delay": timedelta(milliseconds=delay_ms)}
            case "deadline":
                return {"deadline": timedelta(milliseconds=draw.randint(100, 5000))}
            case "chained" if self._last:
                return {"after": list(self._last), "on_failure": "run"}
            case _:
                return {}


def main(number: int) -> int:
    """Work as a producer until all runs are enqueued."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    producer = SoakProducer(number)
    producer.work(int(os.environ["FAULTS_RUNS"]), float(os.environ["FAULTS_RATE"]))
    producer.close()
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
