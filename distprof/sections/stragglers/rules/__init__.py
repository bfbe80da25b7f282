"""Rules on stragglers."""
