"""Rules on the step log."""
