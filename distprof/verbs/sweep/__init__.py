"""Scaling: runs of several sizes, and where efficiency is lost."""
