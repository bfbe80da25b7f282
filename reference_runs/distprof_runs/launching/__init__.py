"""Launches ranks from a command line: nodes, processes, process groups."""
