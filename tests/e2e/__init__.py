"""End-to-end tests: one real server, driven from outside as a tenant would."""
