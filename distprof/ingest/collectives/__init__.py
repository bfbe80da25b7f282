"""COLLECTIVES rows of one rank: kinds, process groups, peers and sizes."""
