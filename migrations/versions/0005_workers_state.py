"""What workers tell of themselves, and keys that may read it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COUNTS = ["training_slots", "training_slots_free", "serving_places", "serving_places_free", "open_requests"]


def upgrade() -> None:
    """Add the columns; a worker fills its own with its next heartbeat."""
    op.add_column("workers", sa.Column("role", sa.String(length=16), server_default="serve_and_train", nullable=False))
    for name in COUNTS:
        op.add_column("workers", sa.Column(name, sa.Integer(), server_default="0", nullable=False))
    op.add_column("workers", sa.Column("adapters", sa.JSON(), server_default="[]", nullable=False))
    op.add_column("api_keys", sa.Column("admin", sa.Boolean(), server_default="0", nullable=False))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("api_keys", "admin")
    for name in ["adapters", *reversed(COUNTS), "role"]:
        op.drop_column("workers", name)
