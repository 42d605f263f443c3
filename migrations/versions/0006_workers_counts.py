"""What the caches of workers have done."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; a worker fills its own with its next heartbeat."""
    op.add_column("workers", sa.Column("counts", sa.JSON(), server_default="{}", nullable=False))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("workers", "counts")
