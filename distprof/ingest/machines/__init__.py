"""Work and tables on other machines: a Dask cluster, and a cache that a team shares."""
