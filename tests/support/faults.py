"""Faults that a database itself makes, so that nothing in the program has to pretend."""

from __future__ import annotations

from workhorse.domain.ids import RunId
from workhorse.store.base.database import Store, Tx

_POSTGRESQL = """
create function {schema}.refuse() returns trigger language plpgsql as
$$ begin raise exception 'this row cannot be written'; end $$;
create trigger refuse before update on {schema}.live for each row
  when (new.id = '{run_id}' and new.state = 'running') execute function {schema}.refuse();
"""
_SQLITE = """
create trigger refuse before update on live when new.id = '{run_id}' and new.state = 'running'
begin select raise(abort, 'this row cannot be written'); end
"""


def break_claims_of(store: Store, run_id: RunId) -> None:
    """Let the database refuse each claim that takes a run, whatever else the claim takes."""

    def plant(tx: Tx) -> None:
        text = _POSTGRESQL if store.kind == "postgresql" else _SQLITE
        tx.conn.exec_driver_sql(text.format(schema=store.schema, run_id=run_id))

    store.run(plant)
