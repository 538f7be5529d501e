"""Enqueue in a caller's own transaction: nothing of it is there, or sent, unless that commits."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.client.conftest import driver_url
from tests.client.lanes import RecordingLane
from tests.support.postgres import PostgresServer
from workhorse.app import Workhorse
from workhorse.client.publishing import Publisher
from workhorse.domain.runs import RunState
from workhorse.errors import (
    ConfigurationError,
    IdempotencyConflictError,
    RunNotFoundError,
)
from workhorse.handlers.tasks import Task
from workhorse.store.base.database import Store
from workhorse.store.base.pending import _pending
from workhorse.telemetry import Metric


class _UndoError(Exception):
    """Raised to end a transaction by an error, as an application does."""


Caller = Callable[[Engine], Any]


@contextmanager
def _engine_begin(engine: Engine) -> Iterator[Connection]:
    with engine.begin() as connection:
        yield connection


@contextmanager
def _commit_as_you_go(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection
        connection.commit()


@contextmanager
def _session_begin(engine: Engine) -> Iterator[Session]:
    with sessionmaker(engine).begin() as session:
        yield session


@contextmanager
def _session_commit(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session
        session.commit()


@contextmanager
def _scoped_session(engine: Engine) -> Iterator[scoped_session[Session]]:
    sessions = scoped_session(sessionmaker(engine))
    try:
        yield sessions
        sessions.commit()
    finally:
        sessions.remove()


@contextmanager
def _without_a_pool(engine: Engine) -> Iterator[Session]:
    unpooled = create_engine(engine.url, poolclass=NullPool)
    with Session(unpooled) as session:
        yield session
        session.commit()


@contextmanager
def _with_options(engine: Engine) -> Iterator[Connection]:
    level = {"sqlite": "SERIALIZABLE"}.get(engine.dialect.name, "REPEATABLE READ")
    with engine.execution_options(isolation_level=level).begin() as connection:
        yield connection


CALLERS = pytest.mark.parametrize(
    "caller",
    [
        _engine_begin,
        _commit_as_you_go,
        _session_begin,
        _session_commit,
        _scoped_session,
        _without_a_pool,
        _with_options,
    ],
    ids=lambda caller: caller.__name__.strip("_"),
)


@CALLERS
def test_a_commit_makes_the_run_and_then_wakes_it(
    caller: Caller, engine: Engine, double: Task[int, int], lane: RecordingLane
) -> None:
    """The wakeup goes out once the run can be seen over another connection, and not before."""
    with caller(engine) as connection:
        run = double.enqueue(1, connection=connection)
        assert lane.sent == []

    assert [(each.run_id, each.seen, each.form) for each in lane.sent] == [(run.id, True, "send")]
    assert run.created
    assert run.view().state is RunState.READY


@CALLERS
def test_a_rollback_leaves_no_run_and_sends_nothing(
    caller: Caller, engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """An error in the caller's own work takes the run with it."""
    with suppress(_UndoError), caller(engine) as connection:
        run = double.enqueue(1, connection=connection)
        raise _UndoError
    app.flush()

    assert lane.calls == []
    with pytest.raises(RunNotFoundError, match="has not committed, or was rolled back"):
        run.result(timeout=0)


