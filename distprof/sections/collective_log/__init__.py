"""Collectives as recorded by ranks over hours or days."""
