"""Mixture of experts: routing, exchanges of tokens, load of ranks, what a new placement gives."""
