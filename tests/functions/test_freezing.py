"""A process that stands still between invocations, or in the middle of one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.functions.conftest import Deployed, body_of, event_of
from tests.functions.program import ONCE_AGAIN
from tests.runtime.proxy import READY_FOR_QUERY, Proxy
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.sqs import SqsEndpoint
from workhorse.domain.runs import RunState
from workhorse.store.base.migrating import migrate

ENDED: dict[str, list[str]] = {"batchItemFailures": []}


def test_connections_that_died_in_the_freeze_are_replaced(on_postgres: Deployed) -> None:
    """The server ends every connection while nobody looks; the next invocation does not fail."""
    function = on_postgres.function()
    first = on_postgres.new("quick", "before")
    assert function.invoke(event_of(body_of(first))) == ENDED
    for number in (1, 2):
        function.freeze()
        assert _end_connections(on_postgres.url) > 0
        function.thaw()
        run_id = on_postgres.new("quick_async", f"after {number}")

        assert function.invoke(event_of(body_of(run_id))) == ENDED

        assert on_postgres.state(run_id) is RunState.SUCCEEDED
    assert function.starts == 1


def test_a_connection_that_died_without_a_word_is_replaced(
    endpoint: SqsEndpoint, tmp_path: Path
) -> None:
    """What is sent over it is never answered: it is given up in time, and another one made."""
    with PostgresServer(tcp=True) as server, Proxy(server.port) as proxy:
        url = server.databases.url(server.databases.create())
        with closing(Deployed(url, endpoint, tmp_path)) as deployed:
            migrate(deployed.store)
            through = make_url(url).set(host="127.0.0.1", port=proxy.port)
            function = deployed.function(
                database_url=through.render_as_string(hide_password=False), timeout_s=40
            )
            assert function.invoke(event_of(body_of(deployed.new("quick", "before")))) == ENDED
            run_id = deployed.new("quick", "after")
            proxy.swallow(True)
            call = function.begin(event_of(body_of(run_id)))
            assert proxy.swallowed.wait(20)
            proxy.swallow(False)

            assert function.finish(call) == ENDED

            assert deployed.state(run_id) is RunState.SUCCEEDED


@pytest.mark.parametrize("begun", [True, False], ids=["under_a_handler", "at_the_start"])
def test_a_store_that_hangs_leaves_a_function_time_to_answer(
    endpoint: SqsEndpoint, tmp_path: Path, begun: bool
) -> None:
    """What is asked of it is given up in time, so the function is not killed at its time-out."""
    with PostgresServer(tcp=True) as server, Proxy(server.port) as proxy:
        url = server.databases.url(server.databases.create())
        with closing(Deployed(url, endpoint, tmp_path)) as deployed:
            migrate(deployed.store)
            through = make_url(url).set(host="127.0.0.1", port=proxy.port)
            function = deployed.function(
                database_url=through.render_as_string(hide_password=False),
                min_time_left_seconds="6",
                timeout_s=12,
            )
            if begun:
                function.invoke(event_of(body_of(deployed.new("quick", "warm up"))))
            else:
                proxy.swallow_behind(READY_FOR_QUERY)
            event = event_of(body_of(deployed.new("obstinate")))
            call = function.begin(event)
            if begun:
                deployed.sees("obstinate one begins")
                proxy.swallow(True)

            answer = function.finish(call)

            kept = [] if begun else [event["Records"][0]["messageId"]]
            assert [each["itemIdentifier"] for each in answer["batchItemFailures"]] == kept
            assert proxy.swallowed.is_set()
            assert function.starts == 1


def test_a_function_frozen_for_longer_than_its_lease_stores_nothing(deployed: Deployed) -> None:
    """Another one takes over and ends the run; the thawed one's result is nobody's."""
    frozen, other = (deployed.function(lease_seconds="1") for _ in range(2))
    run_id = deployed.new("obstinate", retry=ONCE_AGAIN)
    call = frozen.begin(event_of(body_of(run_id)))
    deployed.sees("obstinate one begins")
    frozen.freeze()

    def taken_over() -> bool:
        other.invoke(event_of(body_of(run_id)))
        return deployed.state(run_id) is RunState.SUCCEEDED

    eventually(taken_over, within=40, what="the other function ends the run")
    deployed.witness_file.with_name("witness.open").touch()
    frozen.thaw()
    deployed.sees("obstinate one ends, fence 1")

    assert frozen.finish(call, within=30) == ENDED
    view = deployed.view(run_id)
    assert (view.state, view.fence, view.result) == (RunState.SUCCEEDED, 2, '"one under fence 2"')
    # It is of use still.
    last = deployed.new("quick", "last")
    assert frozen.invoke(event_of(body_of(last))) == ENDED
    assert deployed.state(last) is RunState.SUCCEEDED
    assert frozen.starts == 1


def test_a_store_that_is_away_keeps_every_message(own_postgres_deployed: Deployed) -> None:
    """Nothing could be looked at, so nothing is let go; when it is back, the same process runs."""
    deployed = own_postgres_deployed
    function = deployed.function()
    assert function.invoke(event_of(body_of(deployed.new("quick", "before")))) == ENDED
    run_id = deployed.new("quick", "during")
    event = event_of(body_of(run_id), body_of(run_id))
    deployed.server.stop()

    answer = function.invoke(event)

    kept = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    assert kept == [record["messageId"] for record in event["Records"]]
    deployed.server.start()
    assert function.invoke(event) == ENDED
    assert deployed.state(run_id) is RunState.SUCCEEDED
    assert function.starts == 1


def _end_connections(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        ended = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        ).fetchall()
    return len(ended)
