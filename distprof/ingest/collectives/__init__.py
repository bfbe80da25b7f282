"""COLLECTIVES rows of one rank: who calls what, with which peers and how many bytes."""
