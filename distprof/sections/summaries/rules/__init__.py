"""Rules on tables of other tools."""
