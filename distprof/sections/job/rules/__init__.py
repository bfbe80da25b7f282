"""Rules on job."""
