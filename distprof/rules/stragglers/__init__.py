"""STR: ranks that make the others wait."""
