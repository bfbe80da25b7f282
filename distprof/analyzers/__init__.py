"""Measurements: pure functions from tables to frozen results. No thresholds, no drawing, no I/O."""
