"""Rules on pipeline."""
