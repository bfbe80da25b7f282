"""Rules about pipeline parallelism."""
