"""How a request presents its API key. Knows headers' form; knows nothing of where keys are stored."""

KEY_PREFIX = "tml-"
MAX_KEY_LENGTH = 255


def presented_key(authorization: str | None, x_api_key: str | None) -> str | None:
    """Return the key of `Authorization: Bearer …` or `X-API-Key`, if one of our form was presented."""
    scheme, _, value = (authorization or "").partition(" ")
    key = value.strip() if scheme.lower() == "bearer" else (x_api_key or "").strip()
    return key if key.startswith(KEY_PREFIX) and key.isascii() and len(key) <= MAX_KEY_LENGTH else None
