"""Readers of a run directory: what was run, how it ended, and what its probes recorded."""
