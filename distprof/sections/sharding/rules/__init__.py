"""Rules about sharded parameters and tensor parallelism."""
