"""Body and answer of /v1/embeddings, as OpenAI's client sends and reads them."""

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

from app.api.schemas.common import RequestBody, Text, only
from app.api.schemas.fine_tuning import ModelName
from app.api.schemas.text_or_tokens import one_or_several
from app.services.embeddings import Embeddings

MAX_INPUTS = 2048


class EmbeddingsBody(RequestBody):
    """POST /v1/embeddings."""

    model: ModelName
    input: Annotated[list[Text] | list[list[int]], one_or_several(MAX_INPUTS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Any, only()] = None
    user: Any = None


def embeddings_answer(model: str, made: Embeddings, *, as_base64: bool) -> dict[str, Any]:
    """Return OpenAI's object; base64 is of little-endian float32."""
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _base64(vector) if as_base64 else vector.tolist()}
            for index, vector in enumerate(made.vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": made.prompt_tokens, "total_tokens": made.prompt_tokens},
    }


def _base64(vector: "array[float]") -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode("ascii")
