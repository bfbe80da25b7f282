"""Small torch workloads, one readable file per kind of parallelism."""
