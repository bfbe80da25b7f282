"""Faults on request, so that a report can be held against a known cause."""
