"""The step simulated without each of its causes."""
