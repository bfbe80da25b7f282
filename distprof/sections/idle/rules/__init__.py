"""Rules on idle."""
