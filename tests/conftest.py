"""Fixtures that all tests share: databases that are migrated and empty, clocks, processes."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import behind_pooler, emulator_differences, emulators
from tests.support.databases import Databases, UnfitDatabaseError, check_fit
from tests.support.folders import quick_root
from tests.support.guardian import guardian
from tests.support.installations import CHOICE, NoServerError, choose
from tests.support.left_out import LeftOut
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from workhorse.store.base.database import ManualClock, Store
from workhorse.store.base.migrating import migrate

# A machine that is busy is no failure, and a check that others wait for must not fail by luck.
hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

NAMED = "WORKHORSE_TEST_DATABASE_URL"
OFF = "off"
POOLER = "WORKHORSE_TEST_POOLER"
"""`refusing` or `ignoring` a session's options: the tests' databases are behind a pooler then."""
LONG = (
    "tests/flow/",
    "tests/durable/test_model.py",
    "tests/durable/test_fan_in.py",
    "tests/lanes/test_sqs_fitting_in.py",
    "tests/test_local.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Take out of the environment what would lead the tests to somebody's real systems."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell has started the tests in the background; their children would ignore it, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "emulators: it runs against emulators of AWS")
    config.pluginmanager.register(_left_out)
    for name in list(os.environ):
        kept = (NAMED, CHOICE, POOLER, emulators.CHOICE)
        settings = name.startswith("WORKHORSE_") and name not in kept
        if settings or name.startswith(("AWS_", "ECS_", "PG")):
            del os.environ[name]
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",  # not a secret: no endpoint checks it
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run against emulators, and those that are known to differ there.

    Modules whose few tests take long come first: begun last, they would keep one process alone.
    """
    emulators.mark(items)
    emulator_differences.expect(items)
    if os.environ.get(POOLER):
        behind_pooler.leave_out(items)
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_report_header() -> list[str]:
    """Say which databases the tests run on."""
    if os.environ.get(NAMED):
        postgres = f"the PostgreSQL that {NAMED} names"
    elif os.environ.get(CHOICE) == OFF:
        postgres = "no PostgreSQL"
    else:
        try:
            postgres = str(choose())
        except NoServerError:
            postgres = "no PostgreSQL found"
    python = ".".join(map(str, sys.version_info[:3]))
    return [f"databases: SQLite {sqlite3.sqlite_version} and {postgres}; Python {python}"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the runs of a test on emulators that were not chosen; they have no reports."""
    if report.when == "setup" and emulators.MARKER in report.keywords:
        _left_out.add(emulators.LEFT_OUT, emulators.others_left_out(report.nodeid))


_left_out = LeftOut(Path(__file__).parents[1] / "Makefile")


# -- clocks --------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `store`; it stands still until the test moves it."""
    return ManualClock()


# -- databases -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """A PostgreSQL server's databases: the named server's, else those of one that is started."""
    named = os.environ.get(NAMED)
    if named:
        try:
            check_fit(named)
        except UnfitDatabaseError as error:
            pytest.exit(f"{NAMED}: {error}", returncode=2)
        databases = Databases(named)
        yield databases
        databases.close()
        return
    if os.environ.get(CHOICE) == OFF:
        pytest.skip(f"PostgreSQL is left out by {CHOICE}=off; run them without that setting")
    try:
        server = PostgresServer()
    except NoServerError as error:
        pytest.exit(f"{error}; or leave PostgreSQL out by {CHOICE}=off", returncode=2)
    with server:
        yield server.databases


@pytest.fixture(scope="session")
def migrated_postgresql(postgres: Databases) -> str:
    """The name of a database to copy: migrated once, empty, and never connected to again."""
    name = postgres.create()
    _migrate(postgres.url(name))
    return name


@pytest.fixture(scope="session")
def quick_folder() -> Iterator[Path]:
    """A folder in memory, where there is enough; it goes with the tests."""
    folder = Path(tempfile.mkdtemp(prefix="wh-tests-", dir=quick_root()))
    guardian().watch_folder(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    guardian().release_folder(folder)


@pytest.fixture(scope="session")
def migrated_sqlite(quick_folder: Path) -> Path:
    """A file to copy: migrated once, and empty."""
    path = quick_folder / "template.sqlite3"
    _migrate(f"sqlite:///{path}")
    return path


def _migrate(url: str) -> None:
    store = Store.open(url)
    try:
        migrate(store)
    finally:
        store.close()


@pytest.fixture(scope="session")
def reached(postgres: Databases) -> Iterator[Callable[[str], str]]:
    """Returns the URL of a database: the server's, or that of a pooler before it."""
    how = os.environ.get(POOLER, "")
    if not how:
        yield postgres.url
        return
    with PgBouncer(postgres.url(), ignores_options=how == "ignoring") as pooler:
        yield pooler.url


@pytest.fixture
def empty_postgresql_url(postgres: Databases, reached: Callable[[str], str]) -> Iterator[str]:
    """A PostgreSQL database of this test's own, with nothing in it."""
    name = postgres.create()
    yield reached(name)
    postgres.discard(name)


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """An SQLite database of this test's own that does not exist yet."""
    return f"sqlite:///{tmp_path / 'empty.sqlite3'}"


@pytest.fixture
def postgresql_url(
    postgres: Databases, migrated_postgresql: str, reached: Callable[[str], str]
) -> Iterator[str]:
    """A migrated, empty PostgreSQL database of this test's own."""
    name = postgres.create(template=migrated_postgresql)
    yield reached(name)
    postgres.discard(name)


@pytest.fixture
def sqlite_url(migrated_sqlite: Path) -> Iterator[str]:
    """A migrated, empty SQLite database of this test's own."""
    folder = Path(tempfile.mkdtemp(dir=migrated_sqlite.parent))
    shutil.copyfile(migrated_sqlite, folder / "workhorse.sqlite3")
    yield f"sqlite:///{folder / 'workhorse.sqlite3'}"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty database of this test's own, on SQLite and then on PostgreSQL."""
    # Asked for by name, so that a run of the SQLite half starts no server.
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """As `database_url`, but not migrated."""
    url: str = request.getfixturevalue(f"empty_{request.param}_url")
    return url


@pytest.fixture
def store(database_url: str, clock: ManualClock) -> Iterator[Store]:
    """A store whose time is `clock`'s, on SQLite and then on PostgreSQL."""
    store = Store.open(database_url, clock=clock)
    yield store
    store.close()


@pytest.fixture
def real_clock_store(database_url: str) -> Iterator[Store]:
    """A store whose time is the database's own, on SQLite and then on PostgreSQL."""
    store = Store.open(database_url)
    yield store
    store.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that this test may stop, kill and restart; it takes a second to make."""
    if os.environ.get(CHOICE) == OFF:
        pytest.skip(f"PostgreSQL is left out by {CHOICE}=off; run them without that setting")
    with PostgresServer() as server:
        yield server


# -- processes -----------------------------------------------------------------------------------


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts real processes; those that are left are killed when the test ends."""
    started = Processes()
    yield started
    started.close()
