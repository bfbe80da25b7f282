"""Rules on moe."""
