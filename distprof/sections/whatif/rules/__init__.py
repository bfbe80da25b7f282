"""Rules on whatif."""
