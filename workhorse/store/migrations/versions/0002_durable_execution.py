"""Durable execution: boundaries and deliveries, tokens, who waits for whom.

Frozen: what `store/base/schema.py` says later is added by later migrations. All of it is additive,
yet code of version 1 is no longer served: it would end a child without noting it for its parent.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.Uuid(as_uuid=False).with_variant(sa.String(36), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.BigInteger(), "sqlite")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

VIEW = """
create view {schema}run_view as
select r.id, r.task, r.queue, coalesce(o.state, l.state) as state, r.payload,
       coalesce(o.attempt, l.attempt) as attempt, coalesce(o.fence, l.fence) as fence,
       r.priority, r.session, r.tags, r.key, r.created_at, l.due_at, l.deadline_at,
       coalesce(o.started_at, l.started_at) as started_at, o.finished_at, l.lease_expires_at,
       coalesce(o.cancel_asked_at, l.cancel_asked_at) as cancel_asked_at, o.reason, o.result,
       o.error_type, o.error_message, o.error_traceback, r.rerun_of, r.parent_id,
       p.value as progress
  from {schema}runs r
  left join {schema}live l on l.id = r.id
  left join {schema}outcomes o on o.id = r.id
  left join {schema}progress p on p.run_id = r.id
"""


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
    """Add the tables, and what runs and live rows say of each other."""
    schema = op.get_context().version_table_schema
    op.add_column("runs", sa.Column("parent_id", ID), schema=schema)
    op.add_column("runs", sa.Column("keep", sa.Boolean()), schema=schema)
    op.add_column("runs", sa.Column("on_failure", sa.Text()), schema=schema)
    _index("runs_parent", "runs", ["parent_id", "id"], "parent_id is not null")
    op.add_column(
        "live",
        sa.Column("watched", sa.Boolean(), nullable=False, server_default=sa.false()),
        schema=schema,
    )
    op.add_column(
        "live",
        sa.Column("blockers", sa.Integer(), nullable=False, server_default=sa.text("0")),
        schema=schema,
    )
    op.create_table(
        "boundaries",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("value", sa.Text()),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("detail", sa.Text()),
        sa.Column("wake_at", INSTANT),
        sa.Column("absolute", sa.Boolean(), nullable=False),
        sa.Column("fence", NUMBER, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name", name="boundaries_pkey"),
    )
    _index("boundaries_wake", "boundaries", ["run_id", "wake_at"], "wake_at is not null")
    op.create_table(
        "deliveries",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("inbox", sa.Integer(), nullable=False),
        sa.Column("value", sa.Text()),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("by", sa.Text()),
        sa.Column("why", sa.Text()),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "kind", "name", name="deliveries_pkey"),
        sa.CheckConstraint(
            "state in ('value', 'timed_out', 'closed', 'failed', 'cancelled')",
            name="deliveries_state",
        ),
    )
    op.create_table(
        "progress",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("fence", NUMBER, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_table(
        "tokens",
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("value", sa.Text()),
        sa.Column("key", sa.Text()),
        sa.Column("run_id", ID),
        sa.Column("due_at", INSTANT),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("settled_at", INSTANT),
        sa.CheckConstraint("state in ('open', 'value', 'timed_out')", name="tokens_state"),
        sa.CheckConstraint("(state = 'open') = (settled_at is null)", name="tokens_settled"),
        sa.PrimaryKeyConstraint("ref"),
    )
    _index("tokens_due", "tokens", ["due_at", "ref"], "state = 'open' and due_at is not null")
    op.create_table(
        "links",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("armed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("source", "run_id", "name", name="links_pkey"),
    )
    _index("links_unarmed", "links", ["source"], "not armed")
    op.create_table(
        "freed",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("source"),
    )
    op.create_index("freed_at", "freed", ["at", "source"], unique=False, schema=schema)

    prefix = f'"{schema}".' if schema else ""
    op.execute(f"drop view {prefix}run_view")
    op.execute(VIEW.format(schema=prefix))
    op.execute(f"update {prefix}meta set version = 2, serves_from = 2")  # noqa: S608 - no input
