"""How fast a network is."""
