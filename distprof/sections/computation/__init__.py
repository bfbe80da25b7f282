"""Computation by category, operator and pass, with its FLOP and bytes."""
