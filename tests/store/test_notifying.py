"""Bells over LISTEN and NOTIFY: channels, rings inside transactions, lines that break."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from tests.runtime.proxy import Proxy
from tests.store.acting import a_run
from tests.support.postgres import PostgresServer
from workhorse.domain.hints import no_reach
from workhorse.domain.runs import NewRun
from workhorse.errors import ConfigurationError, StoreUnavailableError
from workhorse.store.base.connecting import Target, parse_url
from workhorse.store.base.database import Store
from workhorse.store.fleet import notifying
from workhorse.store.fleet.notifying import _TRIED, PostgresLine, bells_of, enqueue_and_ring
from workhorse.store.producing.ringing import channel_of, ring

LONG = "q" * 60


@pytest.fixture
def pg(postgresql_url: str) -> Iterator[Store]:
    store = Store.open(postgresql_url)
    yield store
    store.close()


@pytest.fixture
def line(pg: Store) -> Iterator[PostgresLine]:
    """A line that listens to three queues, and has heard nothing yet."""
    with closing(PostgresLine(pg.target, pg.schema)) as line:
        assert line.hear(["a", "b", LONG], 0) == {"a", "b", LONG}
        yield line


def all_of(queues: Collection[str]) -> Collection[str]:
    return frozenset(queues)


def store_runs(store: Store, *new: NewRun, **options: Any) -> list[str]:
    """Store runs; return the queues whose wakeups must follow."""
    options = {"reach": no_reach, "announce": all_of, **options}
    _, hints = store.run(enqueue_and_ring, new, **options)
    return [hint.queue for hint in hints]


# -- channels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "queue", "channel"),
    [
        ("workhorse", "default", "workhorse:default"),
        ("workhorse_staging", "mails-2", "workhorse_staging:mails-2"),
        ("s" * 30, "q" * 32, "s" * 30 + ":" + "q" * 32),
    ],
)
def test_a_channel_names_schema_and_queue(schema: str, queue: str, channel: str) -> None:
    assert channel_of(schema, queue) == channel


def test_long_names_make_channels_that_fit_and_differ() -> None:
    names = [
        (schema + tail, queue)
        for schema in ("s" * 40, "s" * 60)
        for tail in ("", "_")
        for queue in ("q" * 60, "q" * 59 + "p", "q" * 59)
    ]
    channels = {channel_of(schema, queue) for schema, queue in names}
    assert len(channels) == len(names)
    assert max(len(channel.encode()) for channel in channels) <= 63


# -- rings inside a transaction ------------------------------------------------------------------


def test_an_enqueue_rings_when_it_commits(pg: Store, line: PostgresLine) -> None:
    with pg.engine.connect() as conn, conn.begin():
        tx = pg.joined(conn)
        enqueue_and_ring(tx, [a_run(queue="a")], reach=no_reach, announce=all_of)
        # Another's ring, in a transaction that is over, comes through meanwhile.
        pg.run(ring, ["b"])
        assert line.hear(["a", "b", LONG], 20_000) == {"b"}
    assert line.hear(["a", "b", LONG], 20_000) == {"a"}


def test_one_transaction_at_a_time_rings_a_bell(pg: Store, line: PostgresLine) -> None:
    """Who finds another at it sends its ring afterwards: commits that ring share no flush."""
    with pg.engine.connect() as conn, conn.begin() as first:
        assert ring(pg.joined(conn), ["a"]) == {"a"}
        assert ring(pg.joined(conn), ["a", "b"]) == {"a", "b"}
        assert store_runs(pg, a_run(queue="a"), a_run(queue=LONG)) == ["a"]
        assert line.hear(["a", "b", LONG], 20_000) == {LONG}
        first.rollback()
    assert store_runs(pg, a_run(queue="a")) == []
    assert line.hear(["a", "b", LONG], 20_000) == {"a"}


def test_what_is_rolled_back_rings_nobody(pg: Store, line: PostgresLine) -> None:
    """Nor what is undone to a savepoint."""
    with pg.engine.connect() as conn:
        with conn.begin() as whole:
            enqueue_and_ring(pg.joined(conn), [a_run(queue="a")], reach=no_reach, announce=all_of)
            whole.rollback()
        with conn.begin():
            with conn.begin_nested() as part:
                enqueue_and_ring(
                    pg.joined(conn), [a_run(queue="a")], reach=no_reach, announce=all_of
                )
                part.rollback()
            ring(pg.joined(conn), ["b"])

    assert line.hear(["a", "b", LONG], 20_000) == {"b"}


def test_many_runs_ring_each_queue_once(pg: Store, line: PostgresLine) -> None:
    new = [a_run(queue=queue) for queue in ("a", LONG) for _ in range(20)]
    with psycopg.connect(_plain(pg), autocommit=True) as other:
        for queue in ("a", LONG):
            other.execute(f'listen "{channel_of(pg.schema, queue)}"')

        assert store_runs(pg, *new) == []

        seen = [notify.channel for notify in other.notifies(timeout=20, stop_after=2)]
        assert sorted(seen) == sorted(channel_of(pg.schema, queue) for queue in ("a", LONG))
        pg.run(ring, ["a"])
        assert len(list(other.notifies(timeout=20, stop_after=1))) == 1
    heard: set[str] = set()
    while heard != {"a", LONG}:
        came = line.hear(["a", "b", LONG], 20_000)
        assert came
        heard |= set(came)


def test_what_the_lane_does_not_announce_is_left_to_be_sent(pg: Store, line: PostgresLine) -> None:
    new = [a_run(queue="a"), a_run(queue="b")]
    assert store_runs(pg, *new, announce=lambda _queues: {"b"}) == ["a"]
    assert line.hear(["a", "b", LONG], 20_000) == {"b"}


def test_a_run_for_later_rings_nobody(pg: Store, line: PostgresLine) -> None:
    asked: list[Collection[str]] = []

    def announce(queues: Collection[str]) -> Collection[str]:
        asked.append(queues)
        return queues

    later = a_run(queue="a", delay_ms=60_000)
    assert store_runs(pg, later, announce=announce) == []
    assert store_runs(pg, a_run(queue="b"), announce=announce) == []
    # A lane that could send it ahead does so after the commit, as it does any other.
    near = a_run(queue="a", delay_ms=60_000)
    assert store_runs(pg, near, announce=announce, reach=lambda _queue: 900_000) == ["a"]
    assert [set(queues) for queues in asked if queues] == [{"b"}]
    assert line.hear(["a", "b", LONG], 20_000) == {"b"}


def test_a_ring_takes_the_place_of_no_delayed_message(pg: Store, line: PostgresLine) -> None:
    """Of the same queue and transaction: nobody else wakes that run when its time has come."""
    new = [a_run(queue="a"), a_run(queue="a", delay_ms=1)]
    assert store_runs(pg, *new, reach=lambda _queue: 900_000) == ["a"]
    assert line.hear(["a", "b", LONG], 20_000) == {"a"}


def test_a_lane_that_announces_nothing_changes_nothing(store: Store) -> None:
    """On both databases; and on SQLite none is asked."""
    assert store_runs(store, a_run(queue="a"), announce=None) == ["a"]
    expected = ["a"] if store.kind == "sqlite" else []
    assert store_runs(store, a_run(queue="a")) == expected


def test_environments_do_not_hear_each_other(pg: Store, line: PostgresLine) -> None:
    staging = PostgresLine(pg.target, f"{pg.schema}_staging")
    with closing(staging):
        staging.hear(["a"], 0)
        staging.ring(["a"])
        assert staging.hear(["a"], 20_000) == {"a"}
        line.ring(["b"])
        assert line.hear(["a", "b", LONG], 20_000) == {"b"}
        staging.ring(["a"])
        assert staging.hear(["a"], 20_000) == {"a"}


# -- lines ---------------------------------------------------------------------------------------


def test_a_line_hears_what_it_listens_to_and_no_more(pg: Store, line: PostgresLine) -> None:
    assert line.hear(["a", "c"], 0) == {"c"}  # new to it, so something may have been missed
    pg.run(ring, ["b"])
    pg.run(ring, ["c"])
    assert line.hear(["a", "c"], 20_000) == {"c"}
    pg.run(ring, ["a"])
    assert line.hear(["a", "c"], 20_000) == {"a"}
    assert line.hear([], 0) == set()


def test_a_ring_of_its_own_is_heard_too(line: PostgresLine) -> None:
    """Handlers wake other runs of the same worker."""
    line.ring(["a", LONG])
    assert line.hear(["a", "b", LONG], 20_000) == {"a", LONG}


def test_an_interruption_ends_a_wait(line: PostgresLine) -> None:
    heard: list[Collection[str]] = []
    waiting = threading.Thread(target=lambda: heard.append(line.hear(["a", "b", LONG], 3_600_000)))
    waiting.start()
    line.interrupt()
    waiting.join(20)
    assert heard == [set()]


def test_an_interruption_before_a_wait_ends_it(line: PostgresLine) -> None:
    for _ in range(10_000):  # more than a socket holds: none of these may block
        line.interrupt()
    line.ring(["a"])
    line.hear(["a", "b", LONG], 20_000)
    line.interrupt()
    assert line.hear(["a", "b", LONG], 3_600_000) == set()


def test_an_interruption_ends_one_wait_only(pg: Store, line: PostgresLine) -> None:
    """Else who hears would go round and round."""
    line.interrupt()
    assert line.hear(["a", "b", LONG], 3_600_000) == set()
    rings = threading.Thread(target=lambda: pg.run(ring, ["a"]))
    rings.start()
    assert line.hear(["a", "b", LONG], 20_000) == {"a"}
    rings.join()


def test_a_line_that_is_terminated_says_so(pg: Store, line: PostgresLine) -> None:
    with psycopg.connect(_plain(pg), autocommit=True) as other:
        other.execute(_TERMINATE)
    with pytest.raises(StoreUnavailableError, match="cannot be listened to"):
        line.hear(["a", "b", LONG], 20_000)
    with pytest.raises(StoreUnavailableError):
        line.ring(["a"])
    line.close()
    line.close()
    line.interrupt()


def test_a_line_that_is_not_let_in_says_so_without_the_password() -> None:
    target = parse_url("postgresql://somebody:secret@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailableError, match="cannot be listened to") as caught:
        PostgresLine(target, "workhorse")
    assert "secret" not in str(caught.value)


def test_case_11_a_line_that_goes_silent_is_noticed() -> None:
    """Half open: packets are swallowed, and no error says so."""
    with PostgresServer(tcp=True) as server, Proxy(server.port) as proxy:
        through = make_url(server.url()).set(port=proxy.port)
        target = parse_url(through.render_as_string(hide_password=False))
        with closing(PostgresLine(target, "s", check_s=0.05, answer_s=2.0)) as line:
            line.hear(["a"], 0)
            assert line.hear(["a"], 500) == set()  # asked some times, and it answered
            proxy.swallow(True)
            line._answer_s = 0.1
            with pytest.raises(StoreUnavailableError, match="no answer within"):
                line.hear(["a"], 20_000)
        proxy.swallow(False)
        with closing(PostgresLine(target, "s")) as line:
            assert line.hear(["a"], 20_000) == {"a"}


def test_a_busy_line_is_not_asked_whether_it_is_there(pg: Store) -> None:
    """Each ring is an answer; here none is older than the time between two questions."""
    with closing(PostgresLine(pg.target, pg.schema, check_s=3_600)) as line:
        line.hear(["a"], 0)
        asked: list[str] = []
        line._ask = lambda sql, *params: asked.append(sql)  # type: ignore[assignment]
        for _ in range(3):
            pg.run(ring, ["a"])
            assert line.hear(["a"], 20_000) == {"a"}
        assert asked == []


# -- what is between -----------------------------------------------------------------------------


class Between(PostgresLine):
    """A line whose server answers for another session, as through a pooler.

    `keeps` says whether all that it is asked goes to one session; else what listens is another.
    """

    def __init__(self, target: Target, schema: str, *, keeps: bool) -> None:
        super().__init__(target, schema)
        self.keeps = keeps
        self.asked: list[str] = []

    def _ask(self, sql: str, *params: str) -> list[str | None]:
        self.asked.append(sql)
        if sql == "select pg_backend_pid()":
            return ["1"]
        if sql.startswith("listen") and not self.keeps:
            return []
        return super()._ask(sql, *params)


def test_what_keeps_a_session_for_a_line_is_found_to_carry_bells(pg: Store) -> None:
    """Another process answers than that which was connected to, and the bells come all the same."""
    with closing(Between(pg.target, pg.schema, keeps=True)) as line:
        assert line.hear(["a"], 0) == {"a"}
        assert line.hear(["a", "b"], 0) == {"b"}

        assert line.asked.count(f'listen "{_TRIED}"') == 1  # it is asked once a line
        heard = "select string_agg(name, ' ' order by name) from pg_listening_channels() as name"
        channels = sorted(channel_of(pg.schema, queue) for queue in "ab")
        assert line._ask(heard) == [" ".join(channels)]


def test_what_gives_each_statement_another_session_is_refused(
    pg: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "UNHEARD_S", 0.05)
    with (
        closing(Between(pg.target, pg.schema, keeps=False)) as line,
        pytest.raises(StoreUnavailableError, match="no bell is heard: listen_url must be"),
    ):
        line.hear(["a"], 0)


def test_straight_to_the_server_nothing_is_tried(
    pg: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = PostgresLine._ask

    def note(line: PostgresLine, sql: str, *params: str) -> list[str | None]:
        asked.append(sql)
        return ask(line, sql, *params)

    monkeypatch.setattr(PostgresLine, "_ask", note)
    with closing(PostgresLine(pg.target, pg.schema)) as line:
        line.hear(["a"], 0)

    assert asked == ["select pg_backend_pid()", f'listen "{channel_of(pg.schema, "a")}"']


# -- where bells are -----------------------------------------------------------------------------


def test_sqlite_has_no_bells(sqlite_url: str) -> None:
    assert bells_of(Store.open(sqlite_url), None) is None


def test_lines_go_to_their_own_address_where_there_is_one(postgresql_url: str) -> None:
    """Past a pooler, that is; rings go over the store's own connections."""
    store = Store.open(postgresql_url)
    bells = bells_of(store, "postgresql://somebody:secret@127.0.0.1:1/nowhere")
    assert bells is not None
    bells.ring(["a"])
    with pytest.raises(StoreUnavailableError, match="127.0.0.1:1/nowhere"):
        bells.open_line()
    store.close()


@pytest.mark.parametrize(
    "listen_url", ["sqlite:///here.sqlite3", "mysql://host/db", "postgresql+asyncpg://h/d", "no"]
)
def test_an_address_that_cannot_be_listened_to_is_refused(
    postgresql_url: str, listen_url: str
) -> None:
    with pytest.raises(ConfigurationError, match="^listen_url"):
        bells_of(Store.open(postgresql_url), listen_url)


_TERMINATE = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where datname = current_database() and application_name = 'workhorse-listen'"
)


def _plain(store: Store) -> str:
    url = store.target.url.set(drivername="postgresql")
    return url.render_as_string(hide_password=False)
