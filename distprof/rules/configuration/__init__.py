"""What is wrong with a configuration before it runs."""
