"""Throw-away databases, and which databases are refused."""

import psycopg
import pytest

from tests.support.databases import Databases, UnfitDatabaseError, check_fit
from tests.support.installations import Installation, NoServerError, choose
from tests.support.postgres import PostgresServer


def test_a_copy_holds_what_its_template_holds_and_is_apart(postgres: Databases) -> None:
    template = postgres.create()
    with psycopg.connect(postgres.url(template)) as connection:
        connection.execute("create table facts (fact text)")
    copy = postgres.create(template=template)

    with psycopg.connect(postgres.url(copy)) as connection:
        connection.execute("insert into facts values ('new')")

    with psycopg.connect(postgres.url(template)) as connection:
        assert connection.execute("select * from facts").fetchall() == []
    postgres.drop(copy)
    postgres.drop(template)


def test_a_database_in_use_is_dropped(postgres: Databases) -> None:
    name = postgres.create()
    with psycopg.connect(postgres.url(name)):
        postgres.drop(name)

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(postgres.url(name))


def test_a_killed_server_keeps_what_it_confirmed(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        connection.execute("create table facts (fact int)")
        connection.execute("insert into facts values (1)")
        own_postgres.kill()

    own_postgres.start()

    with psycopg.connect(own_postgres.url()) as connection:
        assert connection.execute("select fact from facts").fetchall() == [(1,)]
    assert own_postgres.databases.create()


def test_a_server_can_listen_on_a_port_of_the_loopback_address() -> None:
    with PostgresServer(tcp=True) as server, psycopg.connect(server.url()) as connection:
        assert connection.info.host == "127.0.0.1"


def test_a_database_that_is_not_named_like_a_test_is_refused() -> None:
    for name in ("production", "contest", "latest_orders", ""):
        with pytest.raises(UnfitDatabaseError, match="not named like a test"):
            check_fit(f"postgresql://somebody:secret@127.0.0.1:1/{name}")


def test_a_refusal_shows_no_password() -> None:
    with pytest.raises(UnfitDatabaseError) as refusal:
        check_fit("postgresql://somebody:secret@127.0.0.1:1/production")

    assert "secret" not in str(refusal.value)


def test_another_kind_of_database_is_refused() -> None:
    with pytest.raises(UnfitDatabaseError, match="not a postgresql:// URL"):
        check_fit("sqlite:///test.sqlite3")


def test_a_server_that_does_not_answer_is_said_so() -> None:
    with pytest.raises(UnfitDatabaseError, match="does not answer"):
        check_fit("postgresql://somebody@127.0.0.1:1/test")


def test_a_database_with_tables_is_refused_and_an_empty_one_is_taken(
    own_postgres: PostgresServer,
) -> None:
    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        connection.execute("create database workhorse_test")
    url = own_postgres.url("workhorse_test")

    check_fit(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema theirs")
        connection.execute("create table theirs.orders (id int)")

    with pytest.raises(UnfitDatabaseError, match="not empty: it holds 1 tables"):
        check_fit(url)


def test_a_role_that_may_create_no_database_is_refused(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        connection.execute("create role bound login")
        connection.execute("create database test")

    with pytest.raises(UnfitDatabaseError, match="give it CREATEDB"):
        check_fit(own_postgres.url("test").replace("postgres@", "bound@"))


def test_an_installation_can_be_asked_for_by_its_kind() -> None:
    assert choose("wheel").source == "wheel"


def test_a_folder_without_a_server_is_refused() -> None:
    with pytest.raises(NoServerError, match="asks for was found"):
        choose("/nowhere/bin")


def test_an_installation_knows_its_major_version() -> None:
    installation = choose("wheel")

    assert installation.major >= 15
    assert Installation(installation.bin, "system", "9.6.24").major == 9
