"""The query form in which OpenAI's client filters jobs by metadata: `metadata[key]=value`, or `metadata=null`."""

import re
from collections.abc import Mapping
from typing import Literal

from app.core.errors import InvalidRequestError

_PARAMETER = re.compile(r'metadata\[([^"\\\x00-\x1f]{1,64})\]')

MetadataFilter = dict[str, str] | Literal["none"] | None


def metadata_filter(query: Mapping[str, str]) -> MetadataFilter:
    """Return the wanted pairs, "none" for jobs without metadata, or None for no filter. Raises InvalidRequestError."""
    if query.get("metadata") == "null":
        return "none"
    wanted = {}
    for name, value in query.items():
        if name.startswith("metadata"):
            match = _PARAMETER.fullmatch(name)
            if match is None or "\x00" in value:
                raise InvalidRequestError(
                    f"{name}: expected metadata[key]=value or metadata=null", code="invalid_value", param="metadata"
                )
            wanted[match[1]] = value
    return wanted or None
