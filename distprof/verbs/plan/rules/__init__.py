"""Rules on plan."""
