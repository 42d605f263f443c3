"""Limits of tenants: jobs that run and wait, tokens a day, and the count of each day's tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the limits, none of them set."""
    op.create_table(
        "daily_tokens",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_daily_tokens_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", "day", name=op.f("pk_daily_tokens")),
    )
    op.add_column("tenants", sa.Column("max_running_jobs", sa.Integer(), nullable=True))
    op.add_column("tenants", sa.Column("max_queued_jobs", sa.Integer(), nullable=True))
    op.add_column("tenants", sa.Column("tokens_per_day", sa.BigInteger(), nullable=True))
    op.add_column("queue_accounts", sa.Column("held_until", sa.Float(precision=53), server_default="0", nullable=False))
    op.drop_index("ix_jobs_queue", table_name="jobs")
    op.create_index("ix_jobs_queue", "jobs", ["tenant_id", "status", "base_model", "priority", "id"], unique=False)
    op.create_index("ix_jobs_status_base_model_tenant_id", "jobs", ["status", "base_model", "tenant_id"], unique=False)


def downgrade() -> None:
    """Forget the limits."""
    op.drop_index("ix_jobs_status_base_model_tenant_id", table_name="jobs")
    op.drop_index("ix_jobs_queue", table_name="jobs")
    op.create_index("ix_jobs_queue", "jobs", ["status", "base_model", "tenant_id", "priority", "id"], unique=False)
    op.execute("UPDATE queue_accounts SET state = 'in_line' WHERE state = 'held'")
    op.drop_column("queue_accounts", "held_until")
    op.drop_column("tenants", "tokens_per_day")
    op.drop_column("tenants", "max_queued_jobs")
    op.drop_column("tenants", "max_running_jobs")
    op.drop_table("daily_tokens")
