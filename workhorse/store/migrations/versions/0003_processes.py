"""Processes that say that they are alive; what measuring reads.

Frozen: what `store/base/schema.py` says later is added by later migrations. All of it is additive,
and code of version 2 works with it. The two indexes are built while writers wait.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

INSTANT = sa.DateTime(timezone=True).with_variant(sa.BigInteger(), "sqlite")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# Each row is updated again and again, in columns that are in no index: room for that on its page.
ROOM = "alter table {schema}processes set (fillfactor = 50)"


def _index(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(
        name,
        table,
        columns,
        unique=False,
        schema=op.get_context().version_table_schema,
        postgresql_where=condition,
        sqlite_where=condition,
    )


def upgrade() -> None:
    """Add the table, the mark of a step that goes through time, and two indexes."""
    schema = op.get_context().version_table_schema
    op.create_table(
        "processes",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", NUMBER, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("every_ms", NUMBER, nullable=False),
        sa.Column("stopping", sa.Boolean(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("beat_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.add_column("steps", sa.Column("reached_at", INSTANT), schema=schema)
    _index("live_parked", "live", ["state", "queue"], "state = 'scheduled' or state = 'waiting'")
    _index("outcomes_failed", "outcomes", ["finished_at", "id"], "state = 'failed'")

    prefix = f'"{schema}".' if schema else ""
    if op.get_context().dialect.name == "postgresql":
        op.execute(ROOM.format(schema=prefix))
    op.execute(f"update {prefix}meta set version = 3")  # noqa: S608 - no input
