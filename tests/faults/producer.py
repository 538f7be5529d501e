"""A producer's process: enqueues the workload, sends what runs wait for, cancels, keeps a record.

    python -m tests.faults.producer NUMBER

What it means to do is on the disk before it is done, and so is the answer before it goes on: a run
counts as accepted when the call has returned. One that was killed goes on where it was.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, cast

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.faults import handlers, ledger
from tests.faults.handlers import app
from tests.faults.ledger import Ledger
from workhorse.errors import StoreUnavailableError
from workhorse.handlers.producing import RunHandle

WEIGHTS: Final = {
    "faults.plain": 240, "faults.async": 240, "faults.steps": 80, "faults.steps_async": 80,
    "faults.batch": 100, "faults.process": 40, "faults.sleeper": 50, "faults.signal": 30,
    "faults.human": 20, "faults.parent": 20, "faults.token": 20, "faults.book": 30,
    "faults.flaky": 20, "faults.hopeless": 8,
}  # fmt: skip
"""Of a thousand runs; the bad ones share `FAULTS_BAD` of a thousand evenly."""
BAD: Final = (
    "faults.blocks_loop", "faults.holds_gil", "faults.ignores_cancel", "faults.swallows",
    "faults.raises_plain", "faults.raises_async", "faults.exits", "faults.exits_apart",
    "faults.huge_error", "faults.unstorable", "faults.forks", "faults.leaves_thread",
)  # fmt: skip
ENOUGH: Final = "enough"
"""A file of the fleet's folder: producers enqueue no more, and end what they have begun."""
FULL: Final = "full"
"""A file of the fleet's folder: the workers have more to do than they can; producers pause."""
AWAY: Final = (StoreUnavailableError, DBAPIError)


