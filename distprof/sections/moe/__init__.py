"""Experts: load, routing, exchanges and the cost of imbalance."""
