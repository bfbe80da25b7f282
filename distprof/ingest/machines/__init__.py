"""Work and tables beyond this machine: a cluster of Dask, a cache that a team shares."""
