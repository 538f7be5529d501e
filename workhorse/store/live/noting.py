"""What has come to its end, a run or a token, is noted for whoever waits for it.

The note commits together with that end; `freeing` works it off afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import FromClause, select
from sqlalchemy.sql.expression import Executable

from workhorse.store.base.database import Tx
from workhorse.store.base.dialect import Dialect, upsert
from workhorse.store.base.schema import freed


def note_freed(tx: Tx, sources: Sequence[str]) -> None:
    """Note that these, ids of runs or references of tokens, have come to their end."""
    if sources:
        tx.write(_note, sources=json.dumps(sorted(set(sources))))


def noting(d: Dialect, ended: FromClause) -> Any:
    """Return the statement that notes the column `source` of `ended`, in its order."""
    source = ended.c.source
    # The condition keeps SQLite from reading ON as a join's.
    rows = select(source, d.clock).where(source.is_not(None)).order_by(source)
    insert = upsert(d, freed).from_select(["source", "at"], rows)
    # An update, never nothing: whoever is about to remove the note, having looked for links before
    # the newest was there, is waited for, and the note is written again.
    return insert.on_conflict_do_update(index_elements=["source"], set_={"at": insert.excluded.at})


def _note(d: Dialect) -> Executable:
    each = d.each("sources")
    statement: Executable = noting(d, select(each.c.value.label("source")).subquery("ended"))
    return statement
