"""The configuration that the job's own objects show."""
