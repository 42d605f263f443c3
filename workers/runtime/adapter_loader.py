"""Brings immutable adapter weights from the database: for training as a start, for serving to the host's memory.

Knows no slots; who serves a version puts it into one.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.contracts.adapter_format import AdapterFormatError
from app.contracts.adapters import AdapterRef, VersionKey
from app.contracts.base_models import BaseModelInfo
from app.db.blobs import BlobCorruptError, BlobNotFoundError, read_blob
from app.db.session import Database
from workers.inference.adapter_cache import AdapterUnavailableError, SourceCounts
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import from_peft
from workers.runtime.background_loads import BackgroundLoads
from workers.runtime.weights_lru import WeightsLRU

log = structlog.get_logger()
HOST_BYTES = 1024**3
LOAD_THREADS = 2
MAX_LOADS = 8
"""Each holds a version's weights until somebody asks for them."""


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
    """Brings versions from the database to the host's memory, in the background, and keeps what was used last.

    A version never changes, so what is kept can be old but never wrong; nothing is kept of a load that failed.
    """

    def __init__(
        self,
        database: Database,
        info: BaseModelInfo,
        *,
        host_bytes: int = HOST_BYTES,
        threads: int = LOAD_THREADS,
        max_loads: int = MAX_LOADS,
    ) -> None:
        """Keep at most `host_bytes` of weights, and let at most `max_loads` be on their way."""
        self._database, self._info = database, info
        self._kept = WeightsLRU(host_bytes)
        self._loads = BackgroundLoads(threads=threads, limit=max_loads)
        self._host_hits = self._database_loads = self._failed = 0

    def get(self, ref: AdapterRef) -> AdapterWeights | None:
        """Return a version's weights, None while they are on their way. Raises AdapterUnavailableError.

        A load that failed is told once; who asks after that has it tried again.
        """
        weights = self._kept.get(ref.key)
        if weights is not None:
            self._host_hits += 1
            return weights
        if ref.key in self._loads:
            return self._fetch(ref.key)
        for key in [] if self._loads.has_room else self._loads.ended():
            with suppress(AdapterUnavailableError):
                self._fetch(key)
        self.prefetch(ref)
        return None

    def prefetch(self, ref: AdapterRef) -> None:
        """Begin to load a version, unless it is here, on its way, or too many others are."""
        if ref.key not in self._kept and ref.key not in self._loads and self._loads.has_room:
            self._loads.start(ref.key, partial(load_version, self._database, ref, self._info))

    def wait(self, seconds: float) -> None:
        """Wait until a load on its way has ended, at most so long; return at once where none is on its way."""
        self._loads.wait(seconds)

    def counts(self) -> SourceCounts:
        """Return what was done since the start and is held now."""
        return SourceCounts(
            host_hits=self._host_hits,
            database_loads=self._database_loads,
            failed_loads=self._failed,
            pending_loads=self._loads.pending,
            host_versions=len(self._kept),
            host_bytes=self._kept.bytes,
        )

    def close(self) -> None:
        """Begin no further load."""
        self._loads.close()

    def _fetch(self, key: VersionKey) -> AdapterWeights | None:
        try:
            weights = self._loads.take(key)
        except AdapterUnavailableError:
            self._failed += 1
            raise
        if weights is not None:
            self._database_loads += 1
            self._kept.put(key, weights)
        return weights


def load_version(database: Database, ref: AdapterRef, info: BaseModelInfo) -> AdapterWeights:
    """Read, verify and parse a version. Raises AdapterUnavailableError whatever is wrong with it."""
    try:
        with database.read() as session:
            return read_adapter(session, ref.tenant_id, ref.weights_id, ref.config, info)
    except BlobNotFoundError as error:
        raise AdapterUnavailableError(
            404, "adapter_not_found", f"the weights of version {ref.version_id} no longer exist"
        ) from error
    except (BlobCorruptError, AdapterFormatError) as error:
        raise AdapterUnavailableError(
            500, "adapter_unusable", f"version {ref.version_id} cannot be served: {error}"
        ) from error
    except SQLAlchemyError as error:
        raise AdapterUnavailableError(
            503, "database_unavailable", f"version {ref.version_id} cannot be loaded now, try again"
        ) from error
    except Exception as error:
        log.exception("adapter version cannot be loaded", version=ref.version_id)
        raise AdapterUnavailableError(
            500, "adapter_unusable", f"version {ref.version_id} cannot be served: it cannot be read"
        ) from error