class Producer:
    """Does the runs of one number in turn; all that is drawn comes from the seed."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._book = Ledger(handlers.FOLDER / ledger.PRODUCERS)
        done = [
            fields["nth"]
            for fields in ledger.read_fields(handlers.FOLDER / ledger.PRODUCERS)
            if fields["what"] == "asks" and fields["producer"] == number
        ]
        self._first = max(done, default=-1) + 1
        self._acts: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        weights = WEIGHTS | dict.fromkeys(BAD, int(os.environ["FAULTS_BAD"]) / len(BAD))
        self._millis = int(os.environ["FAULTS_MILLIS"])
        if named := os.environ.get("FAULTS_TASKS"):
            weights = dict.fromkeys(named.split(","), 1.0)
        self._tasks, self._weights = list(weights), list(weights.values())

    def work(self, runs: int, rate: float) -> None:
        """Enqueue what is left of so many runs, so many a second; then act on the last of them."""
        began = time.monotonic()
        for nth in range(self._first, runs):
            while (handlers.FOLDER / FULL).exists() and not (handlers.FOLDER / ENOUGH).exists():
                self._act(until=time.monotonic() + 0.2)
                began += 0.2  # what was not enqueued meanwhile is not made up for
            if (handlers.FOLDER / ENOUGH).exists():
                break
            # Drawn anew for each, so that one who was killed does not draw what it did before.
            draw = random.Random(f"{os.environ['FAULTS_SEED']} {self._number} {nth}")
            self._note("asks", nth=nth)
            self._one(draw, nth)
            self._act(until=began + (nth - self._first + 1) / rate)
        while self._acts:
            self._act(until=self._acts[0][0])
        self._note("done")

    # -- a run -----------------------------------------------------------------------------------

    def _one(self, draw: random.Random, nth: int) -> None:
        name = draw.choices(self._tasks, self._weights)[0]
        task = app.registry.require(name)
        payload: Any = draw.randint(0, self._millis)
        ref = None
        if name == "faults.token":
            ref = payload = self._until_told(lambda: app.create_token(timedelta(seconds=20)))
        way = draw.choices(
            ["single", "keyed", "many", "joined", "session", "delayed", "deadline"],
            [35, 25, 12, 12, 6, 6, 4],
        )[0]
        key = f"{self._number}-{nth}-{uuid.uuid4().hex[:8]}" if way == "keyed" else None
        options: dict[str, Any] = {}
        if way == "session":
            options["session"] = f"{self._number}-{draw.randint(0, 3)}"
        elif way == "delayed":
            options["delay"] = timedelta(milliseconds=draw.randint(1, 3000))
        elif way == "deadline":
            options["deadline"] = timedelta(milliseconds=draw.randint(100, 5000))
        try:
            if way == "many":
                asked = [task.prepare(payload) for _ in range(5)]
                handles: list[RunHandle[Any]] = list(app.enqueue_many(asked))
            elif way == "joined":
                handles = [self._joined(task, payload, nth)]
            elif key is not None:
                handles = [self._until_told(lambda: task.enqueue(payload, key=key))]
            else:
                handles = [task.enqueue(payload, **options)]
        except AWAY:
            self._note("unknown", nth=nth, task=name)  # it may be there, or not
            time.sleep(0.2)
            return
        for handle in handles:
            self._note("accepted", run=str(handle.id), task=name, way=way, key=key)
            self._plan(draw, name, handle, ref)

    def _joined(self, task: Any, payload: Any, nth: int) -> RunHandle[Any]:
        """Enqueue in a transaction of its own, beside a row of its own; every fifth rolls back."""
        with app.store.engine.connect() as connection:
            handle: RunHandle[Any] = task.enqueue(payload, connection=connection)
            connection.execute(
                text("insert into faults_orders (run_id) values (:run)"), {"run": str(handle.id)}
            )
            if nth % 5 == 0:
                connection.rollback()
                self._note("rolled back", run=str(handle.id))
                return cast("RunHandle[Any]", task.enqueue(payload))
            connection.commit()
        return handle

    def _until_told(self, ask: Callable[[], Any]) -> Any:
        """Ask again until the store answers: what has a key cannot come twice."""
        while True:
            try:
                return ask()
            except AWAY:
                time.sleep(0.2)

    # -- what is done to runs --------------------------------------------------------------------

    def _plan(self, draw: random.Random, name: str, handle: RunHandle[Any], ref: Any) -> None:
        run = str(handle.id)
        if name == "faults.signal":
            key = uuid.uuid4().hex
            self._later(
                draw, "signal", run, lambda: handle.send_signal("go", run, idempotency_key=key)
            )
        elif name == "faults.human":
            key = uuid.uuid4().hex
            self._later(
                draw, "decision", run,
                lambda: app.complete_human_wait(run, "desk", run, by="faults", idempotency_key=key),
            )  # fmt: skip
        elif name == "faults.token":
            key = uuid.uuid4().hex
            self._later(
                draw, "token", run, lambda: app.complete_token(ref, run, idempotency_key=key)
            )
        if draw.random() < 0.03:
            self._later(draw, "cancel", run, lambda: handle.cancel(by="faults"))

    def _later(self, draw: random.Random, act: str, run: str, call: Callable[[], object]) -> None:
        def told() -> None:
            try:
                answer = self._until_told(call)
            except Exception as error:  # noqa: BLE001 - which, the judge weighs
                answer = type(error).__name__
            self._note("told", act=act, run=run, answer=str(answer))

        due = time.monotonic() + draw.uniform(0, 3)
        heapq.heappush(self._acts, (due, next(self._order), told))

    def _act(self, until: float) -> None:
        while True:
            now = time.monotonic()
            while self._acts and self._acts[0][0] <= now:
                heapq.heappop(self._acts)[2]()
                now = time.monotonic()
            if now >= until:
                return
            ahead = self._acts[0][0] if self._acts else until
            time.sleep(max(0.0, min(until, ahead) - now))

    def _note(self, what: str, **fields: Any) -> None:
        self._book.append(
            {"at": time.monotonic(), "producer": self._number, "what": what, **fields}
        )


def main(number: int) -> int:
    """Work as a producer until all runs are enqueued."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    producer = Producer(number)
    producer.work(int(os.environ["FAULTS_RUNS"]), float(os.environ["FAULTS_RATE"]))
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
