"""Metrics of runs over commits."""
