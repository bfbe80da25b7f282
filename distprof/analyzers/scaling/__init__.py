"""Efficiency over the number of ranks, and what is lost to what."""
