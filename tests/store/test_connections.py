"""Connections: few, shared, broken on purpose, closed and opened again, and left to a parent."""

from __future__ import annotations

import gc
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from tests.runtime.proxy import READY_FOR_QUERY, Proxy
from tests.store.acting import a_claimed, a_run, end, ids_of, put, put_many, reach, rows, seen, take
from tests.store.rivals import Rival, blocked_sessions
from tests.support.databases import Databases
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from workhorse.domain.runs import ClaimedRun
from workhorse.errors import StoreUnavailableError
from workhorse.store.base.connecting import abort_connection
from workhorse.store.base.database import Store, Tx
from workhorse.store.base.migrating import migrate
from workhorse.store.operators.operating import cancel
from workhorse.store.producing.enqueueing import enqueue


def _sessions(store: Store) -> int:
    return int(
        rows(
            store,
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and application_name = 'workhorse'",
        )[0][0]
    )


# -- too many connections (docs/cases.md, case 13) -----------------------------------------------


def test_50_threads_share_a_pool_of_two(database_url: str) -> None:
    store = Store.open(database_url, connections=2)
    start = threading.Barrier(50)
    most: list[int] = []

    def work(number: int) -> str:
        start.wait(60)
        run_id = put(store)
        claimed = take(store, run_id).runs
        if store.kind == "postgresql" and number % 10 == 0:
            most.append(_sessions(store))
        return end(store, claimed[0]).written[run_id]

    with ThreadPoolExecutor(50) as threads:
        ends = list(threads.map(work, range(50)))

    assert set(ends) == {"succeeded"}
    assert len(ends) == 50
    assert max(most, default=0) <= 2
    store.close()


def _claimed_unless_full(store: Store) -> ClaimedRun | None:
    try:
        return a_claimed(store)
    except StoreUnavailableError:  # as a worker does, who asks again
        return None


def test_a_start_up_stampede_gets_through_a_server_that_is_full() -> None:
    """20 workers at once, where ten may connect: the others come again a little later."""
    with PostgresServer(settings={"max_connections": "12"}) as server:
        url = server.url(server.databases.create())
        first = Store.open(url, connections=1)
        migrate(first)
        first.close()
        start = threading.Barrier(20)

        def work(_: int) -> str:
            store = Store.open(url, connections=1)
            start.wait(60)
            try:
                claimed = eventually(lambda: _claimed_unless_full(store), within=60)
                assert claimed is not None
                return end(store, claimed).written[claimed.id]
            finally:
                store.close()

        with ThreadPoolExecutor(20) as threads:
            assert list(threads.map(work, range(20))) == ["succeeded"] * 20
        assert "too many clients" in server.log()


