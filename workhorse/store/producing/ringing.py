"""Bells are rung within a transaction: heard when it commits, and never if it does not.

Source: docs/adr/0019-notify-lane.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Final

from sqlalchemy import Select, func, literal_column, select

from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect

_LONGEST_NAME: Final = 63
_LIMIT_EXCEEDED: Final = "54000"


def channel_of(schema: str, queue: str) -> str:
    """Return the channel of a queue's bell; the schema's name holds the environment.

    PostgreSQL takes 63 bytes, and the two names may be longer.
    """
    plain = f"{schema}:{queue}"
    if len(plain) <= _LONGEST_NAME:
        return plain
    # No plain name has this form: neither of its parts may hold the sign.
    return f"workhorse#{hashlib.sha256(plain.encode()).hexdigest()[:40]}"


def ring(tx: Tx, queues: Collection[str]) -> Collection[str]:
    """Ring the bells of queues: heard when the transaction commits, and never if it does not.

    A commit that rings holds up all others that do, while it is flushed. So one transaction at a
    time rings a queue's bell: who finds another at it rings after its own commit instead.

    Returns:
        The queues whose bells this transaction rings.
    """
    named = {channel_of(tx.schema or "", queue): queue for queue in sorted(queues)}
    if not named:
        return ()
    rung = tx.fetch(ring_free, channels=json.dumps(list(named)))
    return frozenset(named[row[0]] for row in rung)


def is_full(error: BaseException) -> bool:
    """Say whether a commit may have failed since the database takes no notification any more.

    That is so where some session has listened, and read nothing, while gigabytes were notified.
    """
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state == _LIMIT_EXCEEDED


def ring_free(d: Dialect) -> Select[tuple[str, None]]:
    """Ring channels, those that no other transaction rings just now; return these."""
    channel = d.each("channels").c.value
    free = func.pg_try_advisory_xact_lock(func.hashtextextended(channel, literal_column("0")))
    return select(channel, func.pg_notify(channel, literal_column("''"))).where(free)
