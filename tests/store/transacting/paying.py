"""An operation that pays, what stands of it and its checkpoint, and answers that are lost."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from tests.store.acting import a_claimed, lease_of, rows
from workhorse.domain.boundaries import BoundaryKind, NewBoundary
from workhorse.domain.recording import Record, RecordAnswer
from workhorse.domain.runs import Lease
from workhorse.store.base.database import Store
from workhorse.store.durable import transacting
from workhorse.store.durable.transacting import transact

Operation = Callable[[Connection], str]

LOST = {"postgresql": psycopg.OperationalError, "sqlite": sqlite3.OperationalError}
"""How a driver says that its connection is gone, or was never made."""


def make_tables(store: Store) -> None:
    with store.engine.begin() as conn:
        conn.execute(text("create table accounts (id integer primary key, amount integer)"))
        conn.execute(text("create table pairs (id integer primary key, amount integer)"))


def lease(store: Store) -> Lease:
    return lease_of(a_claimed(store))


def a_record(lease: Lease, name: str = "pay", seq: int = 1) -> Record:
    return Record(
        lease=lease, boundary=NewBoundary(name=name, kind=BoundaryKind.CHECKPOINT, seq=seq)
    )


def carry_out(own: Store, lease: Lease, operation: Operation, **how: Any) -> RecordAnswer:
    return transact(own, a_record(lease), operation, **{"may_start": lambda: None, **how})


def pay(conn: Connection) -> str:
    conn.execute(text("insert into accounts values (1, 100)"))
    return '{"paid":100}'


def paid(store: Store) -> int:
    return int(rows(store, "select count(*) from accounts")[0][0])


def stored(store: Store, lease: Lease) -> list[str]:
    found = rows(store, "select value from {s}boundaries where run_id = :id", id=lease.run_id)
    return [row.value for row in found]


def check_nothing(store: Store, lease: Lease) -> None:
    assert (paid(store), stored(store, lease)) == (0, [])


def check_both(store: Store, lease: Lease) -> None:
    assert (paid(store), stored(store, lease)) == (1, ['{"paid":100}'])


def lose_the_answer(own: Store, *, after: bool, times: int = 1) -> list[str]:
    """Break connections at their next COMMIT, before it or after it has happened."""
    left = [times]
    noted: list[str] = []
    do_commit = own.engine.dialect.do_commit

    def commit(raw: Any) -> None:
        if left[0] == 0:
            do_commit(raw)
            return
        left[0] -= 1
        noted.append("lost")
        if after:
            do_commit(raw)
        raise LOST[own.kind]("disk I/O error: the connection is lost")

    own.engine.dialect.do_commit = commit  # type: ignore[method-assign,assignment]
    return noted


def refuse_connections(own: Store, monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Let nobody answer who connects anew, that many times; nothing rests between."""
    noted: list[str] = []
    connect = own.engine.dialect.connect

    def refuse(*arguments: Any, **named: Any) -> Any:
        if len(noted) < times:
            noted.append("refused")
            raise LOST[own.kind]("unable to open: nobody answers")
        return connect(*arguments, **named)

    monkeypatch.setattr(own.engine.dialect, "connect", refuse)
    monkeypatch.setattr(transacting, "_rests", lambda: itertools.repeat(0.0))
    return noted
