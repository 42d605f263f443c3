"""The base of every contract: strict about names, frozen once made."""

from pydantic import BaseModel, ConfigDict


class Contract(BaseModel):
    """A message between processes. Unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
