"""Brings one immutable set of adapter weights from the database: for serving into a slot, for training as a start."""

from collections.abc import Mapping

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.contracts.adapter_format import AdapterFormatError
from app.contracts.adapters import AdapterRef
from app.contracts.base_models import BaseModelInfo
from app.db.blobs import BlobCorruptError, BlobNotFoundError, read_blob
from app.db.session import Database
from workers.inference.adapter_cache import AdapterUnavailableError
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import from_peft
from workers.lora.bank import AdapterBank


def read_adapter(
    session: Session,
    tenant_id: str,
    weights_id: str,
    config: Mapping[str, object],
    info: BaseModelInfo,
) -> AdapterWeights:
    """Return the weights. Raises BlobNotFoundError, BlobCorruptError or AdapterFormatError."""
    return from_peft(config, read_blob(session, tenant_id, weights_id), info)


class AdapterLoader:
    """Loads pinned versions into serving slots of a bank."""

    def __init__(self, database: Database, bank: AdapterBank, info: BaseModelInfo) -> None:
        self._database, self._bank, self._info = database, bank, info

    def load(self, ref: AdapterRef, slot: int) -> None:
        """Write a version's weights into a slot. Raises AdapterUnavailableError; the slot is then unchanged."""
        try:
            with self._database.read() as session:
                weights = read_adapter(session, ref.tenant_id, ref.weights_id, ref.config, self._info)
            self._bank.load(slot, weights)
        except BlobNotFoundError as error:
            raise AdapterUnavailableError(
                404, "adapter_not_found", f"the weights of version {ref.version_id} no longer exist"
            ) from error
        except (BlobCorruptError, AdapterFormatError, ValueError) as error:
            raise AdapterUnavailableError(
                500, "adapter_unusable", f"version {ref.version_id} cannot be served: {error}"
            ) from error
        except SQLAlchemyError as error:
            raise AdapterUnavailableError(
                503, "database_unavailable", f"version {ref.version_id} cannot be loaded now, try again"
            ) from error
