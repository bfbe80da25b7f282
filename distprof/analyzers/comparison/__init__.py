"""What changed between two runs, and where the difference of their steps lies."""
