"""Tests mirror the packages; builders and the simulator make inputs in a few lines."""
