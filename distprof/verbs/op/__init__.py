"""The story of one operator: ``distprof op``."""
