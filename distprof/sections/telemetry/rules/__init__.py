"""Rules on telemetry."""
