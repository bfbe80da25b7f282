"""Where groups are placed: nodes, scale-up domains and network cards."""
