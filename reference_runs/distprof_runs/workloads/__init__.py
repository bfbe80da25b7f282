"""The workloads: one readable file for each kind of parallelism, and the parts they share."""
