"""Finds the operation in which a job is stuck, and the ranks that are missing from it."""
