"""Kernels by name, and how ranks differ in them."""
