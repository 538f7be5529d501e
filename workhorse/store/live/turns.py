"""What keeps a ready run from being claimed: a paused queue, and another's turn in its session.

Source: docs/design.md, sections 2 and 8
"""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    FromClause,
    and_,
    exists,
    literal_column,
    not_,
    null,
    or_,
    tuple_,
)

from workhorse.store.base.schema import live, queues


def open_queue(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """Say that a queue is not paused."""
    return not_(exists().where(queues.c.name == queue, queues.c.paused_at.is_not(null())))


def has_turn(row: FromClause) -> ColumnElement[bool]:
    """Say that no unfinished run of the same session is before this one, and none is running.

    One that runs may stand behind: its line was shorter when it was claimed, before a slow
    transaction committed a run with an older time, or before the clock went back.
    """
    earlier, other = live.alias("e"), live.alias("o")
    return or_(
        row.c.session.is_(null()),
        and_(
            not_(
                exists().where(
                    earlier.c.session == row.c.session,
                    tuple_(earlier.c.line_at, earlier.c.id) < tuple_(row.c.line_at, row.c.id),
                )
            ),
            not_(
                exists().where(
                    other.c.session == row.c.session,
                    other.c.state == literal_column("'running'"),
                    other.c.id != row.c.id,
                )
            ),
        ),
    )
