"""Maintenance as a function that a schedule invokes."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from tests.functions.conftest import Deployed
from tests.support.lambda_runtime import FunctionError
from workhorse import Workhorse, lambda_maintenance
from workhorse.domain.hints import no_reach
from workhorse.domain.ids import new_run_id
from workhorse.domain.runs import NewRun, RunState
from workhorse.errors import MaintenanceFailedError, SchemaMismatchError
from workhorse.store.base.database import Tx
from workhorse.store.producing.enqueueing import enqueue


class TimeLeft:
    def __init__(self, ms: int) -> None:
        self._ms = ms

    def get_remaining_time_in_millis(self) -> int:
        return self._ms


def test_a_pass_says_what_it_did(deployed: Deployed) -> None:
    """A run without any wakeup gets one, and the handler's function runs it."""
    run_id = deployed.new("quick")
    maintain = deployed.function("program.maintain", hint_stride="1")
    done = maintain.invoke({"source": "aws.scheduler"})
    assert done["counts"]["top_up"] == 1
    assert done["failed"] == {}
    assert deployed.mapping(deployed.function()).poll() == []
    assert deployed.state(run_id) is RunState.SUCCEEDED


def test_a_step_that_fails_is_named_and_does_not_fail_the_rest(database_url: str) -> None:
    """The lane is away: the top-up fails, and what needs the store alone is done."""
    app = Workhorse(database_url=database_url, lane="sqs", aws_endpoint_url="http://127.0.0.1:9")
    run = NewRun(id=new_run_id(), task="quick", queue="default", payload="null")
    app.store.run(enqueue, [run], reach=no_reach)
    done = lambda_maintenance(app)({}, TimeLeft(60_000))
    assert "promote" in done["counts"]
    assert list(done["failed"]) == ["top_up"]
    app.close()


def test_a_pass_of_which_no_step_is_done_fails(database_url: str) -> None:
    """So that an alarm on the function's errors sees it; what stands, the message says."""
    app = Workhorse(database_url=database_url, lane="memory")

    def break_it(tx: Tx) -> None:
        schema = "workhorse." if app.store.kind == "postgresql" else ""
        tx.conn.execute(text(f"alter table {schema}steps rename to stairs"))

    app.store.run(break_it)
    with pytest.raises(MaintenanceFailedError, match="no step of maintenance was done"):
        lambda_maintenance(app)({}, TimeLeft(60_000))
    app.close()


def test_without_a_schema_it_says_what_to_do(empty_database_url: str) -> None:
    app = Workhorse(database_url=empty_database_url, lane="memory")
    with pytest.raises(SchemaMismatchError):
        lambda_maintenance(app)({}, TimeLeft(60_000))
    app.close()


def test_a_store_that_is_away_fails_the_invocation(on_postgres: Deployed, tmp_path: Path) -> None:
    away = f"postgresql://nobody@/nothing?host={tmp_path}"
    maintain = on_postgres.function("program.maintain", database_url=away)
    with pytest.raises(FunctionError) as failed:
        maintain.invoke({})
    assert failed.value.kind == "StoreUnavailableError"


def test_it_begins_nothing_in_its_last_seconds(database_url: str) -> None:
    """With no time left at all it does nothing, and says so without failing."""
    app = Workhorse(database_url=database_url, lane="memory")
    assert lambda_maintenance(app)({}, TimeLeft(0)) == {"counts": {}, "failed": {}}
    app.close()
