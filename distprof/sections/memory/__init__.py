"""Allocated, reserved and peak memory by rank."""
