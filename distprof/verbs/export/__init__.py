"""A run as a file of another program: one merged time line for Perfetto."""
