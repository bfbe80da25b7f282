"""What holds in every sound recording, and what is done and said where it does not."""
