"""The same tests on SQLite and on PostgreSQL."""
