"""Rules on efficiency."""
