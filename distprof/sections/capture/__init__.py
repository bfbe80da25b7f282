"""What the recording holds, and what is missing or damaged."""
