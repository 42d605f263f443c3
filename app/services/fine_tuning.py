"""Plans fine-tunes: model, files and wishes are checked and every "auto" is decided before anything is written."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from app.contracts.training import Priority
from app.db.blobs import iter_lines
from app.services.files import get_training_file
from app.services.job_config import resolve_config
from app.services.job_options import JobOptions
from app.services.jobs import JobPlan
from app.services.start_point import resolve_start
from app.services.trained_part import trainable_parameters
from app.services.training_data import check_trainable
from app.services.whole_models import refuse_large_run


def plan_fine_tune(
    session: Session,
    tenant_id: str,
    *,
    model: str,
    training_file: str,
    validation_file: str | None,
    retention_file: str | None,
    adapter: str | None,
    suffix: str | None,
    options: JobOptions,
    request: Mapping[str, object],
    priority: Priority,
    max_checkpoint_bytes: int,
) -> JobPlan:
    """Return a checked plan. Raises ServiceError naming the field at fault; writes nothing."""
    start = resolve_start(session, tenant_id, model, adapter, suffix)
    training = get_training_file(session, tenant_id, training_file, param="training_file")
    validation = validation_file and get_training_file(session, tenant_id, validation_file, param="validation_file")
    retention = retention_file and get_training_file(session, tenant_id, retention_file, param="retention_file")
    config = resolve_config("fine_tune", start.info, options, training.examples, start.shape, retention=bool(retention))
    refuse_large_run(start.info, config, max_checkpoint_bytes)
    check_trainable(start.info, iter_lines(session, tenant_id, training.blob_id), param="training_file")
    if validation:
        check_trainable(start.info, iter_lines(session, tenant_id, validation.blob_id), param="validation_file")
    if retention:
        check_trainable(start.info, iter_lines(session, tenant_id, retention.blob_id), param="retention_file")
    return JobPlan(
        kind="fine_tune",
        model=model,
        start=start,
        config=config,
        trainable_parameters=start.shape.parameters if start.shape else trainable_parameters(start.info, config),
        request=request,
        priority=priority,
        training_file=training.id,
        validation_file=validation.id if validation else None,
        retention_file=retention.id if retention else None,
    )
