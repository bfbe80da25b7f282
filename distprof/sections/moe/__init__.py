"""Experts: load, routing, exchanges and what imbalance costs."""