def test_a_pool_that_is_used_up_is_waited_for_and_then_named(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.store.base.connecting._POOL_WAIT_S", 0.01)
    monkeypatch.setattr("workhorse.store.base.database._FIRST_REST", 0.0)
    store = Store.open(database_url, connections=1)

    def inside(tx: Tx) -> None:
        store.run(lambda inner: None)

    with pytest.raises(
        StoreUnavailableError, match=r"did not answer \(TimeoutError\); nothing was sent"
    ):
        store.run(inside)
    store.run(lambda tx: None)
    store.close()


def test_a_connection_that_becomes_free_is_taken(database_url: str) -> None:
    store = Store.open(database_url, connections=1)
    inside, go_on = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        inside.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(2) as threads:
        holder = threads.submit(store.run, hold)
        assert inside.wait(30)
        other = threads.submit(store.run, lambda tx: 7)
        go_on.set()
        holder.result(30)
        assert other.result(30) == 7
    store.close()


def test_a_sibling_has_connections_of_its_own(database_url: str) -> None:
    store = Store.open(database_url, connections=1, schema="workhorse")
    sibling = store.sibling(connections=1)
    run_id = put(store)

    def inside(tx: Tx) -> str:
        return sibling.read(lambda other: "answered")

    assert store.run(inside) == "answered"
    assert seen(sibling, run_id).id == run_id
    assert (sibling.description, sibling.schema) == (store.description, store.schema)
    store.close()
    sibling.close()


# -- breaking them -------------------------------------------------------------------------------


def test_abort_ends_a_statement_that_hangs(postgresql_store: Store) -> None:
    store = postgresql_store
    run_id = put(store)
    worker = store.sibling(connections=1)
    with Rival(store) as other, ThreadPoolExecutor(1) as thread:
        other.lock(run_id)
        answer = thread.submit(worker.try_once, cancel, run_id, by="ann", why="no", request_id="r")
        eventually(lambda: blocked_sessions(store) == 1)

        worker.abort()

        with pytest.raises(StoreUnavailableError):
            answer.result(10)
    assert worker.run(cancel, run_id, by="ann", why="no", request_id="r")[0] == "cancelled"
    worker.close()


def test_an_operation_that_may_be_repeated_goes_on_after_an_abort(
    postgresql_store: Store,
) -> None:
    store = postgresql_store
    run_id = put(store)
    worker = store.sibling(connections=1)
    with Rival(store) as other, ThreadPoolExecutor(1) as thread:
        other.lock(run_id)
        answer = thread.submit(worker.run, cancel, run_id, by="ann", why="no", request_id="r")
        eventually(lambda: blocked_sessions(store) == 1)
        worker.abort()
        other.rollback()

        assert answer.result(30)[0] == "cancelled"
    worker.close()


@pytest.mark.parametrize("bound", ["idle_session_timeout", "idle_in_transaction_session_timeout"])
def test_a_session_that_the_server_ended_for_idling_is_replaced(
    postgresql_url: str, bound: str
) -> None:
    """As one that was cut off, though the driver has other classes of errors for these ends."""
    store = Store.open(postgresql_url, connections=1)
    seen_once: list[int] = []

    def bind(tx: Tx) -> None:
        tx.conn.execute(text(f"set {bound} = 50"))

    def look(tx: Tx) -> int:
        pid = int(tx.conn.execute(text("select pg_backend_pid()")).scalar_one())
        if not seen_once:
            seen_once.append(pid)
            time.sleep(0.5)
        return int(tx.conn.execute(text("select pg_backend_pid()")).scalar_one())

    store.run(bind)
    time.sleep(0.5)

    assert store.run(look) > 0
    store.close()


def test_abort_ends_a_statement_on_sqlite(sqlite_store: Store) -> None:
    store = sqlite_store
    forever = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
    begun = threading.Event()

    def hang(tx: Tx) -> None:
        begun.set()
        tx.conn.exec_driver_sql(forever)

    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(store.try_once, hang)
        assert begun.wait(10)

        def aborted() -> bool:
            store.abort()
            return answer.done()

        eventually(aborted)
        with pytest.raises(StoreUnavailableError, match="interrupted"):
            answer.result(10)
    put(store)


def test_abort_breaks_a_first_connection_that_is_not_ready_yet() -> None:
    """Right after it is made it is asked about its server, and that may never be answered."""
    with PostgresServer(tcp=True) as server, Proxy(server.port) as proxy:
        through = make_url(server.url()).set(host="127.0.0.1", port=proxy.port)
        store = Store.open(through.render_as_string(hide_password=False))
        proxy.swallow_behind(READY_FOR_QUERY)
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(store.try_once, lambda tx: tx.conn.execute(text("select 1")))
            try:
                assert proxy.swallowed.wait(20)
                store.abort()
                with pytest.raises(StoreUnavailableError):
                    answer.result(10)
            finally:
                proxy.close()  # whatever hangs ends with it
        store.close()


def test_abort_breaks_nothing_that_is_at_rest(store: Store) -> None:
    store.abort()
    run_id = put(store)
    store.abort()

    assert seen(store, run_id).id == run_id


def test_a_connection_that_is_closed_already_can_be_broken(store: Store) -> None:
    with store.engine.connect() as conn:
        raw = conn.connection.driver_connection
        assert raw is not None
        conn.invalidate()

    abort_connection(raw)


def test_connections_that_were_lost_are_forgotten(store: Store) -> None:
    """They are not broken again, and not kept in memory for the life of the store."""
    for _ in range(3):
        with store.engine.connect() as conn:
            conn.invalidate()
    gc.collect()

    assert store._in_use == {}


# -- closing and opening again -------------------------------------------------------------------


def test_a_closed_store_opens_again_when_it_is_used(database_url: str) -> None:
    store = Store.open(database_url)
    store.close()
    run_id = put(store)
    store.close()
    store.close()

    assert seen(store, run_id).id == run_id
    store.close()


def test_a_closed_store_leaves_no_session(postgresql_url: str, postgres: Databases) -> None:
    store, watcher = Store.open(postgresql_url), Store.open(postgresql_url)
    put_many(store, 3)
    assert _sessions(watcher) == 2

    store.close()

    eventually(lambda: _sessions(watcher) == 1)
    watcher.close()


def test_a_store_may_be_opened_by_many_threads_at_once(database_url: str) -> None:
    store = Store.open(database_url)
    start = threading.Barrier(8)

    def engine(_: int) -> int:
        start.wait(30)
        return id(store.engine)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(engine, range(8)))) == 1
    store.close()


