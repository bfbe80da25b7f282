"""Readers of training programs' logs, with one grammar per format."""
