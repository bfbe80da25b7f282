"""What sharded parameters and tensor parallelism move in a step."""
