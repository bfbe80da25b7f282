"""Parsed tables on disk, found again by the content of their trace."""
