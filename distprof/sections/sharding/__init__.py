"""Traffic of sharded parameters and tensor parallelism."""
