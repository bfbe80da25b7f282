"""Exports runs to other programs: Perfetto, OpenTelemetry and Prometheus."""
