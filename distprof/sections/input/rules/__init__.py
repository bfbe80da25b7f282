"""Rules on input."""