# -- in another's transaction --------------------------------------------------------------------


def test_in_a_callers_transaction_nothing_is_committed(store: Store) -> None:
    with store.engine.connect() as conn:
        with conn.begin() as transaction:
            tx = store.joined(conn)
            assert tx.joined
            (answer,) = enqueue(tx, [a_run(key="k")], reach=reach)
            transaction.rollback()
        with conn.begin():
            (kept,) = enqueue(store.joined(conn), [a_run(key="k")], reach=reach)

    assert ids_of(take(store, answer.run_id, kept.run_id)) == [kept.run_id]


def test_in_a_callers_transaction_his_own_bounds_stand(postgresql_store: Store) -> None:
    with postgresql_store.engine.connect() as conn, conn.begin():
        conn.execute(text("set local lock_timeout = '55ms'"))
        enqueue(postgresql_store.joined(conn), [a_run(key="k")], reach=reach)
        assert conn.execute(text("show lock_timeout")).scalar_one() == "55ms"


# -- forks ---------------------------------------------------------------------------------------

_FORKED = """
    import os, sys, threading
    from tests.store.acting import put, seen, end, take
    from workhorse.store.base.database import Store

    store = Store.open(sys.argv[1], connections=2)
    first = put(store)

    def used():
        with store.engine.connect() as conn:
            return conn.connection.driver_connection

    pooled = used()
    inside, go_on = threading.Event(), threading.Event()

    def hold(tx):
        inside.set()
        go_on.wait(30)

    thread = threading.Thread(target=store.run, args=(hold,))
    if store.kind == "postgresql":  # on SQLite it would hold the write lock
        thread.start()
        inside.wait(30)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert used() is not pooled
            run_id = put(store)
            end(store, take(store, run_id).runs[0])
            assert seen(store, run_id).state == "succeeded"
            assert seen(store, first).state == "ready"
            store.abort()
            store.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    go_on.set()
    if store.kind == "postgresql":
        thread.join()
        assert not pooled.closed
        pooled.execute("select 1")  # the child has not ended the parent's session
        pooled.rollback()
    end(store, take(store, first).runs[0])
    assert seen(store, first).state == "succeeded"
    store.close()
    print("both went on")
"""


def test_a_child_process_leaves_its_parents_connections_alone(
    database_url: str, processes: Processes, tmp_path: Path
) -> None:
    program = tmp_path / "forked.py"
    program.write_text(textwrap.dedent(_FORKED))
    root = Path(__file__).parents[2]

    process = processes.python(
        "-W", "error", "-W", "ignore::DeprecationWarning", program, database_url,
        env={"PYTHONPATH": str(root)}, cwd=root,
    )  # fmt: skip

    assert process.wait(within=60) == 0
    assert "both went on" in process.output()
