"""Readers of training programs' logs: one grammar per way of writing."""
