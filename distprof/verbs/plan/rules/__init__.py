"""Rules on planned layouts."""
