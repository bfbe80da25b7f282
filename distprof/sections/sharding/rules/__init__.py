"""Rules on sharding."""
