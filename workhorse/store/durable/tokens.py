"""Wait tokens: unguessable references that complete waits from outside, of many runs at once.

A token is settled once, by a value or by its time-out. That fact commits first, noted for those who
wait; `freeing` hands it to them afterwards. Live rows are locked before tokens, never behind them.

Source: docs/design.md, sections 2 and 7
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Text, and_, bindparam, case, literal_column, null, select, true, update
from sqlalchemy.sql.expression import Executable

from workhorse.domain.boundaries import DeliveryResult, DeliveryState
from workhorse.domain.ids import RunId
from workhorse.domain.recording import NewToken
from workhorse.errors import TokenNotFoundError
from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.pages import PAGE, Swept
from workhorse.store.base.schema import Id, Number, tokens
from workhorse.store.durable.judging import judge
from workhorse.store.live.noting import note_freed

_COLUMNS = {"ref": Text(), "timeout_ms": Number, "run_id": Id}


@dataclass(frozen=True, slots=True)
class TokenEnd:
    """How a token was settled: by a value, its JSON text, or by its time-out."""

    state: DeliveryState
    value: str | None


def create_token(tx: Tx, ref: str, *, timeout_ms: int | None) -> None:
    """Make a token that belongs to no run; see `create_tokens`."""
    create_tokens(tx, [(NewToken(ref=ref, timeout_ms=timeout_ms), None)])


def create_tokens(tx: Tx, new: Sequence[tuple[NewToken, RunId | None]]) -> None:
    """Make tokens; one that is there already, by an earlier try, stands as it is.

    Args:
        new: Each with the run that makes it. Its reference was drawn by the caller, and nobody can
            guess it; its time-out counts from now, by the database's clock.
    """
    if new:
        batch = [
            {"ref": token.ref, "timeout_ms": token.timeout_ms, "run_id": run_id}
            for token, run_id in new
        ]
        tx.write(_create, batch=json.dumps(batch))


def complete_token(tx: Tx, ref: str, value: str, *, key: str | None) -> DeliveryResult:
    """Settle a token with a value, unless it is settled; the first one stands.

    Once this has committed, a pass (`freeing.free`) hands it to those who wait; maintenance does
    what that leaves. A value that comes after the token's time, but before somebody has recorded
    its time-out, is in time.

    Args:
        value: JSON text.
        key: Makes a repetition known again: the same key and value answer `DUPLICATE`.

    Raises:
        TokenNotFoundError: No token has that reference.
        DeliveryConflictError: Another value was given under the same key before; it stands.
    """
    rows = tx.fetch(_lock, refs=json.dumps([ref]))
    if not rows:
        # The reference is as good as a password: no message repeats it.
        raise TokenNotFoundError(
            "no token has this reference in this store; nothing was completed. Check the "
            "reference, the database and the environment"
        )
    if rows[0].state != "open":
        first = rows[0].state, rows[0].value, rows[0].key
        return judge("the token", *first, value=value, key=key)
    tx.write(_settle, refs=json.dumps([ref]), state=DeliveryState.VALUE, value=value, key=key)
    note_freed(tx, [ref])
    return DeliveryResult.DELIVERED


def expire_tokens(tx: Tx) -> Swept:
    """Settle tokens whose time has come, one page; those who wait for them get it from a pass."""
    refs = [row.ref for row in tx.fetch(_due)]
    _time_out(tx, refs)
    return Swept(len(refs), len(refs) >= PAGE)


def settle_due(tx: Tx, refs: Sequence[str]) -> dict[str, TokenEnd]:
    """Settle those of these tokens whose time has come; return how the settled ones were.

    Args:
        refs: One that is still open, or not there, has no entry in the answer.
    """
    rows = tx.fetch(_lock, refs=json.dumps(list(refs)))
    due = [row.ref for row in rows if row.due]
    _time_out(tx, due)
    ends = {ref: TokenEnd(DeliveryState.TIMED_OUT, None) for ref in due}
    for row in rows:
        if row.state != "open":
            ends[row.ref] = TokenEnd(DeliveryState(row.state), row.value)
    return ends


def token_ends(tx: Tx, refs: Sequence[str]) -> dict[str, TokenEnd]:
    """Return how tokens were settled; one that is open, or not there, has no entry."""
    return {
        row.ref: TokenEnd(DeliveryState(row.state), row.value)
        for row in tx.fetch(_ends, refs=json.dumps(list(refs)))
    }


def _time_out(tx: Tx, refs: Sequence[str]) -> None:
    if refs:
        batch = json.dumps(list(refs))
        tx.write(_settle, refs=batch, state=DeliveryState.TIMED_OUT, value=None, key=None)
        note_freed(tx, refs)


# -- statements ----------------------------------------------------------------------------------


def _create(d: Dialect) -> Executable:
    u = d.rows("batch", _COLUMNS)
    timeout = u.c.timeout_ms
    due_at = case((timeout.is_(null()), null()), else_=d.after(d.clock, timeout))
    # The condition keeps SQLite from reading ON as a join's.
    rows = select(u.c.ref, literal_column("'open'"), u.c.run_id, due_at, d.clock).where(
        u.c.ref.is_not(null())
    )
    statement: Executable = (
        upsert(d, tokens)
        .from_select(["ref", "state", "run_id", "due_at", "created_at"], rows)
        .on_conflict_do_nothing(index_elements=["ref"])
    )
    return statement


def _lock(d: Dialect) -> Executable:
    is_open = tokens.c.state == literal_column("'open'")
    due = case(
        (and_(is_open, tokens.c.due_at.is_not(null()), tokens.c.due_at <= d.clock), true()),
        else_=literal_column("false"),
    )
    return (
        select(tokens.c.ref, tokens.c.state, tokens.c.value, tokens.c.key, due.label("due"))
        .where(d.one_of(tokens.c.ref, "refs"))
        .order_by(tokens.c.ref)
        .with_for_update(key_share=True, of=tokens)
    )


def _ends(d: Dialect) -> Executable:
    return select(tokens.c.ref, tokens.c.state, tokens.c.value).where(
        d.one_of(tokens.c.ref, "refs"), tokens.c.state != literal_column("'open'")
    )


def _due(d: Dialect) -> Executable:
    return (
        select(tokens.c.ref)
        .where(
            tokens.c.state == literal_column("'open'"),
            tokens.c.due_at.is_not(null()),  # said for the index
            tokens.c.due_at <= d.now,
        )
        .order_by(tokens.c.due_at)
        .limit(literal_column(str(PAGE)))
        .with_for_update(key_share=True, of=tokens, skip_locked=True)
    )


def _settle(d: Dialect) -> Executable:
    return (
        update(tokens)
        .where(d.one_of(tokens.c.ref, "refs"))
        .values(
            state=bindparam("state", type_=Text),
            value=bindparam("value", type_=Text),
            key=bindparam("key", type_=Text),
            settled_at=d.clock,
        )
    )
