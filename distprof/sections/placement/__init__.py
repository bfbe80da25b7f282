"""Placement of process groups on nodes, scale-up domains and network cards."""
