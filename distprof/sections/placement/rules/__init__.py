"""Rules about rank placement."""
