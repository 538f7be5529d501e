"""Which errors pass when a transaction is repeated, where user code takes part in it.

Source: docs/adr/0014-a-handlers-own-transaction.md
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from workhorse.errors import TransactionMisuseError, TransactionTimeoutError
from workhorse.store.base.dialect import Dialect


def passes_for_store(dialect: Dialect, error: BaseException) -> BaseException | None:
    """Return the cause of an error of the store's own statements if it passes, None for others."""
    if isinstance(error, PoolTimeoutError):
        return error
    cause = cause_of(error)
    return cause if dialect.is_transient(cause) or dialect.is_lost(cause) else None


def passes_for_operation(dialect: Dialect, error: BaseException) -> BaseException | None:
    """Return the cause of an error of user code if it passes: a conflict, a lost connection.

    A repository's error may stand around the driver's; its whole transaction is dead all the same.
    """
    if isinstance(error, (TransactionMisuseError, TransactionTimeoutError)):
        return None
    for each in _chain(error):
        cause = cause_of(each)
        if _is_conflict(cause) or dialect.is_lost(cause):
            return cause
    return None


def cause_of(error: BaseException) -> BaseException:
    """Return the driver's error, where SQLAlchemy's stands around it."""
    return (isinstance(error, DBAPIError) and error.orig) or error


def _is_conflict(cause: BaseException) -> bool:
    """Say whether two transactions met. A lock that the operation would not wait for is its own."""
    if isinstance(cause, psycopg.Error):
        return cause.sqlstate in {"40001", "40P01"}
    if isinstance(cause, sqlite3.OperationalError):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
