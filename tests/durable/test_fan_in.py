"""One token that a thousand runs wait for, and whoever completes it is killed."""

from __future__ import annotations

import signal
import threading
from collections import Counter

import pytest

from tests.runtime.rig import ENVIRONMENT, ROOT
from tests.store.acting import rows
from tests.store.invariants import check_invariants
from tests.support.processes import Processes
from workhorse.app import Workhorse
from workhorse.handlers.context import AsyncContext
from workhorse.store.durable.freeing import SMALL_PASS

RUNS = 1_000


@pytest.mark.parametrize(
    ("last", "passed"),
    [("complete_token", 0), ("free_all", SMALL_PASS)],
    ids=["before the small pass", "after the small pass"],
)
def test_a_thousand_linked_runs_each_resume_once_though_the_completer_is_killed(
    postgresql_url: str, processes: Processes, last: str, passed: int
) -> None:
    """Maintenance hands the token to those whom the completer did not come to."""
    resumed: Counter[str] = Counter()
    lock = threading.Lock()
    with Workhorse(database_url=postgresql_url, lane="polling") as app:

        @app.task("waits")
        async def waits(ctx: AsyncContext, ref: str) -> str:
            value: str = await ctx.wait_for_token("paid", ref)
            with lock:
                resumed[ctx.run.id] += 1
            return value

        ref = app.create_token()
        runs = app.enqueue_many([waits.prepare(ref) for _ in range(RUNS)])
        worker = app.worker(concurrency=100)
        assert worker.drain() == RUNS
        assert _links(app, ref) == RUNS

        completer = processes.python(
            "-m", "tests.durable.completer", postgresql_url, ref, last, env=ENVIRONMENT, cwd=ROOT
        )
        assert completer.wait() == -signal.SIGKILL
        assert _links(app, ref) == RUNS - passed
        app.maintenance().run_once()
        worker = app.worker(concurrency=100)
        assert worker.drain() == RUNS

        assert {run.id: 1 for run in runs} == resumed
        assert {run.result(timeout=10) for run in runs} == {"paid"}
        check_invariants(app.store)


def _links(app: Workhorse, ref: str) -> int:
    found = rows(app.store, "select count(*) from {s}links where source = :ref", ref=ref)
    return int(found[0][0])
