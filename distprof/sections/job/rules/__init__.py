"""Rules on the job."""
