"""Rules on overlap."""
