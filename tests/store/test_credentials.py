"""A database whose password is in a secret, and changes while processes run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from sqlalchemy import make_url, text

from tests.support.postgres import PostgresServer
from workhorse.errors import ConfigurationError, StoreUnavailableError
from workhorse.store.base.credentials import REREAD_S, Credentials, Login
from workhorse.store.base.database import Store, Tx, _leave_to_the_parent
from workhorse.store.fleet.notifying import bells_of


@dataclass
class Secret:
    """A secret, who has read it how often, and a clock."""

    value: str = ""
    failure: Exception | None = None
    reads: int = 0
    now: float = 1000.0

    def set(self, user: str, password: str) -> None:
        self.value = json.dumps({"username": user, "password": password, "engine": "postgres"})

    def read(self) -> str:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return self.value

    def credentials(self) -> Credentials:
        return Credentials(self.read, "the secret db", clock=lambda: self.now)


@dataclass
class Guarded:
    """A server that asks one of its users for a password."""

    server: PostgresServer
    secret: Secret = field(default_factory=Secret)
    url: str = ""

    def rotate(self, password: str, *, user: str = "rotating", told: bool = True) -> None:
        """Change the password at the server, and in the secret where `told`."""
        with psycopg.connect(self.server.url(), autocommit=True) as conn:
            conn.execute(f"alter role {user} password '{password}'")
        if told:
            self.secret.set(user, password)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"local all rotating,other scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(server.url(), autocommit=True) as conn:
            conn.execute("create role rotating login password 'first'")
            conn.execute("create role other login password 'second'")
            conn.execute("select pg_reload_conf()")
        yield server


@pytest.fixture
def guarded(server: PostgresServer) -> Guarded:
    it = Guarded(server, url=f"postgresql:///postgres?host={server.folder}")
    it.rotate("first")
    return it


def test_a_store_logs_in_with_what_the_secret_holds(guarded: Guarded) -> None:
    store = opened(guarded)

    assert store.read(who) == "rotating"
    assert "first" not in repr(store.target)
    assert guarded.secret.reads == 1
    store.close()


def test_a_rotation_needs_no_restart(guarded: Guarded) -> None:
    """Connections that are open go on; the next one is refused, and the secret is read again."""
    store = opened(guarded)
    store.read(who)
    guarded.rotate("changed")
    guarded.secret.now += REREAD_S

    assert store.read(who) == "rotating"
    assert guarded.secret.reads == 1
    store.close()  # the next connection is a new one

    assert store.read(who) == "rotating"
    assert guarded.secret.reads == 2
    store.close()


def test_a_rotation_may_change_the_user(guarded: Guarded) -> None:
    store = opened(guarded)
    store.read(who)
    store.close()
    guarded.rotate("elsewhere", told=False)
    guarded.rotate("new", user="other")
    guarded.secret.now += REREAD_S

    assert store.read(who) == "other"
    store.close()


def test_a_password_that_is_not_in_the_secret_yet_is_waited_for(guarded: Guarded) -> None:
    """A rotation changes the database first; for a moment the secret holds the old one."""
    store = opened(guarded)
    store.read(who)
    store.close()
    guarded.rotate("soon", told=False)
    guarded.secret.now += REREAD_S

    with pytest.raises(StoreUnavailableError, match="password authentication failed"):
        store.try_once(who)
    guarded.secret.set("rotating", "soon")
    guarded.secret.now += REREAD_S

    assert store.try_once(who) == "rotating"
    store.close()


def test_a_database_that_is_down_does_not_ask_for_the_secret_each_time(
    guarded: Guarded,
) -> None:
    store = Store.open(
        "postgresql:///postgres?host=/nowhere", credentials=guarded.secret.credentials()
    )
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            store.try_once(who)
    assert guarded.secret.reads == 1
    guarded.secret.now += REREAD_S
    with pytest.raises(StoreUnavailableError):
        store.try_once(who)
    assert guarded.secret.reads == 2


def test_a_secret_that_cannot_be_read_is_a_database_that_does_not_answer(guarded: Guarded) -> None:
    guarded.secret.failure = RuntimeError("AccessDenied\nmore")
    store = opened(guarded)

    with pytest.raises(StoreUnavailableError) as told:
        store.try_once(who)
    assert "the secret db cannot be read: RuntimeError: AccessDenied; it is tried again" in str(
        told.value
    )
    guarded.secret.failure = None

    assert store.try_once(who) == "rotating"
    store.close()


@pytest.mark.parametrize(
    "value",
    [
        "hunter2",
        "[]",
        '"hunter2"',
        '{"password": "hunter2"}',
        '{"username": 1, "password": "hunter2"}',
        '{"username": "a\\u0000b", "password": "hunter2"}',
        '{"username": "\\ud800", "password": "hunter2"}',
        "[" * 200_000,
    ],
    ids=["text", "list", "JSON text", "no user", "a number", "NUL", "half a pair", "nested"],
)
def test_a_secret_of_another_form_is_said_and_not_shown(guarded: Guarded, value: str) -> None:
    guarded.secret.value = value
    store = opened(guarded)

    with pytest.raises(StoreUnavailableError, match="no JSON object with the texts") as told:
        store.try_once(who)
    assert "hunter2" not in str(told.value)


def test_a_line_of_the_lane_notify_logs_in_the_same_way(guarded: Guarded) -> None:
    store = opened(guarded)
    for listen_url in (None, guarded.url):
        bells = bells_of(store, listen_url)
        assert bells is not None
        line = bells.open_line()
        line.ring(["default"])
        line.close()
    assert guarded.secret.reads == 1
    store.close()


def test_a_line_that_has_a_user_of_its_own_asks_for_no_secret(guarded: Guarded) -> None:
    store = opened(guarded)
    own = make_url(guarded.server.url())
    assert own.username

    bells = bells_of(store, own.render_as_string(hide_password=False))

    assert bells is not None
    bells.open_line().close()
    assert guarded.secret.reads == 0
    store.close()


def test_another_login_by_another_thread_is_taken_without_another_look() -> None:
    secret = Secret()
    secret.set("u", "old")
    credentials = secret.credentials()
    seen: list[str] = []

    def connect(login: Login) -> str:
        seen.append(login.password)
        if login.password == "old":  # noqa: S105
            secret.set("u", "new")
            secret.now += REREAD_S
            if len(seen) == 1:
                assert credentials.connect(connect) == "connected"  # somebody else, meanwhile
            raise psycopg.OperationalError
        return "connected"

    assert credentials.connect(connect) == "connected"
    assert seen == ["old", "old", "new", "new"]
    assert secret.reads == 2


def test_a_child_of_a_fork_does_not_wait_for_a_lock_of_its_parent(guarded: Guarded) -> None:
    store = opened(guarded)
    credentials = store.target.credentials
    assert credentials is not None
    with credentials._lock:  # by another thread of the parent, which the child does not have
        _leave_to_the_parent()

        assert store.read(who) == "rotating"
    store.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me@db/app", "holds a user or password"),
        ("postgresql://me:hunter2@db/app", "holds a user or password"),
        ("postgresql://:hunter2@db/app", "holds a user or password"),
        ("sqlite:///a.sqlite3", "is for PostgreSQL"),
    ],
)
def test_a_url_has_no_credentials_beside_a_secret(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        Store.open(url, credentials=Secret().credentials())
    assert "hunter2" not in str(refused.value)


def opened(guarded: Guarded) -> Store:
    return Store.open(guarded.url, credentials=guarded.secret.credentials())


def who(tx: Tx) -> str:
    return str(tx.conn.execute(text("select current_user")).scalar_one())
