"""How data parallelism reduces gradients: buckets, overlap and bytes."""
