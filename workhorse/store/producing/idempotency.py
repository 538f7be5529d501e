"""Idempotency keys: which run a key belongs to, for thirty days.

Source: docs/design.md, section 8; docs/cases.md, case 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqlalchemy import BigInteger, Text, and_, bindparam, delete, literal_column, select, true
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import Executable

from workhorse.domain.ids import RunId
from workhorse.domain.runs import NewRun
from workhorse.errors import IdempotencyConflictError
from workhorse.store.base.connecting import LOCK_WAIT
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.schema import Id, keys

_MOMENT_MS: Final = 100
_LOCK_NOT_GOT: Final = "55P03"
KEY_LIFE_MS: Final = 30 * 24 * 3600 * 1000

_KEY_COLUMNS = {"task": Text(), "key": Text(), "run_id": Id, "fingerprint": Text()}


class KeysHeldError(Exception):
    """A key's owner has not committed yet and was not waited for; nothing was inserted."""


def owned_by_others(tx: Tx, new: Sequence[NewRun], *, patient: bool) -> dict[RunId, RunId]:
    """Take the keys that are free or expired; return the owner where it is another run."""
    first: dict[tuple[str, str | None], NewRun] = {}
    for run in new:
        if run.key is not None:
            known = first.setdefault((run.task, run.key), run)
            _compare(run, known.id, known.fingerprint)
    if not first:
        return {}
    batch = json.dumps(
        [
            {"task": r.task, "key": r.key, "run_id": r.id, "fingerprint": r.fingerprint}
            for r in first.values()
        ]
    )
    # It locks the keys that have an owner too, so none can be reset before the next statement reads
    # who owns them. (The upsert's own snapshot is older than an owner that it had to wait for.)
    with _waiting_for_owners(tx, patient=patient):
        tx.write(_take_keys, batch=batch, life_ms=KEY_LIFE_MS)
    owners: dict[tuple[str, str | None], RunId] = {}
    for task, key, owner, fingerprint in tx.fetch(_key_owners, batch=batch):
        _compare(first[task, key], str(owner), fingerprint)
        owners[task, key] = RunId(str(owner))
    owned = ((run.id, owners.get((run.task, run.key), run.id)) for run in new)
    return {run_id: owner for run_id, owner in owned if owner != run_id}


def reset_key(tx: Tx, task: str, key: str) -> bool:
    """Free an idempotency key; answer whether it was taken. Its run is not touched."""
    return tx.write(_reset_key, task=task, key=key) > 0


@contextmanager
def _waiting_for_owners(tx: Tx, *, patient: bool) -> Iterator[None]:
    if patient:
        tx.wait_for_locks()
        yield
        return
    if tx.dialect.name == "postgresql":
        tx.conn.exec_driver_sql(f"set local lock_timeout = {_MOMENT_MS}")
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_GOT:
            raise
        raise KeysHeldError from error
    if tx.dialect.name == "postgresql":
        # The moment is for keys alone: another lock keeps runs without keys waiting too.
        tx.conn.exec_driver_sql(f"set local lock_timeout = '{LOCK_WAIT}'")


def _compare(run: NewRun, owner: str, fingerprint: str | None) -> None:
    if run.fingerprint != fingerprint:
        raise IdempotencyConflictError(
            f"task {run.task!r}: the idempotency key {run.key!r} belongs to run {owner}, whose "
            "payload is another; that run stands and nothing was enqueued. Use a key of its own "
            "for the new work"
        )


# -- statements ----------------------------------------------------------------------------------


def _take_keys(d: Dialect) -> Executable:
    u = d.rows("batch", _KEY_COLUMNS)
    expires = d.after(d.clock, bindparam("life_ms", type_=BigInteger))
    insert = upsert(d, keys).from_select(
        ["task", "key", "run_id", "fingerprint", "expires_at"],
        # The condition keeps SQLite from reading ON as a join's.
        select(u.c.task, u.c.key, u.c.run_id, u.c.fingerprint, expires)
        .where(true() if d.one_statement else literal_column("1 = 1"))
        # In one order, so that two bulk enqueues with keys in common cannot deadlock.
        .order_by(u.c.task, u.c.key),
    )
    statement: Executable = insert.on_conflict_do_update(
        index_elements=["task", "key"],
        set_={
            "run_id": insert.excluded.run_id,
            "fingerprint": insert.excluded.fingerprint,
            "expires_at": insert.excluded.expires_at,
        },
        where=keys.c.expires_at <= d.clock,
    )
    return statement


def _key_owners(d: Dialect) -> Executable:
    u = d.rows("batch", _KEY_COLUMNS)
    return select(keys.c.task, keys.c.key, keys.c.run_id, keys.c.fingerprint).join(
        u, and_(keys.c.task == u.c.task, keys.c.key == u.c.key)
    )


def _reset_key(d: Dialect) -> Executable:
    return delete(keys).where(
        keys.c.task == bindparam("task", type_=Text), keys.c.key == bindparam("key", type_=Text)
    )
