"""How much communication computation hides, by rank and mesh axis."""
