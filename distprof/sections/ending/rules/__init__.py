"""Rules on what a job printed about its end."""
