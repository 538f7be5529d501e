"""The first schema: runs, their live rows and outcomes, keys, queues, audit, steps.

Frozen: what `store/base/schema.py` says later is added by later migrations.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.Uuid(as_uuid=False).with_variant(sa.String(36), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.BigInteger(), "sqlite")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# Live rows are updated far more often than they are added: room for updates on the same page, and a
# vacuum that comes early and does not dawdle. (As an argument of the table, SQLAlchemy 2.0 does not
# know it.)
HOT = """
alter table {schema}live set (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)
"""

VIEW = """
create view {schema}run_view as
select r.id, r.task, r.queue, coalesce(o.state, l.state) as state, r.payload,
       coalesce(o.attempt, l.attempt) as attempt, coalesce(o.fence, l.fence) as fence,
       r.priority, r.session, r.tags, r.key, r.created_at, l.due_at, l.deadline_at,
       coalesce(o.started_at, l.started_at) as started_at, o.finished_at, l.lease_expires_at,
       coalesce(o.cancel_asked_at, l.cancel_asked_at) as cancel_asked_at, o.reason, o.result,
       o.error_type, o.error_message, o.error_traceback, r.rerun_of
  from {schema}runs r
  left join {schema}live l on l.id = r.id
  left join {schema}outcomes o on o.id = r.id
"""


def upgrade() -> None:
    """Create everything."""
    op.create_table(
        "attempts",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", NUMBER, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error_type", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("error_traceback", sa.Text()),
        sa.Column("ended_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "attempt", name="attempts_pkey"),
    )
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text()),
        sa.Column("answer", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_request", "audit", ["act", "subject", "request_id"], unique=True)
    op.create_index("audit_subject", "audit", ["subject", "at"], unique=False)
    op.create_table(
        "keys",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("task", "key", name="keys_pkey"),
    )
    op.create_table(
        "live",
        sa.Column("id", ID, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rank", sa.SmallInteger(), nullable=False),
        sa.Column("ready_at", INSTANT),
        sa.Column("due_at", INSTANT),
        sa.Column("wake_sent", sa.Boolean(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", NUMBER, nullable=False),
        sa.Column("token", NUMBER),
        sa.Column("lease_expires_at", INSTANT),
        sa.Column("inbox", sa.Integer(), nullable=False),
        sa.Column("hand_backs", sa.Integer(), nullable=False),
        sa.Column("active_ms", NUMBER, nullable=False),
        sa.Column("session", sa.Text()),
        sa.Column("line_at", INSTANT),
        sa.Column("deadline_at", INSTANT),
        sa.Column("cancel_asked_at", INSTANT),
        sa.Column("started_at", INSTANT),
        sa.CheckConstraint("(state = 'ready') = (ready_at is not null)", name="live_ready_at"),
        sa.CheckConstraint("(state = 'running') = (token is not null)", name="live_token"),
        sa.CheckConstraint(
            "case state when 'scheduled' then due_at is not null"
            " when 'waiting' then true else due_at is null end",
            name="live_due_at",
        ),
        sa.CheckConstraint(
            "state in ('scheduled', 'ready', 'running', 'waiting')", name="live_state"
        ),
        sa.CheckConstraint("(session is null) = (line_at is null)", name="live_line_at"),
        sa.CheckConstraint("(token is null) = (lease_expires_at is null)", name="live_lease"),
        sa.CheckConstraint(
            "rank between 0 and 100 and attempt >= 1 and fence >= 0 and inbox >= 0"
            " and hand_backs >= 0 and active_ms >= 0",
            name="live_counts",
        ),
        sa.PrimaryKeyConstraint("id"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "live_cancelled",
        "live",
        ["id"],
        unique=False,
        postgresql_where=sa.text("cancel_asked_at is not null"),
        sqlite_where=sa.text("cancel_asked_at is not null"),
    )
    op.create_index(
        "live_deadline",
        "live",
        ["deadline_at", "id"],
        unique=False,
        postgresql_where=sa.text("deadline_at is not null"),
        sqlite_where=sa.text("deadline_at is not null"),
    )
    op.create_index(
        "live_due",
        "live",
        ["due_at", "id"],
        unique=False,
        postgresql_where=sa.text("due_at is not null"),
        sqlite_where=sa.text("due_at is not null"),
    )
    op.create_index(
        "live_ready",
        "live",
        ["queue", "task", "rank", "ready_at", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'ready'"),
        sqlite_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "live_running",
        "live",
        ["id"],
        unique=False,
        postgresql_where=sa.text("state = 'running'"),
        sqlite_where=sa.text("state = 'running'"),
    )
    op.create_index(
        "live_session",
        "live",
        ["session", "line_at", "id"],
        unique=False,
        postgresql_where=sa.text("session is not null"),
        sqlite_where=sa.text("session is not null"),
    )
    op.create_index(
        "live_turn",
        "live",
        ["session"],
        unique=True,
        postgresql_where=sa.text("state = 'running' and session is not null"),
        sqlite_where=sa.text("state = 'running' and session is not null"),
    )
    op.create_index(
        "live_unsent",
        "live",
        ["due_at", "id"],
        unique=False,
        postgresql_where=sa.text("due_at is not null and not wake_sent"),
        sqlite_where=sa.text("due_at is not null and not wake_sent"),
    )
    op.create_table(
        "meta",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("serves_from", sa.Integer(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name="meta_one_row"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "outcomes",
        sa.Column("id", ID, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", NUMBER, nullable=False),
        sa.Column("token", NUMBER),
        sa.Column("result", sa.Text()),
        sa.Column("error_type", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("error_traceback", sa.Text()),
        sa.Column("cancel_asked_at", INSTANT),
        sa.Column("started_at", INSTANT),
        sa.Column("finished_at", INSTANT, nullable=False),
        sa.CheckConstraint("(state = 'succeeded') = (reason is null)", name="outcomes_reason"),
        sa.CheckConstraint("state <> 'succeeded' or result is not null", name="outcomes_result"),
        sa.CheckConstraint("state in ('succeeded', 'failed', 'cancelled')", name="outcomes_state"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("paused_at", INSTANT),
        sa.Column("paused_by", sa.Text()),
        sa.Column("paused_why", sa.Text()),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("session", sa.Text()),
        sa.Column("tags", sa.Text()),
        sa.Column("retry", sa.Text()),
        sa.Column("timeout_ms", NUMBER),
        sa.Column("traceparent", sa.Text()),
        sa.Column("rerun_of", ID),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "steps",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("next_at", INSTANT, nullable=False),
        sa.Column("last_at", INSTANT),
        sa.Column("last_count", NUMBER),
        sa.PrimaryKeyConstraint("name"),
    )

    schema = op.get_context().version_table_schema
    prefix = f'"{schema}".' if schema else ""
    if op.get_context().dialect.name == "postgresql":
        op.execute(HOT.format(schema=prefix))
    op.execute(VIEW.format(schema=prefix))
    op.bulk_insert(
        sa.table(
            "meta",
            sa.column("id"),
            sa.column("version"),
            sa.column("serves_from"),
            sa.column("environment"),
            schema=schema,
        ),
        [{"id": 1, "version": 1, "serves_from": 1, "environment": ""}],
    )
