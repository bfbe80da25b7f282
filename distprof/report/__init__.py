"""Report and the reporters: every reporter works from a saved report alone."""
