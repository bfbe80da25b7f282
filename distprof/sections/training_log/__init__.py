"""Iterations in the log of a training program."""
