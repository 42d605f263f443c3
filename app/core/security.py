"""API keys: how they are made, recognised and hashed. Knows nothing of where they are stored."""

import hashlib
import secrets

KEY_PREFIX = "tml-"
HINT_LENGTH = 12


def new_api_key() -> str:
    """Return a fresh key: the prefix and 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_sha256(key: str) -> str:
    """Return the hex digest a key is stored and looked up by; 256 random bits need no slow hash."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_hint(key: str) -> str:
    """Return the first characters, enough to recognise a key in a list and useless to anybody else."""
    return key[:HINT_LENGTH]


def presented_key(authorization: str | None, x_api_key: str | None) -> str | None:
    """Return the key of `Authorization: Bearer …` or `X-API-Key`, if one of our form was presented."""
    scheme, _, value = (authorization or "").partition(" ")
    key = value.strip() if scheme.lower() == "bearer" else (x_api_key or "").strip()
    return key if key.startswith(KEY_PREFIX) and key.isascii() and len(key) <= 255 else None
