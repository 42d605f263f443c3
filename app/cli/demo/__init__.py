"""`graft demo`."""
