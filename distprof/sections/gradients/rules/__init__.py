"""Rules on gradients."""
