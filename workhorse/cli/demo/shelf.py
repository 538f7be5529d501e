"""The shop's shelf: a table of its own, in the database in which the runs are.

What is taken from it is written together with the checkpoint that says so: `ctx.transaction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection

STAGE = "pack"
"""The stage in which an order takes an item."""
_ITEMS = 100


def open_shelf(connection: Connection) -> None:
    """Make the table."""
    connection.execute(text("create table shelf (taken_by text not null)"))


def take(connection: Connection, run_id: str) -> int:
    """Take an item for a run; answer how many are left."""
    connection.execute(text("insert into shelf values (:run_id)"), {"run_id": run_id})
    return _ITEMS - int(connection.execute(text("select count(*) from shelf")).scalar_one())


def taken(connection: Connection) -> list[str]:
    """Return the run of each item that was taken."""
    return [str(row[0]) for row in connection.execute(text("select taken_by from shelf"))]
