"""Collectives by kind, group and size: transfer, waiting and bandwidth."""
