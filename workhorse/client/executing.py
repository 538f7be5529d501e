"""Run now: claim one run by its id and execute it in this process, by the rules of a worker."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from workhorse.domain.ids import RunId
from workhorse.domain.runs import ClaimedRun
from workhorse.store.base.database import Store, Tx
from workhorse.store.lifecycle.claiming import claim, claimed_under, turn_was_taken


class RunNow:
    """Claims a named run and hands it to the step that workers take.

    Args:
        store: Returns the store.
        tasks: Returns the names of the tasks that are known here.
        lease_ms: How long the lease lasts before it is renewed.
        process: Executes a claimed run and settles it (`Worker.process_run`).
    """

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        tasks: Callable[[], Sequence[str]],
        lease_ms: int,
        process: Callable[[ClaimedRun], object],
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._lease_ms = lease_ms
        self._process = process

    def execute(self, run_id: RunId, queue: str) -> bool:
        """Execute a run here; answer False where it cannot be claimed.

        It cannot when its queue is paused, its session has another's turn, it is not due, or a
        worker was quicker.
        """
        token = secrets.randbits(63) or 1
        store, tasks = self._store(), self._tasks()
        try:
            claimed = store.run(_claim, run_id, queue, tasks, token, self._lease_ms)
        except Exception as error:
            if not turn_was_taken(error):
                raise
            claimed = None
        if claimed is None:
            return False
        self._process(claimed)
        return True


def _claim(
    tx: Tx, run_id: RunId, queue: str, tasks: Sequence[str], token: int, lease_ms: int
) -> ClaimedRun | None:
    # An earlier try of this very call may have committed and lost its answer.
    if mine := claimed_under(tx, token):
        return mine[0]
    taken = claim(
        tx,
        queue=queue,
        ids=[run_id],
        tasks=tasks,
        free=1,
        token=token,
        lease_ms=lease_ms,
        scan=False,
    ).runs
    return taken[0] if taken else None
