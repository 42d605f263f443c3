"""Jobs that their tenant wants paused."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the wish."""
    op.add_column("jobs", sa.Column("pause_requested", sa.Boolean(), server_default="0", nullable=False))


def downgrade() -> None:
    """Queue what is paused: nobody could resume it."""
    op.execute("UPDATE jobs SET status = 'queued' WHERE status = 'paused'")
    op.drop_column("jobs", "pause_requested")
