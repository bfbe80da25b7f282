"""Training logs."""
