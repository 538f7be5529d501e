"""Databases of one PostgreSQL server, made for a test and dropped after it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections import deque

import psycopg
from psycopg import sql
from sqlalchemy import make_url

_TEST_NAME = re.compile(r"(^|[_-])tests?($|[_-])")

_KEPT = 8


class UnfitDatabaseError(Exception):
    """The database that WORKHORSE_TEST_DATABASE_URL names is not one to run tests on."""


class Databases:
    """Makes databases beside the one that a URL names; safe in threads.

    Args:
        url: A database of the server that may create others; it is only connected to.
        prefix: What the names of new databases begin with.
    """

    def __init__(self, url: str, *, prefix: str = "wh") -> None:
        self._url = make_url(url).set(drivername="postgresql")
        self._prefix = f"{prefix}_{os.getpid()}_"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection | None = None
        self._made: set[str] = set()
        self._discarded: deque[str] = deque()

    def url(self, name: str | None = None) -> str:
        """Return the URL of a database; of the first one without a name."""
        url = self._url if name is None else self._url.set(database=name)
        return url.render_as_string(hide_password=False)

    def create(self, *, template: str | None = None) -> str:
        """Make a database and return its name; a copy of a template that nobody is connected to."""
        name = f"{self._prefix}{next(self._numbers)}"
        # Copying files takes 30 ms where the default, writing all of it to the log, takes 200.
        copied = sql.SQL("template {} strategy file_copy").format(
            sql.Identifier(template or "template0")
        )
        self._execute(sql.SQL("create database {} {}").format(sql.Identifier(name), copied))
        self._made.add(name)
        return name

    def drop(self, name: str) -> None:
        """Drop a database, whoever is connected to it."""
        self._execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )
        self._made.discard(name)

    def discard(self, name: str) -> None:
        """Drop a database in a while: at once, it would wait for sessions that are just ending."""
        self._discarded.append(name)
        if len(self._discarded) > _KEPT:
            self.drop(self._discarded.popleft())

    def close(self) -> None:
        """Drop what was made here and is left, and disconnect."""
        for name in sorted(self._made):
            with contextlib.suppress(psycopg.Error):
                self.drop(name)
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection that makes and drops; the next use opens one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _execute(self, statement: sql.Composed) -> None:
        with self._lock:
            if self._connection is not None:
                try:
                    self._connection.execute(statement)
                    return
                except psycopg.OperationalError:
                    # The server was restarted since; said by this statement, which it never got.
                    if not self._connection.broken:
                        raise
                    self._connection.close()
            self._connection = psycopg.connect(self.url(), autocommit=True)
            self._connection.execute(statement)


def check_fit(url: str) -> None:
    """Make sure that a named database is one that tests may use.

    Raises:
        UnfitDatabaseError: It is not on PostgreSQL 15 or newer, not named like a test, not empty,
            or its role may not create databases beside it. One line says which.
    """
    parsed = make_url(url)
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() != "postgresql":
        raise UnfitDatabaseError(f"{shown} is not a postgresql:// URL")
    if not _TEST_NAME.search(parsed.database or ""):
        raise UnfitDatabaseError(
            f"{shown} is not named like a test: 'test' has to be a word of its name, "
            "as in workhorse_test"
        )
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(plain, connect_timeout=10) as connection:
            version = connection.info.server_version // 10_000
            row = connection.execute(
                """
                select (select count(*) from pg_class c
                          join pg_namespace n on n.oid = c.relnamespace
                         where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'),
                       (select rolcreatedb or rolsuper from pg_roles
                         where rolname = current_user)
                """
            ).fetchone()
    except psycopg.OperationalError as error:
        raise UnfitDatabaseError(f"{shown} does not answer: {str(error).strip()}") from None
    relations, may_create = row or (0, False)
    if version < 15:
        raise UnfitDatabaseError(f"{shown} is PostgreSQL {version}; 15 is the oldest supported")
    if relations:
        raise UnfitDatabaseError(
            f"{shown} is not empty: it holds {relations} tables or indexes. Name an empty database"
        )
    if not may_create:
        raise UnfitDatabaseError(
            f"the role of {shown} may not create databases, which each test does; give it CREATEDB"
        )
