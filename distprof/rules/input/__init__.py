"""INP: the device waits for data."""
