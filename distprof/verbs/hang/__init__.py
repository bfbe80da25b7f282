"""Who is missing where a job is stuck."""
