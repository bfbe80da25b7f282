"""Rules on capture."""
