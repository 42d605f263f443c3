"""Tests against real servers: databases and the bus."""
