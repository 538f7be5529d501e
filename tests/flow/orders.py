"""The program that works orders off, and whose workers are killed where a plan says so.

    python -m tests.flow.orders PLAN

It imports everything once, then forks workers, each of which has one run in hand at a time, and a
process for the maintenance. A worker that is killed is replaced by another fork. The plan is JSON:
for each run's id when and at which boundary its workers die. The ledger, and a note of each kill,
lie in the working directory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import Connection

from workhorse.cli.demo import shelf, shop
from workhorse.cli.demo.ledger import EFFECT, NAME, PAUSE, Ledger, Mark
from workhorse.handlers.context import current_context
from workhorse.runtime.activations.activation import Activation
from workhorse.runtime.base.options import WorkerOptions

AFTER: Final = "after"
BEFORE: Final = "before"
EVERY: Final = "*"
KILLS: Final = "kills"
QUEUE: Final = "orders"
WORKERS: Final = 2
LEASE_MS: Final = 400
_MAINTAIN_EVERY_S: Final = 0.2


class Death(NamedTuple):
    """Where a run's workers die: right after or right before a boundary's commit.

    With `EVERY` as the boundary they die at each one in turn.
    """

    when: str
    boundary: str


@dataclass(frozen=True)
class Reaper:
    """Kills this process where the plan says so, once for each boundary."""

    plan: Mapping[str, Death]

    def passes(self, run: str, when: str, boundary: str) -> None:
        """Be told that a run gets to a place where its worker may have to die."""
        death = self.plan[run]
        if when != death.when or death.boundary not in (EVERY, boundary):
            return
        try:
            with open(f"{KILLS}/{run}: {boundary}", "x") as note:
                os.fsync(note)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class DeadlyLedger(Ledger):
    """A ledger after whose line the process may be gone: what was done is not stored yet."""

    def __init__(self, path: Path, reaper: Reaper) -> None:
        super().__init__(path)
        self._reaper = reaper

    def write(self, mark: Mark, event: str, stage: str = "", key: str = "") -> None:
        super().write(mark, event, stage, key)
        if event == EFFECT:
            self._reaper.passes(mark.run, BEFORE, stage)
        elif event == PAUSE:
            for wait in current_context()._core.suspension:
                self._reaper.passes(mark.run, BEFORE, wait.name)


def work(reaper: Reaper) -> None:
    """Be a worker."""
    shop.ledger = DeadlyLedger(Path(NAME), reaper)
    shop.pace = shop.Pace(0, rest=timedelta(milliseconds=20), patience=timedelta(hours=1))
    take = shelf.take

    def take_and_die(connection: Connection, run_id: str) -> int:
        left = take(connection, run_id)
        reaper.passes(run_id, BEFORE, shelf.STAGE)
        return left

    def after_record(activation: Activation, boundary: str) -> bool:
        reaper.passes(activation.claimed.id, AFTER, boundary)
        return False

    shelf.take = take_and_die
    options = WorkerOptions(lease_ms=LEASE_MS, idle_ms=100, after_record=after_record)
    sys.exit(shop.app.worker([QUEUE], 1, options=options).run())


def maintain() -> None:
    """Do the maintenance more often than anybody would: a test waits for it."""
    maintenance = shop.app.maintenance()
    while True:
        maintenance.run_once()
        time.sleep(_MAINTAIN_EVERY_S)


def main(plan: Path) -> None:
    """Keep the workers alive, until a signal ends this process and its group."""
    reaper = Reaper({run: Death(*death) for run, death in json.loads(plan.read_text()).items()})
    Path(KILLS).mkdir()
    _import_the_rest()
    workers = {_forked(work, reaper) for _ in range(WORKERS)}
    _forked(maintain)
    while True:
        pid, status = os.wait()
        if pid not in workers or not os.WIFSIGNALED(status):
            sys.exit(f"process {pid} has ended with status {status}, and nobody killed it")
        workers.remove(pid)
        workers.add(_forked(work, reaper))


def _forked(do: Callable[..., object], *arguments: object) -> int:
    pid = os.fork()
    if not pid:
        try:
            do(*arguments)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)  # never into the code of the parent
    return pid


def _import_the_rest() -> None:
    """Import what a worker needs, so that its forks need not."""
    import workhorse.maintenance
    import workhorse.runtime.process.worker
    import workhorse.store.base.database  # noqa: F401


if __name__ == "__main__":
    main(Path(sys.argv[1]))
