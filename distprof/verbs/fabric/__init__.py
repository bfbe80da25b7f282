"""Latency and bandwidth of a network."""
