"""Readers of sensor files, and the assignment of their GPUs and times to the ranks of a run."""
