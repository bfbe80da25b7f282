"""Rules on step log."""
