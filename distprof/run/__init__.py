"""What a recording holds: ranks, tables, topology, clocks. Frozen; made by ingest only."""
