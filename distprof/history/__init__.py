"""Summaries of runs over time: appended to a Parquet dataset, queried by DuckDB."""
