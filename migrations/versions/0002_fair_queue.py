"""Fair turns by trained tokens: accounts of tenants in the queue, weights, and priorities within a tenant."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the time of a tenant's last claim by an account for each base model."""
    op.create_table(
        "queue_accounts",
        sa.Column("base_model", sa.String(length=96), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("had", sa.Float(precision=53), nullable=False),
        sa.Column("in_line_since", sa.Float(precision=53), nullable=False),
        sa.Column("arrivals", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_queue_accounts_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("base_model", "tenant_id", name=op.f("pk_queue_accounts")),
    )
    line = ["base_model", "state", "had", "in_line_since"]
    op.create_index("ix_queue_accounts_line", "queue_accounts", line, unique=False)
    op.execute(
        "INSERT INTO queue_accounts (base_model, tenant_id, state, had, in_line_since, arrivals)"
        " SELECT base_model, tenant_id, 'in_line', 0, min(created_at), 1 FROM jobs WHERE status = 'queued'"
        " GROUP BY base_model, tenant_id"
    )
    op.add_column("tenants", sa.Column("weight", sa.Float(precision=53), server_default="1", nullable=False))
    op.drop_column("tenants", "last_claimed_at")
    op.add_column("jobs", sa.Column("priority", sa.Integer(), server_default="1", nullable=False))
    op.add_column("jobs", sa.Column("trained_tokens", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index("ix_jobs_queue", "jobs", ["status", "base_model", "tenant_id", "priority", "id"], unique=False)
    op.drop_index("ix_jobs_status_base_model", table_name="jobs")


def downgrade() -> None:
    """Forget accounts, weights and priorities."""
    op.create_index("ix_jobs_status_base_model", "jobs", ["status", "base_model"], unique=False)
    op.drop_index("ix_jobs_queue", table_name="jobs")
    op.drop_column("jobs", "trained_tokens")
    op.drop_column("jobs", "priority")
    op.add_column("tenants", sa.Column("last_claimed_at", sa.Float(precision=53), server_default="0", nullable=False))
    op.drop_column("tenants", "weight")
    op.drop_table("queue_accounts")
