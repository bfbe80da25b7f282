"""Figures of runs over commits."""
