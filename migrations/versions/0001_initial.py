"""The first schema: tenants, files and blobs, adapters, jobs, base models and workers."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

CLOCK = {
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
TABLES_BY_DEPENDENCE = [
    "job_snapshots",
    "job_events",
    "job_checkpoints",
    "idempotency_keys",
    "jobs",
    "files",
    "blob_chunks",
    "adapter_versions",
    "workers",
    "blobs",
    "api_keys",
    "adapters",
    "tenants",
    "base_models",
]


def upgrade() -> None:
    """Create every table."""
    now = sa.text(CLOCK[op.get_bind().dialect.name])
    op.create_table(
        "base_models",
        sa.Column("id", sa.String(length=96), nullable=False),
        sa.Column("info", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_base_models")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.Column("last_claimed_at", sa.Float(precision=53), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "adapters",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("base_model", sa.String(length=96), nullable=False),
        sa.Column("latest_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("active_version", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.Column("deleted_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapters_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapters")),
    )
    op.create_index(
        "uq_adapters_tenant_id_name",
        "adapters",
        ["tenant_id", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("hint", sa.String(length=16), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.Column("revoked_at", sa.Float(precision=53), nullable=True),
        sa.Column("last_used_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "blobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_blobs_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blobs")),
        sa.UniqueConstraint("tenant_id", "sha256", name=op.f("uq_blobs_tenant_id_sha256")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("base_model", sa.String(length=96), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.Column("heartbeat_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["base_model"], ["base_models.id"], name=op.f("fk_workers_base_model_base_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "adapter_versions",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("adapter_id", sa.String(length=40), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parent_version", sa.Integer(), nullable=True),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("weights_id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_adapter_versions_adapter_id_adapters")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapter_versions_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["weights_id"], ["blobs.id"], name=op.f("fk_adapter_versions_weights_id_blobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_versions")),
        sa.UniqueConstraint("adapter_id", "version", name=op.f("uq_adapter_versions_adapter_id_version")),
        sa.UniqueConstraint("job_id", name=op.f("uq_adapter_versions_job_id")),
    )
    op.create_index(op.f("ix_adapter_versions_tenant_id"), "adapter_versions", ["tenant_id"], unique=False)
    op.create_index(op.f("ix_adapter_versions_weights_id"), "adapter_versions", ["weights_id"], unique=False)
    op.create_table(
        "blob_chunks",
        sa.Column("blob_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["blob_id"], ["blobs.id"], name=op.f("fk_blob_chunks_blob_id_blobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("blob_id", "position", name=op.f("pk_blob_chunks")),
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("blob_id", sa.String(length=40), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("purpose", sa.String(length=32), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("examples", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.Column("deleted_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_files_blob_id_blobs")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_files_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index(op.f("ix_files_blob_id"), "files", ["blob_id"], unique=False)
    op.create_index("ix_files_tenant_id_id", "files", ["tenant_id", "id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), server_default="queued", nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("base_model", sa.String(length=96), nullable=False),
        sa.Column("adapter_name", sa.String(length=64), nullable=False),
        sa.Column("adapter_id", sa.String(length=40), nullable=True),
        sa.Column("parent_version_id", sa.String(length=40), nullable=True),
        sa.Column("training_file", sa.String(length=40), nullable=True),
        sa.Column("validation_file", sa.String(length=40), nullable=True),
        sa.Column("retention_file", sa.String(length=40), nullable=True),
        sa.Column("training_blob_id", sa.String(length=40), nullable=False),
        sa.Column("validation_blob_id", sa.String(length=40), nullable=True),
        sa.Column("retention_blob_id", sa.String(length=40), nullable=True),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("trainable_parameters", sa.BigInteger(), nullable=False),
        sa.Column("optimizer_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_token", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_expires_at", sa.Float(precision=53), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("result_version_id", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_jobs_adapter_id_adapters")),
        sa.ForeignKeyConstraint(
            ["parent_version_id"], ["adapter_versions.id"], name=op.f("fk_jobs_parent_version_id_adapter_versions")
        ),
        sa.ForeignKeyConstraint(["retention_blob_id"], ["blobs.id"], name=op.f("fk_jobs_retention_blob_id_blobs")),
        sa.ForeignKeyConstraint(["retention_file"], ["files.id"], name=op.f("fk_jobs_retention_file_files")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_jobs_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["training_blob_id"], ["blobs.id"], name=op.f("fk_jobs_training_blob_id_blobs")),
        sa.ForeignKeyConstraint(["training_file"], ["files.id"], name=op.f("fk_jobs_training_file_files")),
        sa.ForeignKeyConstraint(["validation_blob_id"], ["blobs.id"], name=op.f("fk_jobs_validation_blob_id_blobs")),
        sa.ForeignKeyConstraint(["validation_file"], ["files.id"], name=op.f("fk_jobs_validation_file_files")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_retention_blob_id"), "jobs", ["retention_blob_id"], unique=False)
    op.create_index(op.f("ix_jobs_retention_file"), "jobs", ["retention_file"], unique=False)
    op.create_index("ix_jobs_status_base_model", "jobs", ["status", "base_model"], unique=False)
    op.create_index("ix_jobs_tenant_id_id", "jobs", ["tenant_id", "id"], unique=False)
    op.create_index(op.f("ix_jobs_training_blob_id"), "jobs", ["training_blob_id"], unique=False)
    op.create_index(op.f("ix_jobs_training_file"), "jobs", ["training_file"], unique=False)
    op.create_index(op.f("ix_jobs_validation_blob_id"), "jobs", ["validation_blob_id"], unique=False)
    op.create_index(op.f("ix_jobs_validation_file"), "jobs", ["validation_file"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("route", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_idempotency_keys_job_id_jobs")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_idempotency_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", "route", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "job_checkpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("weights_id", sa.String(length=40), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_checkpoints_job_id_jobs")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_checkpoints_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["weights_id"], ["blobs.id"], name=op.f("fk_job_checkpoints_weights_id_blobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_checkpoints")),
        sa.UniqueConstraint("job_id", "step", name=op.f("uq_job_checkpoints_job_id_step")),
    )
    op.create_index(op.f("ix_job_checkpoints_weights_id"), "job_checkpoints", ["weights_id"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("level", sa.String(length=8), nullable=False),
        sa.Column("type", sa.String(length=8), nullable=False),
        sa.Column("message", sa.String(length=2000), nullable=False),
        sa.Column("data", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id_jobs")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_events_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_events")),
    )
    op.create_index("ix_job_events_job_id_id", "job_events", ["job_id", "id"], unique=False)
    op.create_table(
        "job_snapshots",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("tensors_id", sa.String(length=40), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), server_default=now, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_snapshots_job_id_jobs")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_snapshots_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["tensors_id"], ["blobs.id"], name=op.f("fk_job_snapshots_tensors_id_blobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_snapshots")),
        sa.UniqueConstraint("job_id", "step", name=op.f("uq_job_snapshots_job_id_step")),
    )
    op.create_index(op.f("ix_job_snapshots_tensors_id"), "job_snapshots", ["tensors_id"], unique=False)


def downgrade() -> None:
    """Drop every table with its rows."""
    for table in TABLES_BY_DEPENDENCE:
        op.drop_table(table)
