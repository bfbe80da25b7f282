"""The probes, one module each."""
