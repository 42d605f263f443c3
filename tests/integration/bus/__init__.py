"""The bus against a real Valkey server."""
