"""Fault injection, so that a report can be compared with a known cause."""
