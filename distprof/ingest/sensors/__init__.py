"""Readers of sensor files, and how their devices and times are joined to the ranks of a run."""
