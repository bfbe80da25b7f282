"""Rules on computation."""
