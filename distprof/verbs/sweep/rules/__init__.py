"""Rules on sweep."""
