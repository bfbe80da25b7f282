"""How much communication overlaps with computation, by rank and mesh axis."""
