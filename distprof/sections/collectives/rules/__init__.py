"""Rules on collectives."""
