"""The job: what ran, and how it ended."""
