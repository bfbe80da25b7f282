"""Frozen content of a recording: ranks, tables, topology, clocks. Only ingest creates it."""
