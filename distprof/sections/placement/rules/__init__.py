"""Rules on placement."""
