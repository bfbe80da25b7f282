"""Rules on sweeps."""
