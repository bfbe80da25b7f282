"""The job's configuration, read from its live objects."""
