"""Rules about the overlap of communication with computation."""