def test_a_connection_that_is_closed_without_a_commit_sends_nothing(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Closing rolls back."""
    with engine.connect() as connection:
        double.enqueue(1, connection=connection)
    app.flush()

    assert lane.calls == []


def test_a_caller_may_look_while_its_transaction_is_open(
    engine: Engine, app: Workhorse, double: Task[int, int]
) -> None:
    """On SQLite too, where the open transaction holds the one write lock: looking takes none."""
    earlier = double.enqueue(1)
    with engine.begin() as connection:
        run = double.enqueue(2, connection=connection)
        assert earlier.view().state is RunState.READY
        assert [view.id for view in app.admin.list_runs()] == [earlier.id]
        with pytest.raises(RunNotFoundError, match="has not committed"):
            run.result(timeout=0)

    assert [view.id for view in app.admin.list_runs()] == [run.id, earlier.id]


def test_the_first_use_of_the_store_may_be_inside_a_transaction(
    engine: Engine, double: Task[int, int], app: Workhorse
) -> None:
    """The schema is looked at over another connection, while this one holds its locks."""
    with engine.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
        connection.execute(text("insert into orders values (1)"))
        run = double.enqueue(1, connection=connection)

    assert run.view().state is RunState.READY
    assert app.store.kind == engine.dialect.name


def test_each_transaction_of_a_connection_answers_for_itself(
    engine: Engine, double: Task[int, int], lane: RecordingLane
) -> None:
    """What one rolled back is not sent by the next, and what one committed is not lost by it."""
    with engine.connect() as connection:
        double.enqueue(1, connection=connection)
        connection.rollback()
        second = double.enqueue(2, connection=connection)
        connection.commit()
        double.enqueue(3, connection=connection)
        assert lane.ids == [second.id], "the next begin sends what was committed before"
        connection.rollback()

    assert lane.ids == [second.id]


def test_a_connection_that_is_kept_is_flushed(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """No sign of life follows this commit, so the program says when."""
    with engine.connect() as connection:
        run = double.enqueue(1, connection=connection)
        app.flush()
        assert lane.calls == [], "the transaction is still open"
        connection.commit()
        assert lane.calls == []
        app.flush()
        assert lane.ids == [run.id]
        app.flush()

    assert lane.ids == [run.id]


def test_a_flush_between_the_commit_event_and_the_commit_sends_nothing(
    engine: Engine,
    app: Workhorse,
    double: Task[int, int],
    lane: RecordingLane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SQLAlchemy's event comes before COMMIT: the run cannot be seen yet."""
    commit = engine.dialect.do_commit
    sent: list[int] = []

    def flush_and_commit(raw: Any) -> None:
        app.flush()
        sent.append(len(lane.calls))
        commit(raw)

    monkeypatch.setattr(engine.dialect, "do_commit", flush_and_commit)
    with engine.begin() as connection:
        double.enqueue(1, connection=connection)

    assert sent == [0]
    assert [each.seen for each in lane.sent] == [True]


def test_a_commit_that_fails_sends_nothing(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """A deferred constraint is checked by COMMIT itself, after the commit event."""
    with engine.begin() as connection:
        connection.execute(text("create table parent (id integer primary key)"))
        connection.execute(
            text(
                "create table child (id integer references parent (id) "
                "deferrable initially deferred)"
            )
        )
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("pragma foreign_keys = on")
            connection.commit()
        connection.execute(text("insert into child values (1)"))
        double.enqueue(1, connection=connection)
        with pytest.raises(IntegrityError):
            connection.commit()
        app.flush()
        connection.rollback()
        app.flush()
    app.flush()

    assert lane.calls == []


def test_a_commit_whose_answer_was_lost_sends(
    engine: Engine,
    app: Workhorse,
    double: Task[int, int],
    lane: RecordingLane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have happened, as it has here: a wakeup too many is better than one too few."""
    commit = engine.dialect.do_commit

    def commit_and_lose(raw: Any) -> None:
        commit(raw)
        raise engine.dialect.loaded_dbapi.OperationalError("gone")

    with engine.connect() as connection:
        run = double.enqueue(1, connection=connection)
        monkeypatch.setattr(engine.dialect, "do_commit", commit_and_lose)
        monkeypatch.setattr(engine.dialect, "is_disconnect", lambda *_: True)
        with pytest.raises(OperationalError):
            connection.commit()
        connection.rollback()
    app.flush()

    assert lane.ids == [run.id]
    assert lane.sent[0].seen


def test_a_commit_that_is_broken_off_by_an_error_of_python_s_sends(
    engine: Engine,
    app: Workhorse,
    double: Task[int, int],
    lane: RecordingLane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver says nothing of it, so it may have happened, as it has here."""
    commit = engine.dialect.do_commit

    def commit_and_break_off(raw: Any) -> None:
        commit(raw)
        raise _UndoError

    with engine.connect() as connection:
        run = double.enqueue(1, connection=connection)
        monkeypatch.setattr(engine.dialect, "do_commit", commit_and_break_off)
        with pytest.raises(_UndoError):
            connection.commit()
    app.flush()

    assert lane.ids == [run.id]


def test_a_connect_that_fails_says_so_itself(
    engine: Engine, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is listened to, and there is no connection that the error could belong to."""
    with engine.begin() as connection:
        double.enqueue(1, connection=connection)
    engine.dispose()

    def refuse(*_: Any, **__: Any) -> None:
        raise engine.dialect.loaded_dbapi.OperationalError("nobody there")

    monkeypatch.setattr(engine.dialect, "connect", refuse)

    with pytest.raises(OperationalError, match="nobody there"):
        engine.connect()


def test_connections_without_runs_are_left_alone(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """The engine's other transactions pass by, whatever they do."""
    with engine.begin() as connection:
        double.enqueue(1, connection=connection)
    lane.sent.clear()

    with engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(text("select 1"))
        connection.begin_nested().rollback()
        connection.commit()
        with pytest.raises(DBAPIError):
            connection.execute(text("select nothing from nowhere"))
        connection.rollback()
    with Session(engine) as session:
        session.execute(text("select 1"))
        session.commit()
    app.flush()

    assert lane.sent == []


# -- savepoints and joined sessions --------------------------------------------------------------


def test_a_savepoint_that_is_rolled_back_takes_its_runs_along(
    engine: Engine, double: Task[int, int], lane: RecordingLane
) -> None:
    """Only what the outer transaction commits is sent."""
    with Session(engine) as session:
        before = double.enqueue(1, connection=session)
        with suppress(_UndoError), session.begin_nested():
            double.enqueue(2, connection=session)
            with session.begin_nested():
                double.enqueue(3, connection=session)
            raise _UndoError
        with session.begin_nested():
            kept = double.enqueue(4, connection=session)
        assert lane.calls == [], "a savepoint's end fires after_commit too"
        session.commit()

    assert lane.ids == [before.id, kept.id]
    assert all(each.seen for each in lane.sent)


def test_a_savepoint_from_before_the_first_run_takes_all_along(
    engine: Engine, double: Task[int, int], lane: RecordingLane
) -> None:
    """It was set before anybody listened, and is known by its rollback alone."""
    with engine.begin() as connection:
        savepoint = connection.begin_nested()
        double.enqueue(1, connection=connection)
        savepoint.rollback()
        kept = double.enqueue(2, connection=connection)

    assert lane.ids == [kept.id]


def test_the_outer_rollback_takes_a_released_savepoint_along(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """A savepoint's release commits nothing."""
    with suppress(_UndoError), engine.begin() as connection:
        with connection.begin_nested():
            double.enqueue(1, connection=connection)
        raise _UndoError
    app.flush()

    assert lane.calls == []


JOINED = pytest.mark.parametrize(
    "mode", ["conditional_savepoint", "rollback_only", "create_savepoint"]
)


@JOINED
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_session_in_an_outer_transaction_waits_for_its_end(
    mode: Any, end: str, engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Its own commit sends nothing: the outer transaction decides."""
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            run = double.enqueue(1, connection=session)
            session.commit()
        app.flush()
        assert lane.calls == []
        getattr(outer, end)()
    app.flush()

    assert lane.ids == ([run.id] if end == "commit" else [])
    assert all(each.seen for each in lane.sent)


@JOINED
def test_a_joined_session_that_rolls_back_sends_nothing(
    mode: Any, engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """Whether it ends a savepoint or the whole transaction, its run is gone."""
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            double.enqueue(1, connection=session)
            session.rollback()
        if outer.is_active:
            outer.commit()
    app.flush()

    assert lane.calls == []


def test_a_session_that_controls_the_transaction_sends_after_its_commit(
    engine: Engine, double: Task[int, int], lane: RecordingLane
) -> None:
    """The connection is neither given back nor begun again: the session's commit is the sign."""
    with engine.connect() as connection:
        connection.begin()
        with Session(connection, join_transaction_mode="control_fully") as session:
            run = double.enqueue(1, connection=session)
            session.commit()
            assert lane.ids == [run.id]
            assert lane.sent[0].seen


def test_two_phases_send_after_the_second() -> None:
    """PREPARE is no commit, and a prepared transaction can still be rolled back."""
    with PostgresServer(settings={"max_prepared_transactions": "4"}) as server:
        url = server.url()
        store = Store.open(url)
        lane = RecordingLane(lambda _run_id: True)
        with Workhorse(database_url=url, lane=lane) as app:
            app.migrate()

            @app.task()
            def work() -> None:
                pass

            engine = create_engine(driver_url(url))
            with engine.connect() as connection:
                for end, expected in (("rollback", 0), ("commit", 1)):
                    transaction = connection.begin_twophase()
                    work.enqueue(connection=connection)
                    transaction.prepare()
                    app.flush()
                    assert lane.calls == []
                    getattr(transaction, end)()
                    app.flush()
                    assert len(lane.sent) == expected
            engine.dispose()
        store.close()


# -- sends that fail, and state that stays behind ------------------------------------------------


def test_a_lane_that_fails_does_not_touch_the_callers_commit(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """The run is accepted; that nobody was woken is counted."""
    lane.error = RuntimeError("no broker")
    with Session(engine) as session:
        run = double.enqueue(1, connection=session)
        session.commit()

    assert run.view().state is RunState.READY
    assert app.counters.get(Metric.WAKEUPS_NOT_SENT) == 1


def test_not_even_a_broken_publisher_reaches_the_callers_commit(
    engine: Engine,
    double: Task[int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever fails there is logged."""

    def fail(*_given: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(Publisher, "publish", fail)
    with engine.begin() as connection:
        run = double.enqueue(1, connection=connection)

    assert run.view().state is RunState.READY
    assert "wakeups were not sent after a commit" in caplog.text


def test_two_apps_share_a_connection(
    engine: Engine, database_url: str, double: Task[int, int], lane: RecordingLane
) -> None:
    """Each sends its own over its own lane, and flushes no other's."""
    other_lane = RecordingLane(lane.look)
    with Workhorse(database_url=database_url, lane=other_lane) as other, engine.connect() as conn:

        @other.task()
        def more() -> None:
            pass

        mine = double.enqueue(1, connection=conn)
        theirs = more.enqueue(connection=conn)
        conn.commit()
        other.flush()
        assert (lane.ids, other_lane.ids) == ([], [theirs.id])

    assert (lane.ids, other_lane.ids) == ([mine.id], [theirs.id])


def test_a_connection_left_to_the_garbage_collector_is_sent_by_the_next_flush(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """The collector may come in the middle of anything, so nothing is sent from there."""
    connection = engine.connect()
    run = double.enqueue(1, connection=connection)
    connection.commit()
    del connection
    gc.collect()
    assert lane.calls == []

    app.flush()

    assert lane.ids == [run.id]


def test_nothing_stays_behind_when_a_connection_goes(
    engine: Engine, double: Task[int, int]
) -> None:
    """What hangs on a connection goes with it, committed or not, closed or not."""
    ends: list[Callable[[Connection], None]] = [
        Connection.commit,
        Connection.rollback,
        lambda _connection: None,
    ]
    pending: list[weakref.ref[Any]] = []
    for end in ends:
        with engine.connect() as connection:
            double.enqueue(1, connection=connection)
            pending.append(weakref.ref(_pending[connection]))
            end(connection)
            assert pending[-1]() is not None
    del connection
    gc.collect()

    assert [reference() for reference in pending] == [None] * len(ends)


# -- what cannot be joined -----------------------------------------------------------------------


def test_another_kind_of_database_is_refused(app: Workhorse, double: Task[int, int]) -> None:
    """No transaction spans two databases."""
    url = "sqlite://" if app.store.kind == "postgresql" else "postgresql+psycopg://nowhere/none"
    engine = create_engine(url)
    connection = Connection(engine, connection=_NeverUsed())  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="a transaction cannot span both"):
        double.enqueue(1, connection=connection)


def test_a_driver_with_another_form_of_parameters_is_refused(
    engine: Engine, double: Task[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statements are text, and this driver would not understand them."""
    monkeypatch.setattr(engine.dialect, "driver", "other")
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="driver 'other'"):
        double.enqueue(1, connection=connection)


def test_statements_are_refitted_for_a_driver_that_numbers_its_parameters(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What asyncpg is sent says the same: shown with a driver that is at hand."""
    engine = create_engine(driver_url(postgresql_url))
    with Workhorse(database_url=postgresql_url, lane="polling") as app:

        @app.task()
        def work(text: str) -> None:
            pass

        monkeypatch.setattr(engine.dialect, "driver", "asyncpg")
        payload = "100 %, 50 %% :colon ::cast %(name)s \\ \\: '"
        with engine.begin() as connection:
            first = work.enqueue(payload, key="k", connection=connection)
            second = work.enqueue(payload, key="k", connection=connection)

        assert (first.id, second.created) == (second.id, False)
        assert json.loads(first.view().payload) == payload
    engine.dispose()


def test_autocommit_is_refused(database_url: str, double: Task[int, int]) -> None:
    """There is no transaction to join, whether the engine or the connection says so."""
    plain = create_engine(driver_url(database_url))
    automatic = create_engine(driver_url(database_url), isolation_level="AUTOCOMMIT")
    for connection in (
        plain.connect().execution_options(isolation_level="AUTOCOMMIT"),
        automatic.connect(),
    ):
        with connection, pytest.raises(ConfigurationError, match="autocommit"):
            double.enqueue(1, connection=connection)
    plain.dispose()
    automatic.dispose()


def test_a_driver_that_begins_nothing_is_refused(sqlite_url: str) -> None:
    """pysqlite without an isolation level commits each statement, unless somebody says BEGIN."""
    engine = create_engine(sqlite_url)

    @event.listens_for(engine, "connect")
    def _begin_nothing(raw: Any, _record: object) -> None:
        raw.isolation_level = None

    with Workhorse(database_url=sqlite_url, lane="polling") as app:

        @app.task()
        def work() -> None:
            pass

        with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
            work.enqueue(connection=connection)

        event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("begin"))
        with engine.begin() as connection:
            run = work.enqueue(connection=connection)
        assert run.view().state is RunState.READY
    engine.dispose()


@pytest.mark.skipif(
    sys.version_info < (3, 12),
    reason="sqlite3 has no such argument before Python 3.12; `make test PYTHON=python3.12`",
)
def test_a_driver_in_its_newer_autocommit_mode_is_refused(sqlite_url: str) -> None:
    """Python 3.12 gave sqlite3 an argument of that name, with and without transactions."""
    with Workhorse(database_url=sqlite_url, lane="polling") as app:

        @app.task()
        def work() -> None:
            pass

        for mode, joins in ((True, False), (False, True)):
            engine = create_engine(sqlite_url, connect_args={"autocommit": mode})
            with engine.connect() as connection:
                if joins:
                    run = work.enqueue(connection=connection)
                    connection.commit()
                    assert run.view().state is RunState.READY
                else:
                    with pytest.raises(ConfigurationError, match="autocommit"):
                        work.enqueue(connection=connection)
            engine.dispose()


@pytest.mark.parametrize("given", ["text", object(), 7])
def test_what_is_no_connection_is_refused(given: Any, double: Task[int, int]) -> None:
    """The error says what may stand there."""
    with pytest.raises(ConfigurationError, match="Session, scoped_session or Connection"):
        double.enqueue(1, connection=given)


class _NeverUsed:
    """Stands for a driver's connection that nothing may touch."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


# -- conflicts in the caller's transaction -------------------------------------------------------


def test_a_conflict_leaves_the_callers_transaction_usable(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """None of a bulk is inserted and none of its keys is taken, though the caller commits."""
    owner = double.enqueue(1, key="taken")
    lane.sent.clear()
    with engine.begin() as connection:
        with pytest.raises(IdempotencyConflictError):
            app.enqueue_many(
                [double.prepare(5, key="free"), double.prepare(2, key="taken")],
                connection=connection,
            )
        kept = double.enqueue(3, connection=connection)

    again = double.enqueue(6, key="free")
    assert again.created, "the key went with the bulk that took it"
    assert lane.ids == [kept.id, again.id]
    assert owner.view().payload == "1"


def test_a_bulk_with_keys_is_rolled_back_with_its_transaction(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """The savepoint around it commits nothing, though it is the transaction's first statement."""
    given = [double.prepare(1, key="a"), double.prepare(2, key="b")]
    with engine.connect() as connection:
        app.enqueue_many(given, connection=connection)
        connection.rollback()
    app.flush()

    assert app.admin.list_runs() == []
    assert lane.calls == []
    assert double.enqueue(3, key="a").created


def test_a_bulk_with_keys_joins_a_transaction_that_has_written(
    engine: Engine, app: Workhorse, double: Task[int, int]
) -> None:
    given = [double.prepare(1, key="a"), double.prepare(2, key="b")]
    with engine.begin() as connection:
        connection.execute(text("create table their_own (id integer primary key)"))
        connection.execute(text("insert into their_own values (1)"))
        app.enqueue_many(given, connection=connection)

    assert len(app.admin.list_runs()) == 2


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 10}])
def test_a_caller_may_read_rows_by_a_cursor(
    engine: Engine, app: Workhorse, double: Task[int, int], options: dict[str, Any]
) -> None:
    """SQLAlchemy keeps these options on the connection; our statements are no queries."""
    with engine.begin() as connection:
        connection.execution_options(**options).execute(text("select 1")).all()
        one = double.enqueue(1, connection=connection)
        given = [double.prepare(n, key=f"{n}") for n in range(2)]
        many = app.enqueue_many(given, connection=connection)

    assert [run.view().state for run in (one, *many)] == [RunState.READY] * 3


def test_a_bulk_joins_a_transaction_whole(
    engine: Engine, app: Workhorse, double: Task[int, int], lane: RecordingLane
) -> None:
    """An iterator too: the caller's transaction is the only commit there is."""
    with engine.begin() as connection:
        runs = app.enqueue_many((double.prepare(n) for n in range(25)), connection=connection)
        assert app.enqueue_many([], connection=connection) == []

    assert [run.view().payload for run in runs] == [str(n) for n in range(25)]
    assert lane.ids == [runs[0].id, runs[10].id, runs[20].id]
