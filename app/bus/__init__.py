"""Redis: wake-ups, inference requests and token streams. Never the truth: losing it loses no job and no adapter."""
